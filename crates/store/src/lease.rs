//! Who hosts: of several Cofers on one PostgreSQL, one runs the servers.
//!
//! The lease is an advisory lock of the database, held by a connection of its own: it ends with the process, however that
//! ends, and nobody has to clean up. SQLite is opened by one process, which always has it.

use sqlx::{ConnectOptions, Connection, PgConnection};

use crate::database::{ACQUIRE_DEADLINE, Pool, Store, within};
use crate::failure::StoreError;

/// Any number that nobody else takes for a lock in this database: `cofer` in ASCII.
const HOSTING: i64 = 0x63_6f_66_65_72;

/// The right to host, as long as [`Lease::is_held`].
#[derive(Debug)]
pub struct Lease {
    connection: Option<PgConnection>,
}

impl Store {
    /// The lease, if nobody else has it.
    pub async fn try_lease(&self) -> Result<Option<Lease>, StoreError> {
        const SQL: &str = "SELECT pg_try_advisory_lock($1)";
        let Pool::Postgres(pool) = &self.pool else { return Ok(Some(Lease { connection: None })) };
        let options = pool.connect_options();
        let (connection, taken) = within(ACQUIRE_DEADLINE, async {
            let mut connection = options.connect().await?;
            let taken: bool = sqlx::query_scalar(SQL).bind(HOSTING).fetch_one(&mut connection).await?;
            Ok::<_, sqlx::Error>((connection, taken))
        })
        .await?;
        Ok(taken.then_some(Lease { connection: Some(connection) }))
    }
}

impl Lease {
    /// Not where one process owns the database.
    pub fn can_be_lost(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether it is still ours. An answer that does not come in time is none.
    pub async fn is_held(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        within(ACQUIRE_DEADLINE, connection.ping()).await.is_ok()
    }
}
