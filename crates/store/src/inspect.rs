//! A look at a database that changes nothing, for `cofer doctor`.

use crate::database::{Access, DatabaseUrl, Store, on_each};
use crate::failure::{OpenError, StoreError, is_missing_table};

/// What a look at a database found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// No tables of ours yet; the first start makes them.
    NotMade,
    /// Ours. Its secrets are sealed with the key of this fingerprint.
    Made { master_key: Option<String> },
}

impl Store {
    pub async fn inspect(url: &DatabaseUrl) -> Result<Inspection, OpenError> {
        if let DatabaseUrl::Sqlite(path) = url
            && !path.exists()
        {
            return Ok(Inspection::NotMade);
        }
        let store = Self::connect(url, Access::Look).await?;
        let looked = store.look(url).await;
        store.close().await;
        looked
    }

    async fn look(&self, url: &DatabaseUrl) -> Result<Inspection, OpenError> {
        const SQL: &str = "SELECT MAX(version) FROM kb.schema_migrations";
        let newest: Result<Option<i64>, StoreError> =
            on_each!(self, |db| sqlx::query_scalar(SQL).fetch_one(db));
        let unexpected = |error| match error {
            StoreError::Fault { source } | StoreError::Unavailable { source } => {
                OpenError::failed(url, source)
            }
            _ => OpenError::failed(url, sqlx::Error::PoolTimedOut),
        };
        match newest {
            Err(StoreError::Fault { source }) if is_missing_table(&source) => Ok(Inspection::NotMade),
            Err(error) => Err(unexpected(error)),
            Ok(None) => Ok(Inspection::NotMade),
            Ok(Some(version)) if version > newest_known() => {
                Err(OpenError::Newer { url: url.clone(), version })
            }
            Ok(Some(_)) => {
                Ok(Inspection::Made { master_key: self.master_key_in_use().await.map_err(unexpected)? })
            }
        }
    }
}

/// The newest migration that this Cofer has.
fn newest_known() -> i64 {
    sqlx::migrate!("migrations/sqlite").iter().map(|migration| migration.version).max().unwrap_or_default()
}
