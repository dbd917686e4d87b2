//! `/api/v1/environments`: the coding environments of all repositories that are known on this machine, what was done in them and what they
//! changed. To be read alone: who works in them has the tools, or `cofer env`.
//!
//! They belong to the machine and not to a project, so a token that belongs to one sees none.

use axum::Json;
use axum::extract::State;
use cofer_environments::{Condition, Environment, Excerpt, LastCommand, Looks};
use cofer_model::{Kind, Moment, ProviderName};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::auth::{Caller, Reader};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Path, Query};

const DIFF_BYTES_MAX: usize = 1 << 20;
const LOG_BYTES_MAX: usize = 256 << 10;
const TEXT_CHARS_MAX: usize = 1000;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EnvironmentStatus {
    /// Unique in its repository alone.
    id: String,
    title: String,
    /// The path of the repository that it was made from.
    repository: String,
    /// Its branch, as the repository knows it.
    remote_ref: String,
    /// `running`, `stopped`, or `unknown` when its engine does not say so in time.
    #[schema(value_type = String)]
    state: Condition,
    created_at: Moment,
    /// When anything was last done in it.
    updated_at: Moment,
    provider: ProviderName,
    image: String,
    /// The commit that it was made from.
    base: String,
    #[schema(value_type = Option<Object>)]
    last_command: Option<LastCommand>,
    /// How its work is taken over, in the repository.
    checkout_command: String,
    merge_command: String,
    apply_command: String,
    log_command: String,
    diff_command: String,
}

impl EnvironmentStatus {
    async fn of(environment: &Environment, looks: &Looks) -> Self {
        let (id, state) = (environment.id(), &environment.state);
        let (condition, (last, updated_at)) =
            tokio::join!(environment.condition(looks), environment.latest(looks));
        let command = |verb: &str| format!("cofer env {verb} {id}");
        Self {
            id: id.to_owned(),
            title: shortened(&state.title),
            repository: environment.repository(),
            remote_ref: format!("cofer/{id}"),
            state: condition,
            created_at: state.created_at,
            updated_at,
            provider: state.provider,
            image: shortened(&state.config.base_image),
            base: state.base.clone(),
            last_command: last.map(|last| LastCommand { command: shortened(&last.command), ..last }),
            checkout_command: command("checkout"),
            merge_command: command("merge"),
            apply_command: command("apply"),
            log_command: command("log"),
            diff_command: command("diff"),
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// The path of its repository, where several have an environment of this id.
    repository: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EnvironmentLog {
    id: String,
    repository: String,
    /// Commits with what was done for each, newest first.
    log: String,
    /// How much more there is.
    bytes_left_out: u64,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EnvironmentDiff {
    id: String,
    repository: String,
    /// As `git diff` writes it, up to 1 MiB.
    diff: String,
    /// How much more there is.
    bytes_left_out: u64,
}

/// The environments of all repositories that are known on this machine, the latest first.
#[utoipa::path(get, path = "/api/v1/environments", tag = "environments", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = [EnvironmentStatus]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
) -> Result<Json<Vec<EnvironmentStatus>>, ApiError> {
    admit(&app, &caller)?;
    let all = app.environments.survey(&app.settings.environments.sources).await?;
    let looks = Looks::begin();
    let mut all = join_all(all.iter().map(|one| EnvironmentStatus::of(one, &looks))).await;
    all.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.id.cmp(&b.id)));
    Ok(Json(all))
}

/// One environment.
#[utoipa::path(get, path = "/api/v1/environments/{environment}", tag = "environments", security(("bearer" = ["admin:read"])),
    params(("environment" = String, Path, description = "Its id"), Which),
    responses((status = 200, body = EnvironmentStatus), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Result<Json<EnvironmentStatus>, ApiError> {
    let environment = environment(&app, &caller, &id, &which).await?;
    Ok(Json(EnvironmentStatus::of(&environment, &Looks::begin()).await))
}

/// What was done in an environment.
#[utoipa::path(get, path = "/api/v1/environments/{environment}/log", tag = "environments", security(("bearer" = ["admin:read"])),
    params(("environment" = String, Path, description = "Its id"), Which),
    responses((status = 200, body = EnvironmentLog), (status = "default", body = Envelope)))]
pub async fn log(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Result<Json<EnvironmentLog>, ApiError> {
    let environment = environment(&app, &caller, &id, &which).await?;
    let Excerpt { text, bytes_left_out } = environment.log_excerpt(LOG_BYTES_MAX).await?;
    Ok(Json(EnvironmentLog { id, repository: environment.repository(), log: text, bytes_left_out }))
}

/// What an environment changed since it was made.
#[utoipa::path(get, path = "/api/v1/environments/{environment}/diff", tag = "environments", security(("bearer" = ["admin:read"])),
    params(("environment" = String, Path, description = "Its id"), Which),
    responses((status = 200, body = EnvironmentDiff), (status = "default", body = Envelope)))]
pub async fn diff(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Result<Json<EnvironmentDiff>, ApiError> {
    let environment = environment(&app, &caller, &id, &which).await?;
    let Excerpt { text, bytes_left_out } = environment.diff_excerpt(DIFF_BYTES_MAX).await?;
    Ok(Json(EnvironmentDiff { id, repository: environment.repository(), diff: text, bytes_left_out }))
}

async fn environment(app: &App, caller: &Caller, id: &str, which: &Which) -> Result<Environment, ApiError> {
    admit(app, caller)?;
    let named = &app.settings.environments.sources;
    Ok(app.environments.find(named, id, which.repository.as_deref()).await?)
}

/// Source code is shown: the same rule as for the tools, and nobody who is confined to a project.
fn admit(app: &App, caller: &Caller) -> Result<(), ApiError> {
    caller.require_all_projects()?;
    if app.settings.environments.shown {
        return Ok(());
    }
    let message = "environments are not shown, because others than this machine can reach Cofer; the setting `expose_environments` says that they may be";
    Err(ApiError::new(Kind::Forbidden, message))
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= TEXT_CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(TEXT_CHARS_MAX).chain(['…']).collect()
}
