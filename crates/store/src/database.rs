//! The pool, and the deadline on every statement.
//!
//! `kb.projects` is the same table name on both databases (see [`sqlite`]), and both take `$1` for parameters, so one
//! statement serves both; [`on_each!`] runs it on whichever is there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::SqlitePool;
use sqlx::{ConnectOptions, Connection};

use crate::failure::{OpenError, StoreError, is_damage, is_outage};
use crate::sqlite;

/// No statement or transaction may take longer.
pub(crate) const STATEMENT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a request waits for a connection before it hears that the database is unavailable.
pub(crate) const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
const POSTGRES_CONNECTIONS_MAX: u32 = 16;

/// Runs the same query on whichever database this store has, within the deadline for statements or another.
macro_rules! on_each {
    ($store:expr, |$db:ident| $query:expr) => {
        $crate::database::on_each!($store, $crate::database::STATEMENT_DEADLINE, |$db| $query)
    };
    ($store:expr, $deadline:expr, |$db:ident| $query:expr) => {
        match ($store.check_file(), &$store.pool) {
            (Err(error), _) => Err(error),
            (Ok(()), $crate::database::Pool::Sqlite($db)) => {
                $crate::database::within($deadline, $query).await
            }
            (Ok(()), $crate::database::Pool::Postgres($db)) => {
                $crate::database::within($deadline, $query).await
            }
        }
    };
}
pub(crate) use on_each;

/// The same for a statement that changes rows and gives none back: says how many it changed.
macro_rules! rows_changed_on_each {
    ($store:expr, $query:expr) => {
        $crate::database::on_each!($store, |db| async {
            $query.execute(db).await.map(|done| done.rows_affected())
        })
    };
}
pub(crate) use rows_changed_on_each;

/// Everything that survives a restart. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: Pool,
    /// SQLite's file.
    pub(crate) file: Option<Arc<sqlite::File>>,
    /// For what is written between two steps of a run: see [`Store::quick`].
    pub(crate) quick: Option<SqlitePool>,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Serve,
    /// Changes nothing, not even how the file is kept.
    Look,
}

#[derive(Clone, Debug)]
pub(crate) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// Where the database is. Prints without the password.
#[derive(Clone)]
pub enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

impl DatabaseUrl {
    /// `sqlite:PATH`, or anything that PostgreSQL takes as an address.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(OpenError::UnknownUrl),
                ":memory:" => Err(OpenError::InMemory),
                path => Ok(Self::Sqlite(path.into())),
            };
        }
        if text.starts_with("postgres:") || text.starts_with("postgresql:") {
            let options = text.parse().map_err(|source| OpenError::BadPostgresUrl { source })?;
            return Ok(Self::Postgres(Box::new(options)));
        }
        Err(OpenError::UnknownUrl)
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(at) => {
                let database = at.get_database().unwrap_or("postgres");
                match at.get_socket() {
                    Some(socket) => write!(f, "postgres:{database} at {}", socket.display()),
                    None => write!(f, "postgres://{}:{}/{database}", at.get_host(), at.get_port()),
                }
            }
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) async fn within<T, E>(
    deadline: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    match tokio::time::timeout(deadline, work).await {
        Ok(outcome) => outcome.map_err(StoreError::from),
        Err(_elapsed) => Err(StoreError::TooSlow { deadline }),
    }
}

impl Store {
    /// Connects, and brings the tables up to date.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        let store = Self::connect(url, Access::Serve).await?;
        store.migrate(url).await?;
        Ok(store)
    }

    pub(crate) async fn connect(url: &DatabaseUrl, access: Access) -> Result<Self, OpenError> {
        let connected = match url {
            DatabaseUrl::Sqlite(path) => sqlite::open(path, access).await,
            DatabaseUrl::Postgres(options) => open_postgres(options).await,
        };
        connected.map_err(|source| OpenError::failed(url, source))
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        rows_changed_on_each!(self, sqlx::query("SELECT 1")).map(|_| ())
    }

    /// Ends every connection, letting what runs finish if it does so soon. SQLite's log is folded into its file.
    pub async fn close(&self) {
        let closing = async {
            if let Some(quick) = &self.quick {
                quick.close().await;
            }
            match &self.pool {
                Pool::Sqlite(pool) => pool.close().await,
                Pool::Postgres(pool) => pool.close().await,
            }
        };
        if tokio::time::timeout(CLOSE_DEADLINE, closing).await.is_err() {
            tracing::warn!("a statement was still under way when the database was closed");
        }
    }

    /// The same store for writers who cannot wait for the disk. What they write survives the end of the process, however that comes, at once,
    /// and a power cut a moment later: [`Store::sync_soon`] sees to that.
    pub(crate) fn quick(&self) -> Self {
        match &self.quick {
            Some(quick) => Self { pool: Pool::Sqlite(quick.clone()), ..self.clone() },
            None => self.clone(),
        }
    }

    pub(crate) fn sync_soon(&self) {
        if let Some(file) = &self.file {
            file.sync_soon();
        }
    }

    /// Whether SQLite's file is still the one that was opened: what is written to another is lost.
    pub(crate) fn check_file(&self) -> Result<(), StoreError> {
        let check = self.file.as_ref().map_or(Ok(()), |file| file.check());
        check.map_err(|source| StoreError::Unavailable { source: source.into() })
    }

    async fn migrate(&self, url: &DatabaseUrl) -> Result<(), OpenError> {
        let outcome = match &self.pool {
            Pool::Sqlite(pool) => in_kb(sqlx::migrate!("migrations/sqlite")).run(pool).await,
            Pool::Postgres(pool) => in_kb(sqlx::migrate!("migrations/postgres")).run(pool).await,
        };
        outcome.map_err(|error| match error {
            MigrateError::VersionMissing(version) => OpenError::Newer { url: url.clone(), version },
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _)
                if is_damage(&source) || is_outage(&source) =>
            {
                OpenError::failed(url, source)
            }
            error => OpenError::Migration { url: url.clone(), source: Box::new(error) },
        })
    }
}

/// Keeps the migrations' own table beside ours.
fn in_kb(mut migrator: Migrator) -> Migrator {
    migrator.create_schema("kb");
    migrator.dangerous_set_table_name("kb.schema_migrations");
    migrator
}

async fn open_postgres(options: &PgConnectOptions) -> sqlx::Result<Store> {
    let options = options.clone().application_name("cofer");
    // By hand first: a pool retries what fails, and would only tell that time ran out.
    let first = tokio::time::timeout(ACQUIRE_DEADLINE, options.connect()).await;
    first.map_err(|_elapsed| sqlx::Error::PoolTimedOut)??.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(POSTGRES_CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .connect_with(options)
        .await?;
    Ok(Store { pool: Pool::Postgres(pool), file: None, quick: None })
}
