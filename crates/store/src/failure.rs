//! What a database's failures mean: to whoever starts Cofer ([`OpenError`]) and to whoever asks it something
//! ([`StoreError`]). Codes of SQLite and PostgreSQL are known here only.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use cofer_model::Kind;
use sqlx::migrate::MigrateError;

use crate::database::DatabaseUrl;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the database address is neither `sqlite:PATH` nor `postgres://USER:PASSWORD@HOST:PORT/DATABASE`"
    )]
    UnknownUrl,
    #[error("a database in memory would forget everything; give `sqlite:PATH`")]
    InMemory,
    #[error("the PostgreSQL address cannot be read")]
    BadPostgresUrl {
        #[source]
        source: sqlx::Error,
    },
    #[error("the database {url} cannot be reached; start it, or correct `--database`")]
    Unreachable {
        url: DatabaseUrl,
        #[source]
        source: sqlx::Error,
    },
    #[error(
        "the database {url} does not let us in; correct the user, password or database name in `--database`"
    )]
    Refused {
        url: DatabaseUrl,
        #[source]
        source: sqlx::Error,
    },
    #[error("{} is not a usable SQLite database; restore it from a backup, or move it away to start afresh", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("{} cannot be opened; check that the directory exists and that this user may write there", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error(
        "the database {url} was made by a newer Cofer (it has migration {version}); run that version, or restore a backup from before"
    )]
    Newer { url: DatabaseUrl, version: i64 },
    #[error("the tables of {url} could not be brought up to date")]
    Migration {
        url: DatabaseUrl,
        #[source]
        source: Box<MigrateError>,
    },
}

impl OpenError {
    pub(crate) fn failed(url: &DatabaseUrl, source: sqlx::Error) -> Self {
        match url.clone() {
            DatabaseUrl::Sqlite(path) if is_damage(&source) => Self::Damaged { path, source },
            DatabaseUrl::Sqlite(path) => Self::File { path, source },
            url @ DatabaseUrl::Postgres(_) if is_outage(&source) => Self::Unreachable { url, source },
            url @ DatabaseUrl::Postgres(_) => Self::Refused { url, source },
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::UnknownUrl | Self::InMemory | Self::BadPostgresUrl { .. } => Kind::Invalid,
            Self::Unreachable { .. } => Kind::Unavailable,
            Self::Refused { .. } => Kind::Forbidden,
            Self::Damaged { .. } | Self::File { .. } | Self::Newer { .. } | Self::Migration { .. } => {
                Kind::Internal
            }
        }
    }
}

/// Why an operation on the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("that name is taken")]
    Taken,
    #[error("what it belongs to was deleted meanwhile")]
    OwnerGone,
    #[error("the database does not answer")]
    Unavailable {
        #[source]
        source: sqlx::Error,
    },
    #[error("the database did not answer within {deadline:?}")]
    TooSlow { deadline: Duration },
    #[error("the database refused a statement")]
    Fault {
        #[source]
        source: sqlx::Error,
    },
    #[error("a row of the database cannot be read")]
    Unreadable {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    pub(crate) fn unreadable(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Unreadable { source: Box::new(source) }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Taken => Kind::Conflict,
            Self::OwnerGone => Kind::NotFound,
            Self::Unavailable { .. } | Self::TooSlow { .. } => Kind::Unavailable,
            Self::Fault { .. } | Self::Unreadable { .. } => Kind::Internal,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(source: sqlx::Error) -> Self {
        match &source {
            sqlx::Error::Database(error) if error.is_unique_violation() => Self::Taken,
            sqlx::Error::Database(error) if error.is_foreign_key_violation() => Self::OwnerGone,
            _ if is_outage(&source) => Self::Unavailable { source },
            _ => Self::Fault { source },
        }
    }
}

/// Failures that pass: the server is away, restarting or full. All else is a fault of ours or of the data.
pub(crate) fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        // A connection that was cut in the middle of a message reads as a broken protocol.
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_outage_code(&code)),
        _ => false,
    }
}

/// PostgreSQL: connection exceptions, transactions that got in each other's way, no resources, operator intervention. SQLite: busy, locked, read-only, I/O
/// error, full, cannot open (primary code in the low byte).
fn is_outage_code(code: &str) -> bool {
    let sqlite_primary = code.parse::<u32>().ok().filter(|_| code.len() < 5).map(|code| code & 0xff);
    match sqlite_primary {
        Some(primary) => matches!(primary, 5 | 6 | 8 | 10 | 13 | 14),
        None => ["08", "40", "53", "57P"].iter().any(|class| code.starts_with(class)),
    }
}

/// SQLite: the file is malformed (11) or not a database (26).
pub(crate) fn is_damage(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| matches!(code & 0xff, 11 | 26))
}

/// The table is not there: SQLite's plain error (1), PostgreSQL's undefined table or schema.
pub(crate) fn is_missing_table(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["1", "42P01", "3F000"].contains(&&*code))
}

/// PostgreSQL keeps no NUL in a text, and what servers say may have one.
pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.as_bytes().contains(&0) { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}
