//! `/api/v1/projects/:project/products`: sets of servers that come with one manifest and go with it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::{Kind, Moment, Product, Reference};
use cofer_store::{InstallError, NewProduct, ProductServer};
use serde::Serialize;
use serde_json::Value;

use super::project;
use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::declared::{self, DeclaredServer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};
use crate::registry::check_config;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct InstalledProduct {
    #[serde(flatten)]
    product: Product,
    /// Names of its servers.
    servers: Vec<String>,
    /// What of the manifest was not understood, and does nothing.
    warnings: Vec<String>,
}

/// All products of a project, by name.
#[utoipa::path(get, path = "/api/v1/projects/{project}/products", tag = "products",
    security(("bearer" = ["admin:read"])), params(("project" = String, Path, description = "Id or name")),
    responses((status = 200, body = [Product]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
) -> Result<Json<Vec<Product>>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    Ok(Json(app.store.products(project.id).await?))
}

/// Installs the servers of a manifest, or brings those of an earlier version up to date. All or none.
#[utoipa::path(post, path = "/api/v1/projects/{project}/products", tag = "products",
    security(("bearer" = ["admin:write"])), params(("project" = String, Path, description = "Id or name")),
    request_body = Object,
    responses((status = 201, body = InstalledProduct), (status = "default", body = Envelope)))]
pub async fn install(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Body(manifest): Body<serde_json::Map<String, Value>>,
) -> Result<(StatusCode, Json<InstalledProduct>), ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let manifest = Value::Object(manifest);
    let read = declared::product(&manifest).map_err(|error| ApiError::invalid(error.field, error.message))?;
    for (server, at) in read.servers.iter().zip(0..) {
        check_config(&server.config).map_err(|error| of_server(&error, server, at))?;
    }
    let servers: Vec<_> = read.servers.into_iter().map(ProductServer::from).collect();
    let names = servers.iter().map(|server| server.name.to_string()).collect();
    let new =
        NewProduct { project_id: project.id, name: read.name, version: read.version, manifest, servers };
    let installed = app.store.install_product(&new, Moment::now()).await.map_err(|error| match error {
        InstallError::NameTaken(server) => {
            let message = format!(
                "project {} has a server `{server}` already that is not of product {}; remove or rename that one first",
                project.name, new.name
            );
            ApiError::new(Kind::Conflict, message).with("field", "mcp.servers").with("server", server.as_str())
        }
        InstallError::Store(error) => error.into(),
    })?;
    app.registry_changed(project.id).await;
    tracing::info!(product.id = %installed.product, "product {} of project {} installed", new.name, project.name);
    let product = app.store.product(project.id, &Reference::Id(installed.product.0)).await?;
    let product = product.ok_or_else(|| gone(&new.name))?;
    Ok((StatusCode::CREATED, Json(InstalledProduct { product, servers: names, warnings: read.warnings })))
}

/// Removes a product with its servers.
#[utoipa::path(delete, path = "/api/v1/projects/{project}/products/{product}", tag = "products",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("product" = String, Path, description = "Id or name")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, product)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let Ok(wanted) = product.parse::<Reference>();
    let found = app.store.product(project.id, &wanted).await?.ok_or_else(|| gone(&product))?;
    let servers = app.store.delete_product(found.id).await?.ok_or_else(|| gone(&product))?;
    for id in servers {
        app.shelf.forget(id);
    }
    app.registry_changed(project.id).await;
    tracing::info!(product.id = %found.id, "product {} of project {} removed", found.name, project.name);
    Ok(StatusCode::NO_CONTENT)
}

/// The rule is about a server's `config`; in the manifest that is somewhere else.
fn of_server(error: &ApiError, server: &DeclaredServer, at: usize) -> ApiError {
    let field = error.details.get("field").and_then(Value::as_str).unwrap_or_default();
    let field = field.strip_prefix("config.").unwrap_or(field);
    let message = format!("server `{}`: {}", server.name, error.message);
    let name = server.key.as_deref().map_or_else(|| format!("[{at}]"), |key| format!(".{key}"));
    ApiError::invalid(format!("mcp.servers{name}.{field}"), message)
}

fn gone(name: &str) -> ApiError {
    ApiError::not_found("product", &Reference::Name(name.to_owned()))
}

impl From<DeclaredServer> for ProductServer {
    fn from(server: DeclaredServer) -> Self {
        let DeclaredServer { name, description, config, enabled, session, .. } = server;
        Self { name, description, config, enabled, session }
    }
}
