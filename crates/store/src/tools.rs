//! The tools that servers listed, kept to the letter, so that a list can be given before anybody is connected.
//!
//! A server is hosted or external; both are in the register, and their tools go when they do.

use std::collections::BTreeMap;

use cofer_model::{ProjectId, ServerId};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::{StoreError, without_nul};

/// A tool as its server listed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTool {
    pub name: String,
    /// Its JSON.
    pub tool: String,
}

/// A tool as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedTool {
    pub server_id: ServerId,
    pub name: String,
    pub enabled: bool,
    /// Its JSON, to the letter.
    pub tool: String,
}

#[derive(sqlx::FromRow)]
struct Row {
    server_id: Stored<Uuid>,
    name: String,
    enabled: bool,
    tool: String,
}

impl From<Row> for CachedTool {
    fn from(row: Row) -> Self {
        let Row { server_id, name, enabled, tool } = row;
        Self { server_id: ServerId(server_id.0), name, enabled, tool }
    }
}

impl Store {
    /// What a server lists now, in its order. A tool of a name that was switched off stays so; of two of one name, the later
    /// counts. Says whether the server is still registered.
    pub async fn replace_tools(&self, server: ServerId, tools: &[ListedTool]) -> Result<bool, StoreError> {
        /// Held until the end, so that two lists do not mix.
        const HOLD: &str = "UPDATE kb.server_register SET server_id = server_id WHERE server_id = $1";
        const OFF: &str = "SELECT name FROM kb.project_mcp_tools WHERE server_id = $1 AND NOT enabled";
        const CLEAR: &str = "DELETE FROM kb.project_mcp_tools WHERE server_id = $1";
        const ADD: &str = "INSERT INTO kb.project_mcp_tools (server_id, position, name, enabled, tool) \
             VALUES ($1, $2, $3, $4, $5)";
        let listed = by_name(tools);
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let held = sqlx::query(HOLD).bind(Stored(server.0)).execute(&mut *transaction).await?;
            if held.rows_affected() == 0 {
                return Ok(false);
            }
            let off: Vec<String> =
                sqlx::query_scalar(OFF).bind(Stored(server.0)).fetch_all(&mut *transaction).await?;
            sqlx::query(CLEAR).bind(Stored(server.0)).execute(&mut *transaction).await?;
            for (name, (position, tool)) in &listed {
                let add = sqlx::query(ADD)
                    .bind(Stored(server.0))
                    .bind(position)
                    .bind(name)
                    .bind(!off.contains(name))
                    .bind(tool);
                add.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            Ok::<_, sqlx::Error>(true)
        })
    }

    /// All tools of a project: servers in the order of registration, the tools of each in its own.
    pub async fn tools_of(&self, project: ProjectId) -> Result<Vec<CachedTool>, StoreError> {
        const SQL: &str = "SELECT tool.* FROM kb.project_mcp_tools AS tool \
             JOIN kb.server_register AS register ON register.server_id = tool.server_id \
             WHERE register.project_id = $1 ORDER BY register.position, tool.position";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        Ok(rows.into_iter().map(CachedTool::from).collect())
    }

    /// The tools of one server, in its order.
    pub async fn tools_of_server(&self, server: ServerId) -> Result<Vec<CachedTool>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.project_mcp_tools WHERE server_id = $1 ORDER BY position";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(server.0)).fetch_all(db))?;
        Ok(rows.into_iter().map(CachedTool::from).collect())
    }

    /// How many tools each server of a project has; those without any are not named.
    pub async fn tool_counts(&self, project: ProjectId) -> Result<BTreeMap<ServerId, u64>, StoreError> {
        const SQL: &str = "SELECT tool.server_id, COUNT(*) FROM kb.project_mcp_tools AS tool \
             JOIN kb.server_register AS register ON register.server_id = tool.server_id \
             WHERE register.project_id = $1 GROUP BY tool.server_id";
        let rows: Vec<(Stored<Uuid>, i64)> =
            on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        let count = |(id, count): (Stored<Uuid>, i64)| (ServerId(id.0), u64::try_from(count).unwrap_or(0));
        Ok(rows.into_iter().map(count).collect())
    }

    /// Switches a tool on or off. Says whether the server has it.
    pub async fn set_tool_enabled(
        &self,
        server: ServerId,
        name: &str,
        enabled: bool,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE kb.project_mcp_tools SET enabled = $3 WHERE server_id = $1 AND name = $2";
        let name = without_nul(name);
        let changed =
            rows_changed_on_each!(self, sqlx::query(SQL).bind(Stored(server.0)).bind(&name).bind(enabled))?;
        Ok(changed > 0)
    }
}

/// Each name once, with its place in the list.
fn by_name(tools: &[ListedTool]) -> BTreeMap<String, (i64, String)> {
    let placed = (0_i64..).zip(tools);
    placed
        .map(|(at, tool)| (without_nul(&tool.name).into_owned(), (at, without_nul(&tool.tool).into_owned())))
        .collect()
}
