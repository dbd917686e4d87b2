//! `cofer env show`.

use clap::Args;
use cofer_environments::{Environment, PortEndpoint};
use serde_json::{Value, json};

use super::{Place, Which, failure};
use crate::exit::Failure;
use crate::output::fields;

/// Show all that is known of an environment
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    which: Which,
}

impl Show {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let summary = environment.summary().await.map_err(failure)?;
        let backgrounds = environment.background_reports().await.map_err(failure)?;
        let mut told = facts(&environment);
        told["running"] = summary.running.into();
        told["commits"] = summary.commits.into();
        told["changed_files"] = summary.changed_files.into();
        told["last_command"] = json!(summary.last_command);
        told["background"] = backgrounds.iter().map(super::background::facts).collect();
        place.format.print(&told, || fields(&told))
    }
}

/// What does not change from one moment to the next.
pub(super) fn facts(environment: &Environment) -> Value {
    let (state, id) = (&environment.state, environment.id());
    let services: Value = state
        .services
        .iter()
        .map(|service| json!({"name": service.config.name, "image": service.config.image, "endpoints": endpoints(&service.endpoints)}))
        .collect();
    json!({
        "id": id,
        "title": state.title,
        "created_at": state.created_at,
        "updated_at": environment.touched_at(),
        "provider": state.provider,
        "container": state.container,
        "path": environment.path(),
        "base": state.base,
        "remote_ref": format!("cofer/{id}"),
        "config": state.config,
        "services": services,
    })
}

pub(super) fn endpoints(all: &[PortEndpoint]) -> Value {
    let reached = |endpoint: &PortEndpoint| json!({"port": endpoint.port, "inside": endpoint.environment_internal, "here": endpoint.host_external});
    all.iter().map(reached).collect()
}
