//! Hosted servers: what was asked for, what was last known, and what happened.
//!
//! What a person asked for (`config`, `wanted`) and what was seen (`status`, `runs`, `sandbox`, …) are columns of one row and are
//! written by different statements, so that neither overwrites the other.

use std::collections::{BTreeMap, BTreeSet};

use cofer_model::{
    HostedConfig, HostedEvent, HostedStatus, LastExit, Moment, ProjectId, ProjectName, ProviderName,
    ServerId, ServerName, Wanted,
};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::{StoreError, without_nul};
use crate::register::{REGISTER, STRIKE, ServerKind};

/// How many events of a server are kept.
const EVENTS_KEPT: i64 = 1000;

/// One hosted server.
#[derive(Clone, Debug, PartialEq)]
pub struct HostedServer {
    pub id: ServerId,
    pub project_id: ProjectId,
    pub project: ProjectName,
    /// Later registrations have higher ones, external servers included.
    pub position: i64,
    pub name: ServerName,
    pub config: HostedConfig,
    pub wanted: Wanted,
    /// Counts the changes of `config`.
    pub revision: i64,
    /// The provider that it was asked to run with, or did last: it stays there.
    pub placed: Option<ProviderName>,
    pub created_at: Moment,
    pub last_used_at: Option<Moment>,
    pub seen: Seen,
}

/// What was last known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub status: HostedStatus,
    pub runs: i64,
    pub restart_count: i64,
    pub last_crash: Option<Moment>,
    pub last_exit: Option<LastExit>,
    /// How its sandbox is found again.
    pub sandbox: Option<Value>,
}

#[derive(Clone, Debug)]
pub struct NewHostedServer {
    pub project_id: ProjectId,
    pub name: ServerName,
    pub config: HostedConfig,
}

/// One event with its place in the history.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEvent {
    pub id: Uuid,
    pub event: HostedEvent,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Stored<Uuid>,
    project_name: String,
    position: i64,
    name: String,
    config: Json<HostedConfig>,
    wanted: String,
    revision: i64,
    provider: Option<String>,
    created_at: Stored<Moment>,
    last_used_at: Option<Stored<Moment>>,
    status: String,
    runs: i64,
    restart_count: i64,
    last_crash: Option<Stored<Moment>>,
    last_exit: Option<Json<LastExit>>,
    sandbox: Option<Json<Value>>,
}

impl TryFrom<Row> for HostedServer {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: ServerId(row.id.0),
            project_id: ProjectId(row.project_id.0),
            project: row.project_name.try_into().map_err(StoreError::unreadable)?,
            position: row.position,
            name: row.name.try_into().map_err(StoreError::unreadable)?,
            config: row.config.0,
            wanted: row.wanted.parse().map_err(StoreError::unreadable)?,
            revision: row.revision,
            placed: row.provider.map(|name| name.parse()).transpose().map_err(StoreError::unreadable)?,
            created_at: row.created_at.0,
            last_used_at: row.last_used_at.map(Stored::into_inner),
            seen: Seen {
                status: row.status.parse().map_err(StoreError::unreadable)?,
                runs: row.runs,
                restart_count: row.restart_count,
                last_crash: row.last_crash.map(Stored::into_inner),
                last_exit: row.last_exit.map(|exit| exit.0),
                sandbox: row.sandbox.map(|sandbox| sandbox.0),
            },
        })
    }
}

#[derive(sqlx::FromRow)]
struct EventRow {
    id: Stored<Uuid>,
    at: Stored<Moment>,
    kind: String,
    message: String,
    details: Json<Value>,
}

impl TryFrom<EventRow> for RecordedEvent {
    type Error = StoreError;

    fn try_from(row: EventRow) -> Result<Self, StoreError> {
        let kind = row.kind.parse().map_err(StoreError::unreadable)?;
        let event = HostedEvent { at: row.at.0, kind, message: row.message, details: row.details.0 };
        Ok(Self { id: row.id.0, event })
    }
}

impl Store {
    /// Which Cofer this is: decided once for a database, by whoever opens it first.
    pub async fn instance(&self, now: Moment) -> Result<String, StoreError> {
        const MAKE: &str =
            "INSERT INTO kb.instance (slot, id, created_at) VALUES (1, $1, $2) ON CONFLICT (slot) DO NOTHING";
        const READ: &str = "SELECT id FROM kb.instance";
        let id = Uuid::new_v4().simple().to_string();
        rows_changed_on_each!(self, sqlx::query(MAKE).bind(&id).bind(Stored(now)))?;
        on_each!(self, |db| sqlx::query_scalar(READ).fetch_one(db))
    }

    /// Every hosted server, in the order of registration.
    pub async fn hosted_servers(&self) -> Result<Vec<HostedServer>, StoreError> {
        const SQL: &str = "SELECT workspace.*, project.name AS project_name, register.position \
             FROM kb.agent_workspaces AS workspace \
             JOIN kb.projects AS project ON project.id = workspace.project_id \
             JOIN kb.server_register AS register ON register.server_id = workspace.id \
             WHERE container_type = 'mcp_server' ORDER BY register.position";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).fetch_all(db))?;
        rows.into_iter().map(HostedServer::try_from).collect()
    }

    /// Registers it behind all others. [`StoreError::Taken`] when a server of its project has the name.
    pub async fn create_hosted_server(
        &self,
        new: &NewHostedServer,
        now: Moment,
    ) -> Result<ServerId, StoreError> {
        const SQL: &str = "INSERT INTO kb.agent_workspaces \
             (id, project_id, container_type, name, provider, status, config, wanted, created_at, updated_at) \
             VALUES ($1, $2, 'mcp_server', $3, $4, $5, $6, $7, $8, $8)";
        let id = ServerId::generate();
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let register = sqlx::query(REGISTER)
                .bind(Stored(id.0))
                .bind(Stored(new.project_id.0))
                .bind(new.name.as_str())
                .bind(ServerKind::Hosted.as_str());
            register.execute(&mut *transaction).await?;
            let insert = sqlx::query(SQL)
                .bind(Stored(id.0))
                .bind(Stored(new.project_id.0))
                .bind(new.name.as_str())
                .bind(new.config.provider.map(ProviderName::as_str))
                .bind(HostedStatus::Creating.as_str())
                .bind(Json(&new.config))
                .bind(Wanted::Running.as_str())
                .bind(Stored(now));
            insert.execute(&mut *transaction).await?;
            transaction.commit().await
        })?;
        Ok(id)
    }

    /// Another configuration, to be run with `placed`. Says whether the server was there.
    pub async fn change_hosted_config(
        &self,
        id: ServerId,
        config: &HostedConfig,
        placed: Option<ProviderName>,
        now: Moment,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE kb.agent_workspaces SET config = $2, provider = $3, \
             revision = revision + 1, updated_at = $4 WHERE id = $1";
        let provider = placed.map(ProviderName::as_str);
        let changed = rows_changed_on_each!(
            self,
            sqlx::query(SQL).bind(Stored(id.0)).bind(Json(config)).bind(provider).bind(Stored(now))
        )?;
        Ok(changed > 0)
    }

    /// What a person wants. Says whether the server was there.
    pub async fn set_hosted_wanted(
        &self,
        id: ServerId,
        wanted: Wanted,
        now: Moment,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE kb.agent_workspaces SET wanted = $2, updated_at = $3 WHERE id = $1";
        let changed = rows_changed_on_each!(
            self,
            sqlx::query(SQL).bind(Stored(id.0)).bind(wanted.as_str()).bind(Stored(now))
        )?;
        Ok(changed > 0)
    }

    /// Writes down what was seen. A server that is gone is no error.
    pub async fn note_hosted_seen(
        &self,
        id: ServerId,
        provider: Option<ProviderName>,
        seen: &Seen,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kb.agent_workspaces SET status = $2, runs = $3, restart_count = $4, last_crash = $5, \
             last_exit = $6, sandbox = $7, provider = COALESCE($8, provider) WHERE id = $1";
        rows_changed_on_each!(
            self,
            sqlx::query(SQL)
                .bind(Stored(id.0))
                .bind(seen.status.as_str())
                .bind(seen.runs)
                .bind(seen.restart_count)
                .bind(seen.last_crash.map(Stored))
                .bind(seen.last_exit.clone().map(|exit| Json(LastExit {
                    stderr_tail: without_nul(&exit.stderr_tail).into_owned(),
                    ..exit
                })))
                .bind(seen.sandbox.as_ref().map(Json))
                .bind(provider.map(ProviderName::as_str))
        )?;
        Ok(())
    }

    /// When servers were last called.
    pub async fn note_hosted_uses(&self, uses: &BTreeMap<ServerId, Moment>) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kb.agent_workspaces SET last_used_at = $2 WHERE id = $1";
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            for (id, at) in uses {
                let note = sqlx::query(SQL).bind(Stored(id.0)).bind(Stored(*at));
                note.execute(&mut *transaction).await?;
            }
            transaction.commit().await
        })
    }

    /// Forgets it with its tools and its history. Says whether it was there.
    pub async fn delete_hosted_server(&self, id: ServerId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM kb.agent_workspaces WHERE id = $1";
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            sqlx::query(STRIKE).bind(Stored(id.0)).execute(&mut *transaction).await?;
            let deleted = sqlx::query(SQL).bind(Stored(id.0)).execute(&mut *transaction).await?;
            let deleted = deleted.rows_affected();
            transaction.commit().await?;
            Ok::<_, sqlx::Error>(deleted > 0)
        })
    }

    /// Adds to the history, and drops its oldest part where it has grown too long. Events of servers that are gone are dropped.
    pub async fn add_hosted_events(&self, events: &[(ServerId, HostedEvent)]) -> Result<(), StoreError> {
        const ADD: &str = "INSERT INTO kb.agent_workspace_events (id, workspace_id, at, kind, message, details) \
             SELECT $1, id, $3, $4, $5, $6 FROM kb.agent_workspaces WHERE id = $2";
        const TRIM: &str = "DELETE FROM kb.agent_workspace_events WHERE workspace_id = $1 AND id <= (SELECT id FROM \
             kb.agent_workspace_events WHERE workspace_id = $1 ORDER BY id DESC LIMIT 1 OFFSET $2)";
        let ids: Vec<_> = events.iter().map(|_| Stored(Uuid::now_v7())).collect();
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            for (id, (server, event)) in ids.iter().zip(events) {
                let add = sqlx::query(ADD)
                    .bind(*id)
                    .bind(Stored(server.0))
                    .bind(Stored(event.at))
                    .bind(event.kind.as_str())
                    .bind(without_nul(&event.message))
                    .bind(Json(all_without_nul(event.details.clone())));
                add.execute(&mut *transaction).await?;
            }
            for server in events.iter().map(|(server, _)| server).collect::<BTreeSet<_>>() {
                let trim = sqlx::query(TRIM).bind(Stored(server.0)).bind(EVENTS_KEPT);
                trim.execute(&mut *transaction).await?;
            }
            transaction.commit().await
        })
    }

    /// A server's history, newest first, from before this event on.
    pub async fn hosted_events(
        &self,
        server: ServerId,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        const SQL: &str = "SELECT id, at, kind, message, details FROM kb.agent_workspace_events \
             WHERE workspace_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
        let before = Stored(before.unwrap_or(Uuid::max()));
        let rows: Vec<EventRow> = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(server.0))
            .bind(before)
            .bind(i64::from(limit))
            .fetch_all(db))?;
        rows.into_iter().map(RecordedEvent::try_from).collect()
    }
}

fn all_without_nul(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_nul(&text).into_owned()),
        Value::Array(values) => values.into_iter().map(all_without_nul).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (without_nul(&name).into_owned(), all_without_nul(value)))
            .collect(),
        value => value,
    }
}
