//! Secrets at rest, and the master key they are sealed with.
//!
//! `kb.master_key` has one row: the fingerprint of the key in use, and a known text sealed with it. Whoever writes a
//! secret first touches that row, naming the key they hold. So a rotation and a write can never pass each other
//! unseen: one of them waits for the other, and a writer with yesterday's key is told so.

use std::time::Duration;

use cofer_model::{Kind, Moment, ProjectId, SecretEntry, SecretName, ServerId};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::StoreError;
use crate::logins::{self, SealedLogin};
use crate::seal::{MasterKey, Place};

const CHECK_TEXT: &[u8] = b"cofer";
/// A rotation touches every secret there is.
const ROTATION_DEADLINE: Duration = Duration::from_mins(5);
/// Touches the row, so that it stays locked until the transaction ends, if this is the key in use.
pub(crate) const HOLD_KEY: &str = "UPDATE kb.master_key SET id = id WHERE id = $1";

/// Why a secret could not be kept or told.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("the secrets are sealed with master key {sealed_with}, and this process holds {held}")]
    OtherKey { sealed_with: String, held: String },
    #[error("the check of the master key was altered in the database; restore a backup")]
    CheckAltered,
    #[error("secret {name} does not open: its row was altered or moved")]
    Tampered { name: SecretName },
    #[error("the login at server {server} does not open: its row was altered or moved")]
    TamperedLogin { server: ServerId },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SecretsError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::OtherKey { .. } => Kind::Unavailable,
            Self::CheckAltered | Self::Tampered { .. } | Self::TamperedLogin { .. } => Kind::Internal,
            Self::Store(error) => error.kind(),
        }
    }
}

impl From<sqlx::Error> for SecretsError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

#[derive(sqlx::FromRow)]
struct EntryRow {
    name: String,
    created_at: Stored<Moment>,
    updated_at: Stored<Moment>,
}

#[derive(sqlx::FromRow)]
struct SealedRow {
    project_id: Stored<Uuid>,
    name: String,
    key_id: String,
    sealed: Vec<u8>,
}

impl SealedRow {
    fn open(&self, key: &MasterKey) -> Result<(SecretName, SecretString), SecretsError> {
        let name = SecretName::try_from(self.name.clone()).map_err(StoreError::unreadable)?;
        if self.key_id != key.fingerprint() {
            return Err(SecretsError::OtherKey { sealed_with: self.key_id.clone(), held: key.fingerprint() });
        }
        match key.open(Place::Secret(ProjectId(self.project_id.0), &name), &self.sealed) {
            Ok(clear) => Ok((name, clear)),
            Err(_) => Err(SecretsError::Tampered { name }),
        }
    }

    /// The same under another key.
    fn resealed(&self, old: &MasterKey, new: &MasterKey) -> Result<Vec<u8>, SecretsError> {
        let (name, clear) = self.open(old)?;
        let place = Place::Secret(ProjectId(self.project_id.0), &name);
        Ok(new.seal(place, clear.expose_secret().as_bytes()))
    }
}

impl Store {
    /// The fingerprint of the key that the secrets are sealed with; `None` before there was any.
    pub async fn master_key_in_use(&self) -> Result<Option<String>, StoreError> {
        const SQL: &str = "SELECT id FROM kb.master_key";
        on_each!(self, |db| sqlx::query_scalar(SQL).fetch_optional(db))
    }

    /// Declares the first master key, or checks that this is the one in use.
    pub async fn hold_master_key(&self, key: &MasterKey, now: Moment) -> Result<(), SecretsError> {
        const SQL: &str = "INSERT INTO kb.master_key (slot, id, sealed_check, created_at) VALUES (1, $1, $2, $3) \
             ON CONFLICT (slot) DO NOTHING";
        const CHECK: &str = "SELECT id, sealed_check FROM kb.master_key";
        let held = key.fingerprint();
        let check = key.seal(Place::Check, CHECK_TEXT);
        rows_changed_on_each!(self, sqlx::query(SQL).bind(&held).bind(&check).bind(Stored(now)))?;
        let (sealed_with, check): (String, Vec<u8>) =
            on_each!(self, |db| sqlx::query_as(CHECK).fetch_one(db))?;
        if sealed_with != held {
            return Err(SecretsError::OtherKey { sealed_with, held });
        }
        key.open(Place::Check, &check).map(|_| ()).map_err(|_| SecretsError::CheckAltered)
    }

    /// Names only, in order.
    pub async fn secrets(&self, project: ProjectId) -> Result<Vec<SecretEntry>, StoreError> {
        const SQL: &str =
            "SELECT name, created_at, updated_at FROM kb.project_secrets WHERE project_id = $1 ORDER BY name";
        let rows: Vec<EntryRow> =
            on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        rows.into_iter().map(SecretEntry::try_from).collect()
    }

    /// Keeps a secret, replacing an earlier value.
    pub async fn put_secret(
        &self,
        key: &MasterKey,
        project: ProjectId,
        name: &SecretName,
        value: &SecretString,
        now: Moment,
    ) -> Result<SecretEntry, SecretsError> {
        const SQL: &str = "INSERT INTO kb.project_secrets (project_id, name, key_id, sealed, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (project_id, name) DO UPDATE \
             SET key_id = excluded.key_id, sealed = excluded.sealed, updated_at = excluded.updated_at \
             RETURNING name, created_at, updated_at";
        let held = key.fingerprint();
        let sealed = key.seal(Place::Secret(project, name), value.expose_secret().as_bytes());
        let row: Option<EntryRow> = on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let in_use =
                sqlx::query(HOLD_KEY).bind(&held).execute(&mut *transaction).await?.rows_affected() > 0;
            if !in_use {
                return Ok::<_, sqlx::Error>(None);
            }
            let row = sqlx::query_as(SQL)
                .bind(Stored(project.0))
                .bind(name.as_str())
                .bind(&held)
                .bind(&sealed)
                .bind(Stored(now))
                .fetch_one(&mut *transaction)
                .await?;
            transaction.commit().await?;
            Ok(Some(row))
        })?;
        match row {
            Some(row) => Ok(row.try_into()?),
            None => Err(self.other_key(held).await),
        }
    }

    /// The clear values of a project's secrets, for whoever starts or connects something that names them.
    pub async fn open_secrets(
        &self,
        key: &MasterKey,
        project: ProjectId,
    ) -> Result<Vec<(SecretName, SecretString)>, SecretsError> {
        const SQL: &str =
            "SELECT project_id, name, key_id, sealed FROM kb.project_secrets WHERE project_id = $1";
        let rows: Vec<SealedRow> =
            on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        rows.iter().map(|row| row.open(key)).collect()
    }

    /// Says whether it was there.
    pub async fn delete_secret(&self, project: ProjectId, name: &SecretName) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM kb.project_secrets WHERE project_id = $1 AND name = $2";
        Ok(rows_changed_on_each!(self, sqlx::query(SQL).bind(Stored(project.0)).bind(name.as_str()))? > 0)
    }

    /// Seals every secret and every login anew under another key, all or none. Says how many.
    pub async fn rotate_master_key(
        &self,
        old: &MasterKey,
        new: &MasterKey,
        now: Moment,
    ) -> Result<usize, SecretsError> {
        const SET_KEY: &str =
            "UPDATE kb.master_key SET id = $2, sealed_check = $3, created_at = $4 WHERE id = $1";
        const ALL: &str = "SELECT project_id, name, key_id, sealed FROM kb.project_secrets";
        const RESEAL: &str =
            "UPDATE kb.project_secrets SET key_id = $3, sealed = $4 WHERE project_id = $1 AND name = $2";
        let (held, next) = (old.fingerprint(), new.fingerprint());
        let check = new.seal(Place::Check, CHECK_TEXT);
        let resealed: Result<Option<usize>, SecretsError> = on_each!(self, ROTATION_DEADLINE, |db| async {
            let mut transaction = db.begin().await?;
            let set = sqlx::query(SET_KEY).bind(&held).bind(&next).bind(&check).bind(Stored(now));
            if set.execute(&mut *transaction).await?.rows_affected() == 0 {
                return Ok::<_, StoreError>(Ok(None));
            }
            let rows: Vec<SealedRow> = sqlx::query_as(ALL).fetch_all(&mut *transaction).await?;
            for row in &rows {
                let sealed = match row.resealed(old, new) {
                    Ok(sealed) => sealed,
                    Err(error) => return Ok(Err(error)),
                };
                let reseal =
                    sqlx::query(RESEAL).bind(row.project_id).bind(&row.name).bind(&next).bind(sealed);
                reseal.execute(&mut *transaction).await?;
            }
            let logins: Vec<SealedLogin> = sqlx::query_as(logins::ALL).fetch_all(&mut *transaction).await?;
            for login in &logins {
                let sealed = match login.resealed(old, new) {
                    Ok(sealed) => sealed,
                    Err(error) => return Ok(Err(error)),
                };
                let reseal = sqlx::query(logins::RESEAL).bind(login.server_id).bind(&next).bind(sealed);
                reseal.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            Ok(Ok(Some(rows.len() + logins.len())))
        })?;
        match resealed? {
            Some(count) => Ok(count),
            None => Err(self.other_key(held).await),
        }
    }

    pub(crate) async fn other_key(&self, held: String) -> SecretsError {
        match self.master_key_in_use().await {
            Ok(sealed_with) => SecretsError::OtherKey { sealed_with: sealed_with.unwrap_or_default(), held },
            Err(error) => error.into(),
        }
    }
}

impl TryFrom<EntryRow> for SecretEntry {
    type Error = StoreError;

    fn try_from(row: EntryRow) -> Result<Self, StoreError> {
        let name = row.name.try_into().map_err(StoreError::unreadable)?;
        Ok(Self { name, created_at: row.created_at.0, updated_at: row.updated_at.0 })
    }
}
