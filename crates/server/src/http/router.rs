//! Every route, and the layers around them. The document at `/api/openapi.json` is made from the same list, so a route
//! cannot be left out of it.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
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
use crate::routes::{health, master_key, projects, secrets, tokens};

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
        // Under load these must still answer, so the limit stays inside of them.
        .layer(middleware::from_fn_with_state(app.clone(), limit))
        .layer(middleware::from_fn_with_state(app.clone(), see_through))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz));
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

/// Refuses at once what cannot be answered soon.
async fn limit(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.requests.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_full) => {
            let message = format!(
                "more than {} requests are being answered; try again shortly",
                app.settings.requests_max
            );
            ApiError::new(Kind::Unavailable, message).into_response()
        }
    }
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
