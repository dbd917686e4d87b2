//! A registration: a row, a first start, and the undoing of both where that start cannot be.

use std::sync::Arc;
use std::time::Duration;

use cofer_model::{HostedConfig, HostedStatus, Kind, Moment, Project, ProjectName, ProviderName, ServerName};
use cofer_store::NewHostedServer;
use cofer_supervisor::{StartFailure, Truth};

use super::fleet::Entry;
use super::{Hosting, gone, volumes};
use crate::http::ApiError;

impl Hosting {
    /// Registers a server, starts it, and waits for the outcome. What cannot be started at all is undone.
    pub(crate) async fn register(
        self: &Arc<Self>,
        project: &Project,
        name: ServerName,
        config: HostedConfig,
    ) -> Result<Arc<Entry>, ApiError> {
        self.check_secrets(project.id, &config).await?;
        let paths = &config.volumes;
        let mounts = volumes::mounts(&self.office.instance, project.id, &name, paths);
        let names = mounts.into_iter().map(|mount| mount.name).collect();
        let new = NewHostedServer { project_id: project.id, name: name.clone(), config };
        let created = self.store.create_hosted_server(&new, Moment::now()).await;
        let id = created.map_err(|error| match error.kind() {
            Kind::Conflict => name_taken(&name, &project.name),
            _ => error.into(),
        })?;
        // The name is ours from here on, and nobody else makes volumes of it.
        let not_there = self.not_there_yet(names).await;
        self.settle().await?;
        let entry = self.fleet.get(id).ok_or_else(|| gone(&name))?;
        let truth = self.settled(&entry, Duration::MAX).await;
        if truth.gone {
            return Err(gone(&name));
        }
        if let Some(failure) = failure(&truth, &new.config) {
            self.remove(&entry).await?;
            self.take_back(not_there).await;
            return Err(failure);
        }
        tracing::info!(server.id = %id, "server {name} of project {} registered", project.name);
        Ok(entry)
    }

    /// Which of these volumes do not exist, and where. An engine that does not say has them all.
    async fn not_there_yet(&self, names: Vec<String>) -> Vec<(ProviderName, String)> {
        let mut missing = Vec::new();
        for engine in [ProviderName::Docker, ProviderName::Podman] {
            let provider = self.office.providers.get(engine);
            for name in &names {
                if matches!(provider.has_volume(name).await, Ok(false)) {
                    missing.push((engine, name.clone()));
                }
            }
        }
        missing
    }

    /// Removes the volumes that a start has made which came to nothing.
    async fn take_back(&self, volumes: Vec<(ProviderName, String)>) {
        for (engine, name) in volumes {
            if let Err(error) = self.office.providers.get(engine).remove_volume(&name).await {
                tracing::warn!("volume {name} of a registration that failed is left: {error}");
            }
        }
    }
}

/// Why it cannot be started: for good, or because an engine is away.
fn failure(truth: &Truth, config: &HostedConfig) -> Option<ApiError> {
    if truth.status == HostedStatus::Error {
        let Some(StartFailure { kind, message, field }) = truth.start_failure.clone() else {
            return Some(ApiError::new(Kind::Unavailable, truth.reason.clone().unwrap_or_default()));
        };
        return Some(ApiError::new(kind, message).blaming(field));
    }
    let reason = init_failure(&truth.last_exit.as_ref()?.stderr_tail)?;
    let program = config.cmd.as_ref().and_then(|cmd| cmd.first());
    let command = program.map_or("the image's own command".to_owned(), |program| format!("`{program}`"));
    let message =
        format!("{command} cannot be run in image `{}`: {reason}; name another by `cmd`", config.image);
    Some(ApiError::invalid("cmd", message))
}

/// An engine starts the init process and is content; what that could not start, only its last words tell.
fn init_failure(stderr_tail: &str) -> Option<&str> {
    let last = stderr_tail.trim_end().lines().last()?;
    let by_tini = last.starts_with("[FATAL tini (") && last.contains("] exec ");
    let by_catatonit = last.starts_with("ERROR (catatonit:") && last.contains("failed to exec pid1: ");
    (by_tini || by_catatonit).then(|| last.rsplit(": ").next().unwrap_or(last))
}

fn name_taken(name: &ServerName, project: &ProjectName) -> ApiError {
    let message =
        format!("project {project} has a server `{name}` already; choose another name, or remove that one");
    ApiError::new(Kind::Conflict, message).with("field", "name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_an_init_process_are_told_from_those_of_a_server() {
        for (tail, reason) in [
            ("[FATAL tini (7)] exec /x failed: No such file or directory", Some("No such file or directory")),
            ("ERROR (catatonit:6): failed to exec pid1: Permission denied\n", Some("Permission denied")),
            ("Error: Cannot find module 'x'", None),
            ("[FATAL tini (7)] exec /x failed: No such file\nand more", None),
            ("", None),
        ] {
            assert_eq!(init_failure(tail), reason, "{tail}");
        }
    }
}
