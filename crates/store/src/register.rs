//! The register of servers: whoever is hosted or external has a row here, and with it a name that is used once in a project and
//! a place in the order of registration.
//!
//! Its rows are written and removed in the transactions of `hosted`, `external` and `products`.

use cofer_model::{ProjectId, ServerId, ServerName};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each};
use crate::failure::StoreError;

pub(crate) const REGISTER: &str =
    "INSERT INTO kb.server_register (server_id, project_id, name, kind) VALUES ($1, $2, $3, $4)";
/// Its tools go with it.
pub(crate) const STRIKE: &str = "DELETE FROM kb.server_register WHERE server_id = $1";

/// Whose table has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Hosted,
    External,
}

impl ServerKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hosted => "hosted",
            Self::External => "external",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "hosted" => Ok(Self::Hosted),
            "external" => Ok(Self::External),
            _ => Err(StoreError::unreadable(UnknownKind)),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a server is neither hosted nor external")]
struct UnknownKind;

/// One server, whichever kind it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredServer {
    /// Grows with every registration; none is used twice.
    pub position: i64,
    pub id: ServerId,
    pub name: ServerName,
    pub kind: ServerKind,
}

#[derive(sqlx::FromRow)]
struct Row {
    position: i64,
    server_id: Stored<Uuid>,
    name: String,
    kind: String,
}

impl Store {
    /// All servers of a project, in the order of registration.
    pub async fn registered_servers(&self, project: ProjectId) -> Result<Vec<RegisteredServer>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.server_register WHERE project_id = $1 ORDER BY position";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        let server = |row: Row| {
            Ok(RegisteredServer {
                position: row.position,
                id: ServerId(row.server_id.0),
                name: row.name.try_into().map_err(StoreError::unreadable)?,
                kind: ServerKind::parse(&row.kind)?,
            })
        };
        rows.into_iter().map(server).collect()
    }
}
