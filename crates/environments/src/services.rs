//! Services beside an environment, such as a database: containers of their own images, reached by name.

use cofer_model::PortMapping;
use cofer_sandbox::{SandboxId, SandboxSpec};

use crate::background::endpoints;
use crate::config::ServiceConfig;
use crate::container::Role;
use crate::destroy::end;
use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::git::{LogEntry, remember};
use crate::state::Service;

const SERVICES_MAX: usize = 16;

impl Environment {
    /// Adds a service and starts it.
    pub async fn add_service(&mut self, config: ServiceConfig) -> Result<Service> {
        config.check()?;
        let _lock = self.lock_and_refresh().await?;
        if self.state.services.iter().any(|service| service.config.name == config.name) {
            let message = format!("there is a service `{}` already", config.name);
            return Err(EnvError::new(ErrorKind::Conflict, "service", message, "choose another name"));
        }
        if self.state.services.len() >= SERVICES_MAX {
            let message = format!("there are {SERVICES_MAX} services already");
            return Err(EnvError::new(
                ErrorKind::LimitExceeded,
                "service",
                message,
                "use one of those there are",
            ));
        }
        let service = self.start_service(&config).await?;
        self.state.config.services.push(config);
        self.state.services.push(service.clone());
        self.save()?;
        let done = format!("Add service {} ({})", service.config.name, service.config.image);
        remember(&self.home.log(), &LogEntry::Note(&done))
            .map_err(|error| EnvError::io("log", "the log", &error))?;
        Ok(service)
    }

    /// Those of the configuration, when the environment is made.
    pub(crate) async fn start_configured_services(&mut self) -> Result<()> {
        for config in self.state.config.services.clone() {
            let service = self.start_service(&config).await?;
            self.state.services.push(service);
        }
        Ok(())
    }

    /// Those that were there, when the environment comes back.
    pub(crate) async fn restart_services(&mut self) -> Result<()> {
        let before = std::mem::take(&mut self.state.services);
        for Service { config, .. } in before {
            let service = self.start_service(&config).await?;
            self.state.services.push(service);
        }
        Ok(())
    }

    async fn start_service(&self, config: &ServiceConfig) -> Result<Service> {
        self.fetch(&config.image).await?;
        let spec = self.service_spec(config).await?;
        let launched = self.provider().launch(&spec, std::sync::Arc::new(|_, _| {})).await;
        let launched = launched.map_err(|error| EnvError::engine("service", &error))?;
        self.survives(config, &launched.id).await?;
        let endpoints = endpoints(&config.name, &config.exposed_ports, &launched);
        Ok(Service { config: config.clone(), container: launched.id.0, endpoints })
    }

    async fn service_spec(&self, config: &ServiceConfig) -> Result<SandboxSpec> {
        let mut spec = self.spec(Role::Service(&config.name), &config.image, &config.env)?;
        if !config.command.trim().is_empty() {
            spec.cmd = Some(vec!["sh".to_owned(), "-c".to_owned(), config.command.clone()]);
        }
        spec.network_name = Some(self.join_network().await?);
        spec.aliases = vec![config.name.clone()];
        let published = |port: &u16| PortMapping { container_port: *port, host_port: 0 };
        spec.ports = config.exposed_ports.iter().map(published).collect();
        Ok(spec)
    }

    /// One that ends at once is an error that says so.
    async fn survives(&self, config: &ServiceConfig, id: &SandboxId) -> Result<()> {
        let provider = self.provider();
        let failed = |error| EnvError::engine("service", &error);
        let seen = provider.look(id).await.map_err(failed)?;
        match seen {
            Some(seen) if !matches!(seen.state, cofer_sandbox::SandboxState::Ended(_)) => Ok(()),
            seen => {
                if let Some(seen) = seen {
                    end(&*provider, seen).await.map_err(failed)?;
                }
                let message = format!("service `{}` ended at once", config.name);
                let advice = "run its image by hand to see why, or give it another command";
                Err(EnvError::new(ErrorKind::PreconditionFailed, "service", message, advice))
            }
        }
    }

    /// Keeps the container as it is now as an image.
    pub async fn checkpoint(&self, destination: &str) -> Result<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | ':' | '.' | '-' | '_');
        if destination.is_empty() || destination.len() > 255 || !destination.chars().all(is_name) {
            let message = format!("`{}` is no name of an image", destination.escape_debug());
            return Err(EnvError::invalid("arguments", message, "give a name such as `my-image:tag`"));
        }
        let id = self.state.container.clone().ok_or_else(|| EnvError::no_environment(self.id()))?;
        let kept = self.provider().checkpoint(&SandboxId(id), destination, std::sync::Arc::new(|_| {})).await;
        kept.map_err(|error| EnvError::engine("checkpoint", &error))?;
        Ok(destination.to_owned())
    }
}
