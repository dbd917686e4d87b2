//! `/api/v1/mcp/images`: images for servers that are published as packages.

use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::auth::Writer;
use crate::hosting::{BuildImage, BuiltImage};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::Body;

/// Builds an image for an npm or PyPI package, unless it is there. Needs a token for all projects: images belong to nobody.
#[utoipa::path(post, path = "/api/v1/mcp/images", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    request_body = BuildImage,
    responses((status = 200, body = BuiltImage), (status = "default", body = Envelope)))]
pub async fn build(
    State(app): State<App>,
    Writer(caller): Writer,
    Body(request): Body<BuildImage>,
) -> Result<Json<BuiltImage>, ApiError> {
    caller.require_all_projects()?;
    Ok(Json(app.hosting.build_image(request).await?))
}
