//! Logins at servers elsewhere: what each gave us, sealed under the master key like a secret, for one server alone.
//!
//! A login goes with its server. What is in it is the affair of whoever sealed it.

use std::collections::BTreeMap;

use cofer_model::{Moment, ProjectId, ServerId};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::StoreError;
use crate::seal::{MasterKey, Place};
use crate::secrets::{HOLD_KEY, SecretsError};

pub(crate) const ALL: &str = "SELECT server_id, key_id, sealed FROM kb.server_logins";
pub(crate) const RESEAL: &str = "UPDATE kb.server_logins SET key_id = $2, sealed = $3 WHERE server_id = $1";

#[derive(sqlx::FromRow)]
pub(crate) struct SealedLogin {
    pub server_id: Stored<Uuid>,
    key_id: String,
    sealed: Vec<u8>,
}

impl SealedLogin {
    fn open(&self, key: &MasterKey) -> Result<SecretString, SecretsError> {
        if self.key_id != key.fingerprint() {
            return Err(SecretsError::OtherKey { sealed_with: self.key_id.clone(), held: key.fingerprint() });
        }
        let server = ServerId(self.server_id.0);
        key.open(Place::Login(server), &self.sealed).map_err(|_| SecretsError::TamperedLogin { server })
    }

    /// The same under another key.
    pub(crate) fn resealed(&self, old: &MasterKey, new: &MasterKey) -> Result<Vec<u8>, SecretsError> {
        let clear = self.open(old)?;
        Ok(new.seal(Place::Login(ServerId(self.server_id.0)), clear.expose_secret().as_bytes()))
    }
}

impl Store {
    /// Which servers of a project have a login, and whether there are tokens in it.
    pub async fn logins(&self, project: ProjectId) -> Result<BTreeMap<ServerId, bool>, StoreError> {
        const SQL: &str = "SELECT login.server_id, login.has_tokens FROM kb.server_logins AS login \
             JOIN kb.server_register AS register ON register.server_id = login.server_id WHERE register.project_id = $1";
        let rows: Vec<(Stored<Uuid>, bool)> =
            on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        Ok(rows.into_iter().map(|(server, has_tokens)| (ServerId(server.0), has_tokens)).collect())
    }

    /// Keeps a login, replacing an earlier one. [`StoreError::OwnerGone`] in it when the server was removed meanwhile.
    pub async fn put_login(
        &self,
        key: &MasterKey,
        server: ServerId,
        login: &SecretString,
        has_tokens: bool,
        now: Moment,
    ) -> Result<(), SecretsError> {
        const SQL: &str = "INSERT INTO kb.server_logins (server_id, has_tokens, key_id, sealed, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (server_id) DO UPDATE SET has_tokens = excluded.has_tokens, \
             key_id = excluded.key_id, sealed = excluded.sealed, updated_at = excluded.updated_at";
        let held = key.fingerprint();
        let sealed = key.seal(Place::Login(server), login.expose_secret().as_bytes());
        let is_kept: bool = on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let holding = sqlx::query(HOLD_KEY).bind(&held).execute(&mut *transaction).await?;
            if holding.rows_affected() == 0 {
                return Ok::<_, sqlx::Error>(false);
            }
            let put = sqlx::query(SQL)
                .bind(Stored(server.0))
                .bind(has_tokens)
                .bind(&held)
                .bind(&sealed)
                .bind(Stored(now));
            put.execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(true)
        })?;
        if is_kept { Ok(()) } else { Err(self.other_key(held).await) }
    }

    /// What was kept of the login at this server.
    pub async fn open_login(
        &self,
        key: &MasterKey,
        server: ServerId,
    ) -> Result<Option<SecretString>, SecretsError> {
        const SQL: &str = "SELECT server_id, key_id, sealed FROM kb.server_logins WHERE server_id = $1";
        let row: Option<SealedLogin> =
            on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(server.0)).fetch_optional(db))?;
        row.map(|row| row.open(key)).transpose()
    }

    /// Says whether there was one.
    pub async fn delete_login(&self, server: ServerId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM kb.server_logins WHERE server_id = $1";
        Ok(rows_changed_on_each!(self, sqlx::query(SQL).bind(Stored(server.0)))? > 0)
    }
}
