//! Sees to it that somebody can administer this, from the first start on.
//!
//! With `COFER_ADMIN_TOKEN` that is the admin token. Else, when there is none that lasts, one is made and written to
//! `admin.token`, the file before the row: whatever fails in between, the next start begins anew.

use cofer_model::{Kind, Moment, Scope};
use cofer_store::{NewToken, Store, StoreError, TokenHash, generate_token};
use secrecy::{ExposeSecret, SecretString};

use crate::auth::TOKEN_BYTES_MAX;
use crate::data_dir::{self, DataDir, DataDirError};

/// A token shorter than this can be guessed.
const CHARS_SOUND: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(
        "COFER_ADMIN_TOKEN must be 1 to {TOKEN_BYTES_MAX} printable ASCII characters without spaces, so that it can be sent in a header"
    )]
    Unusable,
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("the admin token could not be kept")]
    Store(#[from] StoreError),
}

impl AdminError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unusable => Kind::Invalid,
            Self::DataDir(error) => error.kind(),
            Self::Store(error) => error.kind(),
        }
    }
}

/// Makes the given token the admin token, in place of an earlier one.
pub(crate) async fn use_given(
    given: &SecretString,
    store: &Store,
    data_dir: &DataDir,
    now: Moment,
) -> Result<(), AdminError> {
    let text = given.expose_secret();
    if text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(AdminError::Unusable);
    }
    if text.len() < CHARS_SOUND {
        tracing::warn!("COFER_ADMIN_TOKEN is shorter than {CHARS_SOUND} characters and can be guessed");
    }
    store.set_admin_token(admin(), given, now).await?;
    if data_dir.remove_admin_token()? {
        tracing::info!("removed admin.token: COFER_ADMIN_TOKEN is the admin token now");
    }
    Ok(())
}

/// Makes an admin token if nobody can administer this.
pub(crate) async fn ensure(store: &Store, data_dir: &DataDir, now: Moment) -> Result<(), AdminError> {
    let left_before = data_dir::admin_token(data_dir.path());
    let tokens = store.tokens(None).await?;
    if !tokens.iter().any(|token| token.is_admin() && !token.is_expired(now)) {
        let token = generate_token();
        data_dir.write_admin_token(&token)?;
        return Ok(store.set_admin_token(admin(), &token, now).await?);
    }
    if let Some(token) = left_before
        && store
            .token_by_hash(&TokenHash::of(token.expose_secret()))
            .await?
            .is_none_or(|token| token.is_expired(now))
        && data_dir.remove_admin_token()?
    {
        tracing::info!("removed admin.token: the token in it was revoked");
    }
    Ok(())
}

fn admin() -> NewToken {
    #[expect(clippy::expect_used, reason = "a constant that is a valid label")]
    let name = "admin".to_owned().try_into().expect("a label");
    NewToken { name, scopes: Scope::ALL.into(), project: None, expires_at: None }
}
