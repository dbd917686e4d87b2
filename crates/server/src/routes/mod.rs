//! One file a resource: its requests, its answers, its handlers. A new route is a handler here with its
//! `#[utoipa::path]`, and a line in `http/router.rs`.

pub mod agent_runs;
pub mod chat;
pub mod console;
pub mod environments;
pub mod external;
pub mod external_tools;
pub mod health;
pub mod hosted;
pub mod hosted_calls;
pub mod hosted_logs;
pub mod images;
pub mod logins;
pub mod master_key;
pub mod mcp;
pub mod products;
pub mod projects;
pub mod providers;
pub mod secrets;
pub mod tokens;
pub mod tool_calls;
pub mod tools;

use cofer_model::{Project, Reference};

use crate::app::App;
use crate::auth::Caller;
use crate::http::ApiError;

/// The project in a path, as this caller may know it.
async fn project(app: &App, caller: &Caller, text: &str) -> Result<Project, ApiError> {
    let Ok(reference) = text.parse::<Reference>();
    caller.project(&app.store, &reference).await
}
