//! `cofer init` and `cofer env …`: coding environments by hand. Nothing here needs a running server.

mod init;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use cofer_environments::{EnvError, Environments, Settings};
use cofer_model::{Kind, ProviderName};
use cofer_server::environments::of_this_machine;
use cofer_server::settings::any_path;

use crate::exit::Failure;

pub use init::Init;

/// Where environments are made, and by which engine.
#[derive(Debug, Args)]
pub struct Workplace {
    /// The engine [default: Podman, else Docker]
    #[arg(long, env = "COFER_ENVIRONMENT_PROVIDER", value_name = "NAME")]
    provider: Option<ProviderName>,

    /// Where Docker is, such as `unix:///run/docker.sock` [default: `DOCKER_HOST`, then the usual sockets]
    #[arg(long, env = "COFER_DOCKER_HOST", value_name = "URL")]
    docker_host: Option<String>,

    /// Where Podman is [default: `CONTAINER_HOST`, then the usual sockets]
    #[arg(long, env = "COFER_PODMAN_HOST", value_name = "URL")]
    podman_host: Option<String>,
}

impl Workplace {
    pub fn environments(self) -> Result<Arc<Environments>, Failure> {
        let mut settings = Settings::from_variables(&|name| std::env::var(name).ok()).map_err(failure)?;
        settings.provider = self.provider.or(settings.provider);
        Ok(of_this_machine(settings, self.docker_host, self.podman_host))
    }
}

/// Which repository is meant.
#[derive(Debug, Args)]
pub struct Repository {
    /// The source repository [default: the one of this directory]
    #[arg(long, short = 'C', global = true, value_name = "DIR", value_parser = any_path())]
    source: Option<PathBuf>,
}

impl Repository {
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let here = std::env::current_dir().map_err(Failure::internal)?;
        let path = self.source.as_ref().map_or_else(|| here.clone(), |source| here.join(source));
        path.canonicalize()
            .map_err(|error| Failure::new(Kind::NotFound, format!("{} cannot be used: {error}", path.display())))
    }
}

/// What environments say of an error, and what to do about it.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn failure(error: EnvError) -> Failure {
    Failure::new(error.kind.kind(), format!("{}\n{}", error.message, error.recovery))
}
