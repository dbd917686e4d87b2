//! External servers: what was registered, as it was written.

use cofer_model::{
    ExternalConfig, ExternalServer, Moment, ProductId, ProjectId, Reference, ServerId, ServerName,
    SessionMode, Transport,
};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each};
use crate::failure::StoreError;
use crate::register::{REGISTER, STRIKE, ServerKind};

pub(crate) const INSERT: &str = "INSERT INTO kb.project_mcp_servers \
     (id, project_id, product_id, name, description, transport, config, enabled, session, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)";
pub(crate) const DELETE: &str = "DELETE FROM kb.project_mcp_servers WHERE id = $1";

#[derive(Clone, Debug)]
pub struct NewExternalServer {
    pub project_id: ProjectId,
    pub name: ServerName,
    pub description: String,
    pub config: ExternalConfig,
    pub enabled: bool,
    pub session: SessionMode,
}

/// What to change; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct ExternalChange {
    pub name: Option<ServerName>,
    pub description: Option<String>,
    pub config: Option<ExternalConfig>,
    pub enabled: Option<bool>,
    pub session: Option<SessionMode>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Stored<Uuid>,
    product_id: Option<Stored<Uuid>>,
    position: i64,
    name: String,
    description: String,
    transport: String,
    config: Json<Value>,
    enabled: bool,
    session: String,
    created_at: Stored<Moment>,
    updated_at: Stored<Moment>,
}

impl TryFrom<Row> for ExternalServer {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let transport: Transport = row.transport.parse().map_err(StoreError::unreadable)?;
        Ok(Self {
            id: ServerId(row.id.0),
            project_id: ProjectId(row.project_id.0),
            product_id: row.product_id.map(|id| ProductId(id.0)),
            position: row.position,
            name: row.name.try_into().map_err(StoreError::unreadable)?,
            description: row.description,
            config: ExternalConfig::read(transport, &row.config.0).map_err(StoreError::unreadable)?,
            enabled: row.enabled,
            session: row.session.parse().map_err(StoreError::unreadable)?,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

/// Every server with its place in the order of registration.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT server.*, register.position FROM kb.project_mcp_servers AS server \
             JOIN kb.server_register AS register ON register.server_id = server.id ",
            $rest
        )
    };
}

impl Store {
    /// Those of a project, in the order of registration.
    pub async fn external_servers(&self, project: ProjectId) -> Result<Vec<ExternalServer>, StoreError> {
        const SQL: &str = select!("WHERE server.project_id = $1 ORDER BY register.position");
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        rows.into_iter().map(ExternalServer::try_from).collect()
    }

    /// One of a project, by id or name.
    pub async fn external_server(
        &self,
        project: ProjectId,
        reference: &Reference,
    ) -> Result<Option<ExternalServer>, StoreError> {
        const BY_ID: &str = select!("WHERE server.project_id = $1 AND server.id = $2");
        const BY_NAME: &str = select!("WHERE server.project_id = $1 AND server.name = $2");
        let project = Stored(project.0);
        let row: Option<Row> = match reference {
            Reference::Id(id) => {
                on_each!(self, |db| sqlx::query_as(BY_ID).bind(project).bind(Stored(*id)).fetch_optional(db))?
            }
            // No name has one, and PostgreSQL refuses it.
            Reference::Name(name) if name.contains('\0') => None,
            Reference::Name(name) => {
                on_each!(self, |db| sqlx::query_as(BY_NAME).bind(project).bind(name).fetch_optional(db))?
            }
        };
        row.map(ExternalServer::try_from).transpose()
    }

    /// Registers it behind all others. [`StoreError::Taken`] when a server of its project has the name.
    pub async fn create_external_server(
        &self,
        new: &NewExternalServer,
        now: Moment,
    ) -> Result<ServerId, StoreError> {
        let id = ServerId::generate();
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let register = sqlx::query(REGISTER)
                .bind(Stored(id.0))
                .bind(Stored(new.project_id.0))
                .bind(new.name.as_str())
                .bind(ServerKind::External.as_str());
            register.execute(&mut *transaction).await?;
            let insert = sqlx::query(INSERT)
                .bind(Stored(id.0))
                .bind(Stored(new.project_id.0))
                .bind(None::<Stored<Uuid>>)
                .bind(new.name.as_str())
                .bind(&new.description)
                .bind(new.config.transport().as_str())
                .bind(Json(&new.config))
                .bind(new.enabled)
                .bind(new.session.as_str())
                .bind(Stored(now));
            insert.execute(&mut *transaction).await?;
            transaction.commit().await
        })?;
        Ok(id)
    }

    /// Says whether the server was there.
    pub async fn change_external_server(
        &self,
        id: ServerId,
        change: &ExternalChange,
        now: Moment,
    ) -> Result<bool, StoreError> {
        const RENAME: &str = "UPDATE kb.server_register SET name = COALESCE($2, name) WHERE server_id = $1";
        const CHANGE: &str = "UPDATE kb.project_mcp_servers SET name = COALESCE($2, name), \
             description = COALESCE($3, description), transport = COALESCE($4, transport), config = COALESCE($5, config), \
             enabled = COALESCE($6, enabled), session = COALESCE($7, session), updated_at = $8 WHERE id = $1";
        let name = change.name.as_ref().map(ServerName::as_str);
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let rename = sqlx::query(RENAME).bind(Stored(id.0)).bind(name);
            rename.execute(&mut *transaction).await?;
            let change = sqlx::query(CHANGE)
                .bind(Stored(id.0))
                .bind(name)
                .bind(change.description.as_ref())
                .bind(change.config.as_ref().map(|config| config.transport().as_str()))
                .bind(change.config.as_ref().map(Json))
                .bind(change.enabled)
                .bind(change.session.map(SessionMode::as_str))
                .bind(Stored(now));
            let changed = change.execute(&mut *transaction).await?.rows_affected();
            transaction.commit().await?;
            Ok::<_, sqlx::Error>(changed > 0)
        })
    }

    /// Forgets it with its tools. Says whether it was there.
    pub async fn delete_external_server(&self, id: ServerId) -> Result<bool, StoreError> {
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            sqlx::query(STRIKE).bind(Stored(id.0)).execute(&mut *transaction).await?;
            let deleted = sqlx::query(DELETE).bind(Stored(id.0)).execute(&mut *transaction).await?;
            let deleted = deleted.rows_affected();
            transaction.commit().await?;
            Ok::<_, sqlx::Error>(deleted > 0)
        })
    }
}
