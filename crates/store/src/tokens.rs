//! Access tokens: made of high entropy, kept as a hash, found by a part of it and compared in constant time.

use std::collections::BTreeMap;
use std::fmt;

use cofer_model::mask::{TOKEN_PREFIX, TOKEN_SECRET_CHARS};
use cofer_model::project::DEFAULT_PROJECT;
use cofer_model::{Label, Moment, ProjectId, ProjectName, Scopes, Token, TokenId};
use data_encoding::BASE32_NOPAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use sqlx::types::Json;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::StoreError;

/// 256 bits: nobody guesses these, however fast they may ask.
const TOKEN_ENTROPY_BYTES: usize = 32;

/// The one token that every installation starts with has an id of its own, so that it can be replaced.
const ADMIN_TOKEN: TokenId = TokenId(Uuid::from_u128(1));

/// All that is kept of a token. Its first eight bytes find the row, the rest is compared in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(clear: &str) -> Self {
        Self(Sha256::digest(clear.as_bytes()).into())
    }

    fn lookup(&self) -> i64 {
        let (lookup, _rest) = self.0.split_at(size_of::<i64>());
        lookup.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
    }

    fn matches(&self, stored: &[u8]) -> bool {
        self.0.ct_eq(stored).into()
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: Label,
    pub scopes: Scopes,
    pub project: Option<(ProjectId, ProjectName)>,
    pub expires_at: Option<Moment>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Option<Stored<Uuid>>,
    project_name: Option<String>,
    name: String,
    scopes: Json<Scopes>,
    hash: Vec<u8>,
    created_at: Stored<Moment>,
    expires_at: Option<Stored<Moment>>,
    last_used_at: Option<Stored<Moment>>,
}

impl TryFrom<Row> for Token {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: TokenId(row.id.0),
            name: row.name.try_into().map_err(StoreError::unreadable)?,
            scopes: row.scopes.0,
            project_id: row.project_id.map(|id| ProjectId(id.0)),
            project: row
                .project_name
                .map(ProjectName::try_from)
                .transpose()
                .map_err(StoreError::unreadable)?,
            created_at: row.created_at.0,
            expires_at: row.expires_at.map(Stored::into_inner),
            last_used_at: row.last_used_at.map(Stored::into_inner),
        })
    }
}

macro_rules! select_token {
    ($which:literal) => {
        concat!(
            "SELECT token.*, project.name AS project_name FROM kb.tokens AS token ",
            "LEFT JOIN kb.projects AS project ON project.id = token.project_id ",
            $which
        )
    };
}

/// What became of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    Done,
    NotThere,
    /// Refused: nobody would be left who may do everything, for good.
    LastAdministrator,
}

fn is_last_administrator(lasting: &[Token], id: TokenId) -> bool {
    let mut administrators = lasting.iter().filter(|token| token.is_admin()).map(|token| token.id);
    administrators.next() == Some(id) && administrators.next().is_none()
}

/// A new token in clear: the recognisable prefix, then base 32 in lower case, which survives a double click.
pub fn generate_token() -> SecretString {
    let mut entropy = [0_u8; TOKEN_ENTROPY_BYTES];
    fill_random(&mut entropy);
    let secret = BASE32_NOPAD.encode(&entropy).to_lowercase();
    debug_assert_eq!(secret.len(), TOKEN_SECRET_CHARS);
    SecretString::from(format!("{TOKEN_PREFIX}{secret}"))
}

#[expect(clippy::expect_used, reason = "without the system's entropy no secret of any kind can be made")]
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives entropy");
}

impl Store {
    /// Makes a token. This is the only time that anyone sees it in clear.
    pub async fn create_token(
        &self,
        new: NewToken,
        now: Moment,
    ) -> Result<(Token, SecretString), StoreError> {
        let clear = generate_token();
        let token = self.insert_token(TokenId::generate(), new, &clear, now).await?;
        Ok((token, clear))
    }

    /// Makes this the admin token, in place of an earlier one.
    pub async fn set_admin_token(
        &self,
        new: NewToken,
        clear: &SecretString,
        now: Moment,
    ) -> Result<(), StoreError> {
        const SAME: &str = "DELETE FROM kb.tokens WHERE lookup = $1 AND hash = $2 AND id <> $3";
        self.insert_token(ADMIN_TOKEN, new, clear, now).await?;
        // One token, one row: else revoking one would leave the other.
        let hash = TokenHash::of(clear.expose_secret());
        let same = rows_changed_on_each!(
            self,
            sqlx::query(SAME).bind(hash.lookup()).bind(&hash.0[..]).bind(Stored(ADMIN_TOKEN.0))
        )?;
        if same > 0 {
            tracing::info!("the admin token was known by another name; it is the admin token alone now");
        }
        Ok(())
    }

    async fn insert_token(
        &self,
        id: TokenId,
        new: NewToken,
        clear: &SecretString,
        now: Moment,
    ) -> Result<Token, StoreError> {
        const SQL: &str = "INSERT INTO kb.tokens (id, project_id, name, scopes, lookup, hash, created_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, scopes = excluded.scopes, lookup = excluded.lookup, \
             hash = excluded.hash, created_at = excluded.created_at, expires_at = NULL, last_used_at = NULL";
        let hash = TokenHash::of(clear.expose_secret());
        let (project_id, project) = new.project.unzip();
        rows_changed_on_each!(
            self,
            sqlx::query(SQL)
                .bind(Stored(id.0))
                .bind(project_id.map(|id| Stored(id.0)))
                .bind(new.name.as_str())
                .bind(Json(&new.scopes))
                .bind(hash.lookup())
                .bind(&hash.0[..])
                .bind(Stored(now))
                .bind(new.expires_at.map(Stored))
        )?;
        let NewToken { name, scopes, expires_at, .. } = new;
        Ok(Token { id, name, scopes, project_id, project, created_at: now, expires_at, last_used_at: None })
    }

    /// Every token, oldest first, of one project or of all.
    pub async fn tokens(&self, of: Option<ProjectId>) -> Result<Vec<Token>, StoreError> {
        const ALL: &str = select_token!("ORDER BY token.created_at, token.id");
        const OF_PROJECT: &str =
            select_token!("WHERE token.project_id = $1 ORDER BY token.created_at, token.id");
        let rows: Vec<Row> = match of {
            None => on_each!(self, |db| sqlx::query_as(ALL).fetch_all(db))?,
            Some(id) => on_each!(self, |db| sqlx::query_as(OF_PROJECT).bind(Stored(id.0)).fetch_all(db))?,
        };
        rows.into_iter().map(Token::try_from).collect()
    }

    /// The token with this hash, whether or not it has expired.
    pub async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError> {
        const SQL: &str = select_token!("WHERE token.lookup = $1");
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(hash.lookup()).fetch_all(db))?;
        rows.into_iter().find(|row| hash.matches(&row.hash)).map(Token::try_from).transpose()
    }

    /// Ends a token, unless nobody would be left who may do everything.
    pub async fn revoke_token(&self, id: TokenId) -> Result<Revocation, StoreError> {
        const ONE_AT_A_TIME: &str = "UPDATE kb.projects SET name = name WHERE name = $1";
        const ALL: &str = select_token!("WHERE token.project_id IS NULL AND token.expires_at IS NULL");
        const SQL: &str = "DELETE FROM kb.tokens WHERE id = $1";
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            // Two administrators who revoke each other at once: the second waits here, and then sees the first one gone.
            sqlx::query(ONE_AT_A_TIME).bind(DEFAULT_PROJECT).execute(&mut *transaction).await?;
            let rows: Vec<Row> = sqlx::query_as(ALL).fetch_all(&mut *transaction).await?;
            let lasting = rows.into_iter().map(Token::try_from).collect::<Result<Vec<_>, _>>()?;
            if is_last_administrator(&lasting, id) {
                return Ok(Revocation::LastAdministrator);
            }
            let done = sqlx::query(SQL).bind(Stored(id.0)).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok::<_, StoreError>(if done.rows_affected() > 0 {
                Revocation::Done
            } else {
                Revocation::NotThere
            })
        })
    }

    /// Remembers when tokens were last used; called now and then with what has come together.
    /// Always in the same order, so that two of these never wait for each other.
    pub async fn note_token_uses(&self, uses: &BTreeMap<TokenId, Moment>) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kb.tokens SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)";
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            for (id, at) in uses {
                sqlx::query(SQL).bind(Stored(id.0)).bind(Stored(*at)).execute(&mut *transaction).await?;
            }
            transaction.commit().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_prefix_and_the_length_by_which_it_is_recognised_and_masked() {
        let token = generate_token();
        let secret = token.expose_secret().strip_prefix(TOKEN_PREFIX).unwrap();
        assert_eq!(secret.len(), TOKEN_SECRET_CHARS);
        assert!(secret.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7')));
        assert_ne!(generate_token().expose_secret(), token.expose_secret());
    }
}
