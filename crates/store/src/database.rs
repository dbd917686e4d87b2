//! The pool, and the deadline on every statement.
//!
//! SQLite's file is *attached* under the name `kb` to an empty in-memory database, so that `kb.projects` is the
//! same table name there as on PostgreSQL, where `kb` is a schema. With `$1` for parameters, which both take,
//! one statement serves both; [`on_each!`] runs it on whichever is there.

use std::fmt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::failure::{OpenError, StoreError, is_damage};

/// No statement or transaction may take longer.
pub(crate) const STATEMENT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a request waits for a connection before it hears that the database is unavailable.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);
/// SQLite has one writer at a time; a second waits this long for its turn.
const SQLITE_BUSY_DEADLINE: Duration = Duration::from_secs(5);
const SQLITE_CONNECTIONS_MAX: u32 = 4;
const POSTGRES_CONNECTIONS_MAX: u32 = 16;

/// Runs the same query on whichever database this store has, within the deadline.
macro_rules! on_each {
    ($store:expr, |$db:ident| $query:expr) => {
        match &$store.pool {
            $crate::database::Pool::Sqlite($db) => $crate::database::within_deadline($query).await,
            $crate::database::Pool::Postgres($db) => $crate::database::within_deadline($query).await,
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
            return if path.is_empty() { Err(OpenError::UnknownUrl) } else { Ok(Self::Sqlite(path.into())) };
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

/// What a look at a database found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// No tables yet; the first start makes them.
    NotMade,
    /// Ours. Its secrets are sealed with the key of this fingerprint.
    Made { master_key: Option<String> },
}

pub(crate) async fn within_deadline<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    match tokio::time::timeout(STATEMENT_DEADLINE, work).await {
        Ok(outcome) => outcome.map_err(StoreError::from),
        Err(_elapsed) => Err(StoreError::TooSlow),
    }
}

impl Store {
    /// Connects, and brings the tables up to date.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        let store = Self::connect(url).await?;
        store.migrate(url).await?;
        Ok(store)
    }

    async fn connect(url: &DatabaseUrl) -> Result<Self, OpenError> {
        let pool = match url {
            DatabaseUrl::Sqlite(path) => open_sqlite(path).await.map(Pool::Sqlite),
            DatabaseUrl::Postgres(options) => open_postgres(options).await.map(Pool::Postgres),
        };
        pool.map(|pool| Self { pool }).map_err(|source| OpenError::failed(url, source))
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        rows_changed_on_each!(self, sqlx::query("SELECT 1")).map(|_| ())
    }

    /// Ends every connection, letting what runs finish. SQLite's log is folded into its file.
    pub async fn close(&self) {
        match &self.pool {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
        }
    }

    /// Looks at a database without changing it.
    pub async fn inspect(url: &DatabaseUrl) -> Result<Inspection, OpenError> {
        if let DatabaseUrl::Sqlite(path) = url
            && !path.exists()
        {
            return Ok(Inspection::NotMade);
        }
        let store = Self::connect(url).await?;
        let inspection = store.look(url).await;
        store.close().await;
        inspection
    }

    async fn look(&self, url: &DatabaseUrl) -> Result<Inspection, OpenError> {
        const SQL: &str = "SELECT MAX(version) FROM kb.schema_migrations";
        let newest: Result<Option<i64>, StoreError> =
            on_each!(self, |db| sqlx::query_scalar(SQL).fetch_one(db));
        match newest {
            Ok(Some(version)) if version > newest_known() => {
                Err(OpenError::Newer { url: url.clone(), version })
            }
            Ok(Some(_)) => {
                Ok(Inspection::Made { master_key: self.master_key_in_use().await.unwrap_or_default() })
            }
            Err(StoreError::Fault { source }) if is_damage(&source) => Err(OpenError::failed(url, source)),
            Err(StoreError::Unavailable { source }) => Err(OpenError::failed(url, source)),
            _ => Ok(Inspection::NotMade),
        }
    }

    async fn migrate(&self, url: &DatabaseUrl) -> Result<(), OpenError> {
        let outcome = match &self.pool {
            Pool::Sqlite(pool) => in_kb(sqlx::migrate!("migrations/sqlite")).run(pool).await,
            Pool::Postgres(pool) => in_kb(sqlx::migrate!("migrations/postgres")).run(pool).await,
        };
        outcome.map_err(|source| match (source, url) {
            (MigrateError::VersionMissing(version), _) => OpenError::Newer { url: url.clone(), version },
            (MigrateError::Execute(source), _) if is_damage(&source) => OpenError::failed(url, source),
            (source, _) => OpenError::Migration { url: url.clone(), source: Box::new(source) },
        })
    }
}

/// Keeps the migrations' own table beside ours.
fn in_kb(mut migrator: Migrator) -> Migrator {
    migrator.create_schema("kb");
    migrator.dangerous_set_table_name("kb.schema_migrations");
    migrator
}

async fn open_sqlite(path: &Path) -> sqlx::Result<SqlitePool> {
    let file = path.to_string_lossy().into_owned();
    let options = SqliteConnectOptions::new()
        .create_if_missing(true)
        .foreign_keys(true)
        .busy_timeout(SQLITE_BUSY_DEADLINE);
    make_for_this_user_alone(path)?;
    // By hand first: a pool retries what fails, and would only tell that time ran out.
    let mut first = options.connect().await?;
    attach_kb(&mut first, &file).await?;
    first.close().await?;
    SqlitePoolOptions::new()
        .max_connections(SQLITE_CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            let file = file.clone();
            Box::pin(async move { attach_kb(connection, &file).await })
        })
        .connect_with(options)
        .await
}

/// SQLite's companion files take their mode from this one.
fn make_for_this_user_alone(path: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(|_| ())
}

async fn attach_kb(connection: &mut SqliteConnection, file: &str) -> sqlx::Result<()> {
    sqlx::query("ATTACH DATABASE $1 AS kb").bind(file).execute(&mut *connection).await?;
    // Readers do not wait for the writer. What was committed survives the death of this process; only a power cut may
    // lose the newest transactions, never the file.
    sqlx::query("PRAGMA kb.journal_mode = WAL").execute(&mut *connection).await?;
    sqlx::query("PRAGMA kb.synchronous = NORMAL").execute(&mut *connection).await?;
    Ok(())
}

async fn open_postgres(options: &PgConnectOptions) -> sqlx::Result<PgPool> {
    let options = options.clone().application_name("cofer");
    // By hand first, for the same reason.
    let first = tokio::time::timeout(ACQUIRE_DEADLINE, options.connect()).await;
    first.map_err(|_elapsed| sqlx::Error::PoolTimedOut)??.close().await?;
    PgPoolOptions::new()
        .max_connections(POSTGRES_CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .connect_with(options)
        .await
}

/// The newest migration that this Cofer has.
fn newest_known() -> i64 {
    sqlx::migrate!("migrations/sqlite").iter().map(|migration| migration.version).max().unwrap_or_default()
}
