//! Every route, and the layers around them. The document at `/api/openapi.json` is made from the same list, so a route
//! cannot be left out of it.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use cofer_model::Kind;
use tokio::sync::oneshot;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, shown};
use super::observe::observe;
use crate::app::App;
use crate::logins::{CALLBACK, CLIENT_DOCUMENT};
use crate::routes::{
    agent_runs, chat, console, environments, external, external_tools, health, hosted, hosted_calls,
    hosted_logs, images, logins, master_key, mcp, products, projects, providers, secrets, tokens, tool_calls,
    tools,
};

/// The guide has one address, its scenarios the other.
const HOSTED: [&str; 2] = ["/api/v1/mcp/hosted", "/api/v1/mcp/servers"];

#[derive(OpenApi)]
#[openapi(info(
    title = "Cofer",
    description = "Runs MCP servers in sandboxes and offers all their tools on one endpoint."
))]
struct Description;

/// The whole HTTP surface.
pub fn router(app: App) -> Router {
    let api = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(projects::list, projects::create))
        .routes(routes!(projects::show, projects::change, projects::remove))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::remove))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::put, secrets::remove))
        .routes(routes!(master_key::rotate))
        .routes(routes!(health::metrics))
        .routes(routes!(health::openapi))
        .routes(routes!(providers::list))
        .merge(registry())
        .merge(agents())
        .routes(routes!(environments::list))
        .routes(routes!(environments::show))
        .routes(routes!(environments::log))
        .routes(routes!(environments::diff))
        .merge(hosting(&app))
        .layer(middleware::from_fn_with_state(app.clone(), see_through))
        // Whoever leaves a call gives it up, so these are not seen through.
        .merge(calls(&app))
        .merge(tools())
        // Under load these must still answer, so the limit stays inside of them.
        .layer(middleware::from_fn_with_state(app.clone(), limit))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .route("/", get(console::page))
        .route("/console/{*name}", get(console::file));
    let (router, mut document) = api.split_for_parts();
    describe_security(&mut document);
    router
        .layer(axum::Extension(health::Document::of(&document)))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(CatchPanicLayer::custom(|_| panicked()))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// What agents use: tools by REST, and everything by MCP, which describes itself.
fn tools() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(tools::list))
        .routes(routes!(tools::call))
        .route("/mcp", post(mcp::post_default).get(mcp::get_default).delete(mcp::delete_default))
        .route(
            "/projects/{project}/mcp",
            post(mcp::post_project).get(mcp::get_project).delete(mcp::delete_project),
        )
        .merge(oauth())
}

/// What browsers, clients and authorization servers look for. Open to all, and described by the protocol.
fn oauth() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .route(CALLBACK, get(logins::callback))
        .route(CLIENT_DOCUMENT, get(logins::document))
        .route("/.well-known/oauth-protected-resource", get(logins::resource))
        .route("/.well-known/oauth-protected-resource/mcp", get(logins::resource))
        .route("/.well-known/oauth-protected-resource/projects/{project}/mcp", get(logins::resource))
}

/// Servers that live elsewhere, what they offer, and what was called.
fn registry() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(external::list, external::register))
        .routes(routes!(external::show, external::change, external::remove))
        .routes(routes!(hosted_logs::external_logs))
        .routes(routes!(external_tools::list))
        .routes(routes!(external_tools::change))
        .routes(routes!(external_tools::refresh))
        .routes(routes!(logins::show, logins::begin, logins::end))
        .routes(routes!(products::list, products::install))
        .routes(routes!(products::remove))
        .routes(routes!(tool_calls::list))
}

/// Conversations, under way and past.
fn agents() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(chat::chat))
        .routes(routes!(agent_runs::list))
        .routes(routes!(agent_runs::show))
        .routes(routes!(agent_runs::messages))
        .routes(routes!(agent_runs::tool_calls))
        .routes(routes!(agent_runs::export))
        .routes(routes!(agent_runs::cancel))
        .routes(routes!(agent_runs::approve))
}

/// Hosted servers, at both of their addresses.
fn hosting(app: &App) -> OpenApiRouter<App> {
    let servers = || {
        OpenApiRouter::new()
            .routes(routes!(hosted::list, hosted::register))
            .routes(routes!(hosted::show, hosted::make_so, hosted::change, hosted::remove))
            .routes(routes!(hosted::restart))
            .routes(routes!(hosted::stop))
            .routes(routes!(hosted::start))
            .routes(routes!(hosted::events))
            .routes(routes!(hosted_logs::logs))
    };
    HOSTED
        .iter()
        .fold(OpenApiRouter::new(), |router, path| router.nest(path, servers()))
        .routes(routes!(providers::volumes))
        .routes(routes!(providers::remove_volume))
        .routes(routes!(images::build))
        .layer(middleware::from_fn_with_state(app.clone(), hosting_enabled))
}

fn calls(app: &App) -> OpenApiRouter<App> {
    HOSTED
        .iter()
        .fold(OpenApiRouter::new(), |router, path| {
            router.nest(path, OpenApiRouter::new().routes(routes!(hosted_calls::call)))
        })
        .layer(middleware::from_fn_with_state(app.clone(), hosting_enabled))
}

async fn hosting_enabled(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.hosting.refusal() {
        None => next.run(request).await,
        Some(message) => ApiError::new(Kind::Unavailable, message).into_response(),
    }
}

/// Refuses at once what cannot be answered soon.
async fn limit(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.requests.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_full) => too_busy(&app).into_response(),
    }
}

pub(super) fn too_busy(app: &App) -> ApiError {
    let max = app.settings.requests_max;
    ApiError::new(
        Kind::Unavailable,
        format!("more than {max} requests are being answered; try again shortly"),
    )
}

/// What changes something is finished once begun, also when its caller hangs up half-way.
async fn see_through(State(app): State<App>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let (answer, heard) = oneshot::channel();
    let work = async move {
        let unheard = answer.send(next.run(request).await).err();
        if let Some(error) = unheard.and_then(|mut response| response.extensions_mut().remove::<ApiError>()) {
            let cause = error.cause.as_deref().unwrap_or("no further cause");
            tracing::warn!("a change failed whose caller had hung up: {}: {cause}", error.message);
        }
    };
    app.begun.spawn(work.in_current_span());
    heard.await.unwrap_or_else(|_| panicked())
}

async fn no_such_route(address: Uri) -> ApiError {
    ApiError::new(
        Kind::NotFound,
        format!("there is nothing at {}; /api/openapi.json lists what there is", shown(address.path())),
    )
}

async fn no_such_method(request: Request) -> ApiError {
    let (method, path) = (shown(request.method().as_str()), shown(request.uri().path()));
    ApiError::new(
        Kind::MethodNotAllowed,
        format!("{path} does not take {method}; /api/openapi.json lists what it takes"),
    )
}

/// The panic itself is in the log by then (see `telemetry`).
fn panicked() -> Response {
    ApiError::new(Kind::Internal, "Cofer made a mistake; the log tells more under this trace id")
        .into_response()
}

/// Wherever a bearer token is taken, `X-API-Key` is, too.
fn describe_security(document: &mut utoipa::openapi::OpenApi) {
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let api_key = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(api_key));
    for path in document.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete];
        for security in operations.into_iter().flatten().filter_map(|operation| operation.security.as_mut()) {
            security.push(SecurityRequirement::new("api_key", Vec::<String>::new()));
        }
    }
}
