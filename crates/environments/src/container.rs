//! The container of an environment: made with the worktree mounted, found again by any process, and made anew when it has gone.

use std::sync::Arc;

use cofer_model::{NetworkMode, PortMapping};
use cofer_sandbox::{
    BindMount, Owner, Provider, Rights, SandboxId, SandboxSpec, SandboxState, Stdio, VolumeMount, VolumeOwner,
    Workshop,
};
use secrecy::SecretString;
use tokio::time::timeout;
use uuid::Uuid;

use crate::config::{EnvironmentConfig, cache_of, variable};
use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::files::WORKDIR;
use crate::run::Silent;
use crate::state;

/// The channel of the container in which commands run.
const MAIN: &str = "main";
const KIND: &str = "environment";
const ROOT: &str = "0:0";

/// What a container of an environment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role<'a> {
    Main,
    Background(&'a str),
    Service(&'a str),
}

impl Role<'_> {
    fn part(self) -> String {
        match self {
            Self::Main => MAIN.to_owned(),
            Self::Background(id) => format!("background/{id}"),
            Self::Service(name) => format!("service/{name}"),
        }
    }
}

impl Environment {
    pub(crate) fn provider(&self) -> Arc<dyn Provider> {
        self.house.providers.get(self.state.provider)
    }

    /// Where commands go, if a container was ever made.
    pub(crate) fn workshop(&self) -> Option<Workshop> {
        let id = SandboxId(self.state.container.clone()?);
        Some(Workshop::at(self.provider(), id, &self.home.channel(MAIN)))
    }

    pub(crate) async fn is_running(&self) -> bool {
        let Some(id) = self.state.container.clone() else { return false };
        let seen = self.provider().look(&SandboxId(id)).await;
        matches!(seen, Ok(Some(seen)) if matches!(seen.state, SandboxState::Running { .. }))
    }

    /// The image's own entrypoint.
    pub(crate) async fn entrypoint(&self) -> Result<Vec<String>> {
        let image = &self.state.config.base_image;
        let about = self.provider().image(image).await.map_err(|error| EnvError::engine("image", &error))?;
        Ok(about.entrypoint)
    }

    fn owner(&self, role: Role<'_>) -> Owner {
        Owner {
            instance: state::instance(&self.source),
            kind: KIND.to_owned(),
            id: state::owner_id(&self.source, &[self.id(), &role.part()]),
            name: self.id().to_owned(),
            run: self.state.run,
        }
    }

    /// What the engine is asked for, but for what a role adds.
    pub(crate) fn spec(&self, role: Role<'_>, image: &str, env: &[String]) -> Result<SandboxSpec> {
        let environment = env.iter().map(|entry| {
            let (name, value) = variable(entry, "env")?;
            Ok((name.to_owned(), SecretString::from(value)))
        });
        Ok(SandboxSpec {
            owner: self.owner(role),
            image: image.to_owned(),
            cmd: None,
            entrypoint: None,
            environment: environment.collect::<Result<_>>()?,
            user: None,
            workdir: None,
            volumes: Vec::new(),
            binds: Vec::new(),
            limits: None,
            rights: Rights::Ordinary,
            network: NetworkMode::Egress,
            network_name: None,
            aliases: Vec::new(),
            ports: Vec::new(),
            stdio: Stdio::None,
        })
    }

    /// The same with the worktree and the caches in it.
    pub(crate) fn workspace(&self, role: Role<'_>, ports: &[u16]) -> Result<SandboxSpec> {
        let EnvironmentConfig { base_image, env, caches, .. } = &self.state.config;
        let mut spec = self.spec(role, base_image, env)?;
        spec.workdir = Some(WORKDIR.to_owned());
        // Whoever the image runs as could not write to files of the user's.
        spec.user = Some(ROOT.to_owned());
        spec.binds = vec![BindMount {
            source: self.worktree.path.clone(),
            target: WORKDIR.to_owned(),
            read_only: false,
        }];
        let volumes = caches.iter().map(|cache| {
            let (name, path) = cache_of(cache)?;
            Ok(self.cache(name, path))
        });
        spec.volumes = volumes.collect::<Result<_>>()?;
        spec.ports = ports.iter().map(|port| PortMapping { container_port: *port, host_port: 0 }).collect();
        Ok(spec)
    }

    /// A folder that all environments of the repository share.
    fn cache(&self, name: &str, path: &str) -> VolumeMount {
        let instance = state::instance(&self.source);
        let id = state::owner_id(&self.source, &["cache", name]).simple().to_string();
        VolumeMount {
            name: format!("cofer-cache-{id}"),
            path: path.to_owned(),
            owner: VolumeOwner { instance, project_id: Uuid::nil(), server: format!("cache {name}") },
        }
    }

    pub(crate) fn helpers(&self) -> std::path::PathBuf {
        self.source.folder.join("helper")
    }

    /// Has the image fetched.
    pub(crate) async fn fetch(&self, image: &str) -> Result<()> {
        let fetched = self.provider().fetch_image(image, Arc::new(|_| {})).await;
        fetched.map_err(|error| EnvError::engine("image", &error))
    }

    /// Makes and starts the container. Another one of the same environment, from before, is removed by that.
    pub(crate) async fn start_container(&mut self) -> Result<Workshop> {
        let image = self.state.config.base_image.clone();
        self.fetch(&image).await?;
        self.state.run += 1;
        let mut spec = self.workspace(Role::Main, &[])?;
        if !self.state.services.is_empty() || !self.state.backgrounds.is_empty() {
            spec.network_name = Some(self.network().await?);
        }
        let limit = self.house.settings().timeout_start;
        let (channel, helpers) = (self.home.channel(MAIN), self.helpers());
        let launched = Workshop::launch(self.provider(), spec, &channel, &helpers);
        let launched = timeout(limit, launched).await.map_err(|_| {
            let advice = "look whether the engine is busy, or set COFER_TIMEOUT_STARTUP (milliseconds)";
            EnvError::timeout("container", "the start of the container", limit, advice)
        })?;
        let (workshop, launched) = launched.map_err(|error| EnvError::engine("container", &error))?;
        self.state.container = Some(launched.id.0);
        Ok(workshop)
    }

    /// The container has gone, perhaps with the machine: makes a new one, with what set it up before.
    pub(crate) async fn revive(&mut self) -> Result<Workshop> {
        let _lock = self.lock_and_refresh().await?;
        // Another process may have been quicker.
        if self.is_running().await
            && let Some(workshop) = self.workshop()
        {
            return Ok(workshop);
        }
        let house = self.house.clone();
        house.refuse_too_many(&self.source).await?;
        self.start_container().await?;
        self.restart_services().await?;
        self.set_up().await?;
        self.save()?;
        self.workshop().ok_or_else(|| EnvError::no_environment(&self.state.id))
    }

    /// Changes what the environment is made of. Its container is made anew: what ran there ends, what is in the worktree stays.
    pub async fn reconfigure(&mut self, config: EnvironmentConfig) -> Result<()> {
        config.check()?;
        let _lock = self.lock_and_refresh().await?;
        let before = std::mem::replace(&mut self.state.config, config);
        let made = async {
            self.start_container().await?;
            self.set_up().await
        };
        if let Err(error) = made.await {
            // As it was before, so that the environment can be used.
            self.state.config = before;
            self.start_container().await?;
            self.set_up().await?;
            self.save()?;
            return Err(error);
        }
        self.save()
    }

    /// Runs the commands that set it up and install what it needs. The first that fails fails all.
    pub(crate) async fn set_up(&mut self) -> Result<()> {
        let EnvironmentConfig { setup_commands, install_commands, .. } = self.state.config.clone();
        let setup = setup_commands.into_iter().map(|command| ("setup", command));
        let install = install_commands.into_iter().map(|command| ("install", command));
        for (step, command) in setup.chain(install) {
            let argv = vec!["sh".to_owned(), "-c".to_owned(), command.clone()];
            let limit = self.house.settings().timeout_run;
            let heard = self.execute_in_place(argv, limit).await?;
            let code = heard.end.as_ref().and_then(|end| end.code);
            if code == Some(0) && !heard.timed_out {
                continue;
            }
            let how = match (heard.timed_out, code) {
                (true, _) => format!("it took longer than {} ms", limit.as_millis()),
                (false, Some(code)) => format!("exit code {code}."),
                (false, None) => "it was ended by a signal".to_owned(),
            };
            let (stdout, stderr) = (heard.stdout.told().text, heard.stderr.told().text);
            let message = format!("{step} command failed: {how}\ncommand: {command}\nstdout: {stdout}\nstderr: {stderr}");
            let advice = "mend the command in the configuration, or the image it runs in";
            return Err(EnvError::new(ErrorKind::PreconditionFailed, step, message, advice));
        }
        Ok(())
    }

    /// Runs these words in the container as it is, without making another one.
    async fn execute_in_place(&self, argv: Vec<String>, limit: std::time::Duration) -> Result<crate::run::Heard> {
        let workshop = self.workshop().ok_or_else(|| EnvError::no_environment(&self.state.id))?;
        let clear = crate::secrets::read(&self.state.config, self.house.settings(), &*self.house.vault).await?;
        let spec = crate::run::command(argv, clear.variables);
        let running = workshop.start(&spec).await.map_err(|error| EnvError::engine("setup", &error))?;
        crate::run::listen(running, limit, &Silent).await
    }

    /// Gives the user what the container's root made, where the engine's root is the machine's and the user is not.
    pub(crate) async fn own_files(&self) -> Result<()> {
        if self.makes_own_files() {
            return Ok(());
        }
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let Some(workshop) = self.workshop() else { return Ok(()) };
        let owned = workshop.own(WORKDIR, uid.as_raw(), gid.as_raw()).await;
        owned.map(drop).map_err(|error| EnvError::engine("ownership", &error))
    }

    /// Whether what the container's root makes is the user's own anyway.
    pub(crate) fn makes_own_files(&self) -> bool {
        rustix::process::getuid().is_root() || self.state.rootless
    }

    /// The network on which services and background commands are reached by name; made when first needed.
    pub(crate) async fn network(&self) -> Result<String> {
        let name = self.network_name();
        let made = self.provider().make_network(&name, &self.owner(Role::Main)).await;
        made.map_err(|error| EnvError::engine("network", &error))?;
        Ok(name)
    }

    pub(crate) fn network_name(&self) -> String {
        let id = state::owner_id(&self.source, &[self.id(), "network"]).simple().to_string();
        format!("cofer-{}-{}", self.id(), &id[..12])
    }

    /// Where the container is found by others of the environment, and they by it.
    pub(crate) async fn join_network(&self) -> Result<String> {
        let name = self.network().await?;
        if let Some(id) = self.state.container.clone() {
            let joined = self.provider().join_network(&SandboxId(id), &name, &[self.id().to_owned()]).await;
            joined.map_err(|error| EnvError::engine("network", &error))?;
        }
        Ok(name)
    }
}
