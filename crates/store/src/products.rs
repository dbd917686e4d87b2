//! Products: sets of servers that came with one manifest. A manifest is installed, or not at all.

use std::collections::BTreeMap;

use cofer_model::{
    ExternalConfig, Kind, Moment, Product, ProductId, ProjectId, Reference, ServerId, ServerName, SessionMode,
};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each};
use crate::external::{DELETE, INSERT};
use crate::failure::StoreError;
use crate::register::{REGISTER, STRIKE, ServerKind};

/// Why a product could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("a server `{0}` is there already, and is not this product's")]
    NameTaken(ServerName),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InstallError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NameTaken(_) => Kind::Conflict,
            Self::Store(error) => error.kind(),
        }
    }
}

/// A manifest that was read.
#[derive(Clone, Debug)]
pub struct NewProduct {
    pub project_id: ProjectId,
    pub name: String,
    pub version: String,
    pub manifest: Value,
    pub servers: Vec<ProductServer>,
}

#[derive(Clone, Debug)]
pub struct ProductServer {
    pub name: ServerName,
    pub description: String,
    pub config: ExternalConfig,
    pub enabled: bool,
    pub session: SessionMode,
}

/// What an installation did.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    pub product: ProductId,
    /// New, or not what they were.
    pub changed: Vec<ServerId>,
    /// No longer in the manifest.
    pub removed: Vec<ServerId>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Stored<Uuid>,
    name: String,
    version: String,
    manifest: String,
    created_at: Stored<Moment>,
    updated_at: Stored<Moment>,
}

impl TryFrom<Row> for Product {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: ProductId(row.id.0),
            project_id: ProjectId(row.project_id.0),
            name: row.name,
            version: row.version,
            manifest: serde_json::from_str(&row.manifest).map_err(StoreError::unreadable)?,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

impl Store {
    /// Those of a project, by name.
    pub async fn products(&self, project: ProjectId) -> Result<Vec<Product>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.products WHERE project_id = $1 ORDER BY name";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).bind(Stored(project.0)).fetch_all(db))?;
        rows.into_iter().map(Product::try_from).collect()
    }

    /// One of a project, by id or name.
    pub async fn product(
        &self,
        project: ProjectId,
        reference: &Reference,
    ) -> Result<Option<Product>, StoreError> {
        let is_it = |product: &Product| match reference {
            Reference::Id(id) => product.id.0 == *id,
            Reference::Name(name) => product.name == *name,
        };
        Ok(self.products(project).await?.into_iter().find(is_it))
    }

    /// Installs a product, or brings the one of its name up to date: what is new is registered, what is there is changed but
    /// stays switched on or off as it was, and what was dropped is removed.
    pub async fn install_product(&self, new: &NewProduct, now: Moment) -> Result<Installed, InstallError> {
        /// Held until the end, so that two installations take turns.
        const HOLD: &str = "UPDATE kb.projects SET id = id WHERE id = $1";
        const PRODUCT: &str = "INSERT INTO kb.products (id, project_id, name, version, manifest, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT (project_id, name) DO UPDATE \
             SET version = excluded.version, manifest = excluded.manifest, updated_at = excluded.updated_at RETURNING *";
        const THERE: &str = "SELECT id, name FROM kb.project_mcp_servers WHERE product_id = $1";
        const CHANGE: &str = "UPDATE kb.project_mcp_servers SET description = $2, transport = $3, config = $4, session = $5, \
             updated_at = $6 WHERE id = $1 AND (description <> $2 OR transport <> $3 OR config <> $4 OR session <> $5)";
        let manifest = new.manifest.to_string();
        let project = Stored(new.project_id.0);
        let done: Result<Installed, ServerName> = on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            if sqlx::query(HOLD).bind(project).execute(&mut *transaction).await?.rows_affected() == 0 {
                return Err(StoreError::OwnerGone);
            }
            let row: Row = sqlx::query_as(PRODUCT)
                .bind(Stored(ProductId::generate().0))
                .bind(project)
                .bind(&new.name)
                .bind(&new.version)
                .bind(&manifest)
                .bind(Stored(now))
                .fetch_one(&mut *transaction)
                .await?;
            let there: Vec<(Stored<Uuid>, String)> =
                sqlx::query_as(THERE).bind(row.id).fetch_all(&mut *transaction).await?;
            let mut there: BTreeMap<String, Uuid> =
                there.into_iter().map(|(id, name)| (name, id.0)).collect();
            let mut changed = Vec::new();
            for server in &new.servers {
                let transport = server.config.transport().as_str();
                if let Some(id) = there.remove(server.name.as_str()) {
                    let change = sqlx::query(CHANGE)
                        .bind(Stored(id))
                        .bind(&server.description)
                        .bind(transport)
                        .bind(Json(&server.config))
                        .bind(server.session.as_str())
                        .bind(Stored(now));
                    if change.execute(&mut *transaction).await?.rows_affected() > 0 {
                        changed.push(ServerId(id));
                    }
                    continue;
                }
                let id = ServerId::generate();
                let register = sqlx::query(REGISTER)
                    .bind(Stored(id.0))
                    .bind(project)
                    .bind(server.name.as_str())
                    .bind(ServerKind::External.as_str());
                match register.execute(&mut *transaction).await {
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                        return Ok(Err(server.name.clone()));
                    }
                    outcome => _ = outcome?,
                }
                let insert = sqlx::query(INSERT)
                    .bind(Stored(id.0))
                    .bind(project)
                    .bind(Some(row.id))
                    .bind(server.name.as_str())
                    .bind(&server.description)
                    .bind(transport)
                    .bind(Json(&server.config))
                    .bind(server.enabled)
                    .bind(server.session.as_str())
                    .bind(Stored(now));
                insert.execute(&mut *transaction).await?;
                changed.push(id);
            }
            let removed: Vec<_> = there.into_values().map(ServerId).collect();
            for id in &removed {
                sqlx::query(STRIKE).bind(Stored(id.0)).execute(&mut *transaction).await?;
                sqlx::query(DELETE).bind(Stored(id.0)).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            Ok::<_, StoreError>(Ok(Installed { product: ProductId(row.id.0), changed, removed }))
        })?;
        done.map_err(InstallError::NameTaken)
    }

    /// Removes a product with its servers and says which these were; `None` when it was not there.
    pub async fn delete_product(&self, id: ProductId) -> Result<Option<Vec<ServerId>>, StoreError> {
        const STRIKE_ALL: &str = "DELETE FROM kb.server_register WHERE server_id IN \
             (SELECT id FROM kb.project_mcp_servers WHERE product_id = $1)";
        const SERVERS: &str = "DELETE FROM kb.project_mcp_servers WHERE product_id = $1 RETURNING id";
        const PRODUCT: &str = "DELETE FROM kb.products WHERE id = $1";
        let product = Stored(id.0);
        on_each!(self, |db| async {
            let mut transaction = db.begin().await?;
            let deleted = sqlx::query(PRODUCT).bind(product).execute(&mut *transaction).await?;
            if deleted.rows_affected() == 0 {
                return Ok(None);
            }
            sqlx::query(STRIKE_ALL).bind(product).execute(&mut *transaction).await?;
            let servers: Vec<Stored<Uuid>> =
                sqlx::query_scalar(SERVERS).bind(product).fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok::<_, sqlx::Error>(Some(servers.into_iter().map(|id| ServerId(id.0)).collect()))
        })
    }
}
