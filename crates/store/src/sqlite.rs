//! SQLite's file, and how it is opened.
//!
//! The file is *attached* under the name `kb` to an empty in-memory database, so that `kb.projects` is the same table name
//! as on PostgreSQL, where `kb` is a schema. It is made once, for this user alone, and never again by a later connection:
//! a file that was taken away is an outage, not a new database.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::database::{ACQUIRE_DEADLINE, Access, Pool, Store};

/// There is one writer at a time; a second waits this long for its turn.
const BUSY_DEADLINE: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 4;

pub(crate) async fn open(path: &Path, access: Access) -> sqlx::Result<Store> {
    if access == Access::Serve {
        make_for_this_user_alone(path)?;
    }
    let options = SqliteConnectOptions::new().foreign_keys(true).busy_timeout(BUSY_DEADLINE);
    // By hand first: a pool retries what fails, and would only tell that time ran out.
    let mut first = options.connect().await?;
    attach_kb(&mut first, path, access).await?;
    first.close().await?;
    let file = Arc::new(File::at(path)?);
    let attached = path.to_owned();
    let pool = pool_options(CONNECTIONS_MAX)
        .after_connect(move |connection, _| {
            let path = attached.clone();
            Box::pin(async move { attach_kb(connection, &path, access).await })
        })
        .connect_with(options.clone())
        .await?;
    let attached = path.to_owned();
    let quick = pool_options(1).after_connect(move |connection, _| {
        let path = attached.clone();
        Box::pin(async move {
            attach_kb(connection, &path, access).await?;
            sqlx::query("PRAGMA kb.synchronous = NORMAL").execute(connection).await.map(drop)
        })
    });
    // Made when it is first wanted; who only looks writes nothing.
    let quick = (access == Access::Serve).then(|| quick.connect_lazy_with(options));
    Ok(Store { pool: Pool::Sqlite(pool), file: Some(file), quick })
}

fn pool_options(connections_max: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .test_before_acquire(false)
}

/// SQLite's companion files take their mode from this one.
fn make_for_this_user_alone(path: &Path) -> io::Result<()> {
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(|_| ())
}

async fn attach_kb(connection: &mut SqliteConnection, path: &Path, access: Access) -> sqlx::Result<()> {
    let mode = match access {
        Access::Serve => "mode=rw",
        // Without a log there is nobody writing, and then SQLite need not make one to read.
        Access::Look if log_of(path).exists() => "mode=ro",
        Access::Look => "mode=ro&immutable=1",
    };
    // With an empty host, so that a path that begins with two slashes is a path.
    let host = if path.is_absolute() { "//" } else { "" };
    let address = format!("file:{host}{}?{mode}", escaped(path));
    sqlx::query("ATTACH DATABASE $1 AS kb").bind(address).execute(&mut *connection).await?;
    if access == Access::Serve {
        // Readers do not wait for the writer, and what was answered survives a power cut.
        sqlx::query("PRAGMA kb.journal_mode = WAL").execute(&mut *connection).await?;
        sqlx::query("PRAGMA kb.synchronous = FULL").execute(&mut *connection).await?;
    }
    Ok(())
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// As a part of a `file:` address.
fn escaped(path: &Path) -> String {
    use std::fmt::Write;
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut escaped, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                escaped.push((*byte).into());
            }
            byte => _ = write!(escaped, "%{byte:02X}"),
        }
        escaped
    })
}

/// Which file was opened, to notice when another one, or none, is in its place.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    identity: (u64, u64),
    /// The log is about to be synced to the disk.
    sync_is_due: AtomicBool,
}

impl File {
    fn at(path: &Path) -> io::Result<Self> {
        let about = std::fs::metadata(path)?;
        let identity = (about.dev(), about.ino());
        Ok(Self { path: path.to_owned(), identity, sync_is_due: false.into() })
    }

    /// Has what was written quickly brought to the disk, beside everything else: syncing the log by hand holds nobody up, while SQLite
    /// would keep the next writer waiting.
    pub(crate) fn sync_soon(self: &Arc<Self>) {
        if self.sync_is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let file = self.clone();
        tokio::task::spawn_blocking(move || {
            file.sync_is_due.store(false, Ordering::Relaxed);
            // Without a log there is nothing to sync; what cannot be synced is told by the next write that must be.
            let _ = std::fs::File::open(log_of(&file.path)).and_then(|log| log.sync_data());
        });
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        let now = Self::at(&self.path)?;
        if now.identity == self.identity {
            return Ok(());
        }
        Err(io::Error::other("the database file was replaced while it was in use; restart Cofer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_can_be_taken_for_options() {
        assert_eq!(escaped(Path::new("/data/a b?mode=memory#x%20")), "/data/a%20b%3Fmode%3Dmemory%23x%2520");
    }
}
