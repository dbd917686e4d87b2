//! `/api/v1/tokens`: who may enter.
//!
//! Nobody can hand out more than they have: a token's scopes, project and time are within those of the token that made it.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::{Kind, Label, Moment, Reference, Scope, Scopes, Token};
use cofer_store::{NewToken, Revocation};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::auth::{Caller, Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};

/// Ten years; whoever needs longer leaves the expiry out.
const EXPIRES_IN_SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    name: Label,
    #[schema(value_type = Vec<Scope>, min_items = 1)]
    scopes: Scopes,
    /// Id or name of the only project it can see; without it, all that the maker can.
    #[schema(value_type = Option<String>)]
    project: Option<Reference>,
    #[schema(minimum = 1, maximum = 316_224_000)]
    expires_in_seconds: Option<u64>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct CreatedToken {
    #[serde(flatten)]
    about: Token,
    /// The token itself, shown this once.
    token: String,
}

/// All tokens that this one may see, without the tokens themselves.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = [Token]), (status = "default", body = Envelope)))]
pub async fn list(State(app): State<App>, Reader(caller): Reader) -> Result<Json<Vec<Token>>, ApiError> {
    let tokens = app.store.tokens(caller.confined_to()).await?;
    Ok(Json(app.doorkeeper.with_latest_uses(tokens)))
}

/// Makes a token. The answer is the only place where it is ever shown.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", security(("bearer" = ["admin:write"])),
    request_body = CreateToken,
    responses((status = 201, body = CreatedToken), (status = "default", body = Envelope)))]
pub async fn create(
    State(app): State<App>,
    Writer(caller): Writer,
    Body(asked): Body<CreateToken>,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    check_scopes(&caller, &asked.scopes)?;
    let now = Moment::now();
    let asked_until = asked.expires_in_seconds.map(|seconds| expiry(now, seconds)).transpose()?;
    let expires_at = [asked_until, caller.expires_at()].into_iter().flatten().min();
    let project = match (asked.project, caller.confined_to()) {
        (Some(reference), _) => Some(caller.project(&app.store, &reference).await?),
        (None, Some(own)) => Some(caller.project(&app.store, &Reference::Id(own.0)).await?),
        (None, None) => None,
    };
    let project = project.map(|project| (project.id, project.name));
    let new = NewToken { name: asked.name, scopes: asked.scopes, project, expires_at };
    let (about, clear) = app.store.create_token(new, now).await?;
    tracing::info!(token.id = %about.id, "token {} ({}) created", about.id, about.name);
    Ok((StatusCode::CREATED, Json(CreatedToken { about, token: clear.expose_secret().to_owned() })))
}

/// Revokes a token, at once.
#[utoipa::path(delete, path = "/api/v1/tokens/{token}", tag = "tokens", security(("bearer" = ["admin:write"])),
    params(("token" = String, Path, description = "Id, or name where only one has it")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(text): Path<String>,
) -> Result<StatusCode, ApiError> {
    let Ok(reference) = text.parse::<Reference>();
    let tokens = app.store.tokens(caller.confined_to()).await?;
    let token = find(&tokens, &reference)?;
    let revocation = app.store.revoke_token(token.id).await;
    app.doorkeeper.forget();
    match revocation? {
        Revocation::Done => {}
        Revocation::NotThere => return Err(ApiError::not_found("token", &reference)),
        Revocation::LastAdministrator => {
            let message = "this is the last lasting token that may do everything; make another one first";
            return Err(ApiError::new(Kind::Conflict, message));
        }
    }
    tracing::info!(token.id = %token.id, "token {} ({}) revoked", token.id, token.name);
    Ok(StatusCode::NO_CONTENT)
}

fn check_scopes(caller: &Caller, asked: &Scopes) -> Result<(), ApiError> {
    if asked.is_empty() {
        let known = Scope::ALL.map(Scope::as_str).join(", ");
        return Err(ApiError::invalid(
            "scopes",
            format!("a token needs at least one scope; there are {known}"),
        ));
    }
    let beyond: Vec<_> =
        asked.iter().filter(|scope| !caller.has(**scope)).map(|scope| scope.as_str()).collect();
    if beyond.is_empty() {
        return Ok(());
    }
    let message = format!("this token cannot give away what it does not have: {}", beyond.join(", "));
    Err(ApiError::new(Kind::Forbidden, message).with("missing", beyond))
}

fn expiry(now: Moment, seconds: u64) -> Result<Moment, ApiError> {
    if (1..=EXPIRES_IN_SECONDS_MAX).contains(&seconds) {
        return Ok(now.after(Duration::from_secs(seconds)));
    }
    Err(ApiError::invalid(
        "expires_in_seconds",
        format!("must be from 1 to {EXPIRES_IN_SECONDS_MAX}; leave it out for a token that lasts"),
    ))
}

fn find<'a>(tokens: &'a [Token], reference: &Reference) -> Result<&'a Token, ApiError> {
    let matches = |token: &&Token| match reference {
        Reference::Id(id) => token.id.0 == *id,
        Reference::Name(name) => token.name.as_str() == name,
    };
    let mut found = tokens.iter().filter(matches);
    match (found.next(), found.next()) {
        (Some(token), None) => Ok(token),
        (None, _) => Err(ApiError::not_found("token", reference)),
        (Some(_), Some(_)) => {
            let ids: Vec<_> = tokens.iter().filter(matches).map(|token| token.id.to_string()).collect();
            let message = format!("several tokens are called `{reference}`; name the one you mean by its id");
            Err(ApiError::new(Kind::Conflict, message).with("ids", ids))
        }
    }
}
