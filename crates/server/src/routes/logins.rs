//! `/api/v1/projects/:project/mcp-servers/:server/login`: logins at servers elsewhere, and where a browser comes back to.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cofer_model::{ExternalServer, Kind, LoginState, Moment, Project};
use cofer_oauth::Callback;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::external::external;
use super::project;
use crate::app::App;
use crate::auth::{Caller, Reader, Writer};
use crate::http::ApiError;
use crate::http::error::{Envelope, chain};
use crate::http::extract::{Path, Query};
use crate::logins::{AttemptStatus, Begun, LoginError, LoginTarget};

/// How the login at a server does.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LoginStatus {
    /// `null` for a server that has not asked for one.
    login: Option<LoginState>,
    /// Who gave the tokens.
    issuer: Option<String>,
    /// What was asked for.
    scopes: Vec<String>,
    /// When the token of now ends; it is renewed before, if that can be.
    expires_at: Option<Moment>,
    /// The newest attempt to log in, for a while.
    attempt: Option<AttemptStatus>,
}

/// What a browser brings back.
#[derive(Debug, Deserialize)]
pub struct Answer {
    state: Option<String>,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// How the login at a server does.
#[utoipa::path(get, path = "/api/v1/projects/{project}/mcp-servers/{server}/login", tag = "external servers",
    security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 200, body = LoginStatus), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path((reference, server)): Path<(String, String)>,
) -> Result<Json<LoginStatus>, ApiError> {
    let (project, server) = find(&app, &caller, &reference, &server).await?;
    let kept = app.store.logins(project.id).await?.get(&server.id).copied();
    let grant = app.logins.of(server.id).grant().await?;
    Ok(Json(LoginStatus {
        login: app.logins.state(server.id, kept),
        issuer: grant.as_ref().map(|grant| grant.client.issuer.clone()),
        expires_at: grant.as_ref().and_then(|grant| grant.tokens.as_ref()?.expires_at),
        scopes: grant.map(|grant| grant.scopes).unwrap_or_default(),
        attempt: app.logins.attempt(server.id),
    }))
}

/// Begins a login: somebody has to open `authorize_url` in a browser.
#[utoipa::path(post, path = "/api/v1/projects/{project}/mcp-servers/{server}/login", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 200, body = Begun), (status = "default", body = Envelope)))]
pub async fn begin(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server)): Path<(String, String)>,
) -> Result<Json<Begun>, ApiError> {
    let (project, server) = find(&app, &caller, &reference, &server).await?;
    let secrets = app.keyring.open_secrets(project.id).await?;
    let target = LoginTarget::of(&server.config, &secrets).ok_or_else(|| no_login(&server))?;
    if !app.logins.of(server.id).wants_somebody() {
        // What it wants to see, it says when it is asked; whether it lets us in already does not matter here.
        let _ = app.gateway.refresh(project.id, server.id).await;
    }
    let begun = app.logins.begin(project.id, server.id, target).await?;
    tracing::info!(server.id = %server.id, "a login at server {} of project {} waits for somebody", server.name, project.name);
    Ok(Json(begun))
}

/// Forgets the login, and has whoever gave it forget it, too.
#[utoipa::path(delete, path = "/api/v1/projects/{project}/mcp-servers/{server}/login", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn end(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (project, server) = find(&app, &caller, &reference, &server).await?;
    if app.logins.log_out(server.id).await? {
        tracing::info!(server.id = %server.id, "logged out of server {} of project {}", server.name, project.name);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /oauth/callback`: a person's browser comes back. Whoever knows the state that we made up is the one we sent there.
pub async fn callback(State(app): State<App>, Query(answer): Query<Answer>) -> Response {
    let Answer { state, code, iss, error, error_description } = answer;
    let callback = Callback { code, iss, error, error_description };
    let owner = app.clone();
    // A code is good for one try, so this is finished once begun.
    let finishing = app.begun.spawn(async move {
        let outcome = owner.logins.finish(&state.unwrap_or_default(), callback).await;
        if let Ok((project, server)) = outcome {
            tracing::info!(server.id = %server, "logged in at server {server}");
            let app = owner.clone();
            owner.begun.spawn(async move { app.gateway.refresh(project, server).await });
        }
        outcome
    });
    match finishing.await {
        Ok(Ok(_)) => page(StatusCode::OK, "You are logged in. This page can be closed."),
        Ok(Err(error)) => {
            tracing::warn!("a login failed: {}", chain(&error));
            page(
                ApiError::new(error.kind(), "").status(),
                &format!("The login did not work: {}", chain(&error)),
            )
        }
        Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, "The login did not work; Cofer's log tells more."),
    }
}

/// `GET /client-metadata.json`: who we are, for authorization servers.
pub async fn document(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let nothing =
        || ApiError::new(Kind::NotFound, "this Cofer has no public https address; set `public_url`");
    app.logins.document().map(Json).ok_or_else(nothing)
}

/// `GET /.well-known/oauth-protected-resource…`: whose tokens our own endpoint takes, for its clients.
pub async fn resource(State(app): State<App>, address: Uri) -> Result<Json<Value>, ApiError> {
    let nothing = || {
        ApiError::new(Kind::NotFound, "this Cofer takes its own tokens only; `oauth_issuer` names whose else")
    };
    let issued = app.issued.as_ref().ok_or_else(nothing)?;
    let path = address.path().strip_prefix("/.well-known/oauth-protected-resource").unwrap_or_default();
    Ok(Json(issued.description(if path.is_empty() { "/mcp" } else { path })))
}

/// Text, so that nothing that anybody sent can be more than that.
fn page(status: StatusCode, text: &str) -> Response {
    let mut response = (status, format!("{text}\n")).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn find(
    app: &App,
    caller: &Caller,
    reference: &str,
    server: &str,
) -> Result<(Project, ExternalServer), ApiError> {
    let project = project(app, caller, reference).await?;
    let Ok(server) = server.parse();
    let server = external(app, &project, &server).await?;
    Ok((project, server))
}

fn no_login(server: &ExternalServer) -> ApiError {
    let name = &server.name;
    let message = format!(
        "server `{name}` takes no login: that is for servers with an address, whose secrets are set and which name no `Authorization` header of their own"
    );
    ApiError::new(Kind::PreconditionFailed, message)
}

impl From<LoginError> for ApiError {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::Key(error) => error.into(),
            LoginError::Store(error) => error.into(),
            LoginError::Oauth(_) => Self::new(error.kind(), format!("no login: {}", chain(&error))),
            LoginError::Unknown | LoginError::TooMany | LoginError::Unreadable => {
                Self::new(error.kind(), error.to_string())
            }
        }
    }
}
