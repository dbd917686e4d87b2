//! Draws up each start of a hosted server: its configuration as it is now, its secrets, and the provider that runs it.
//!
//! A server that has been placed stays with its provider: its volumes are there, and isolation is never weakened behind
//! anybody's back. Who wants it elsewhere changes `provider`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{
    HostedConfig, Isolation, Kind, Mask, ProjectId, ProviderName, SecretName, ServerId, ServerName, template,
};
use cofer_sandbox::{Owner, Providers, Rights, SandboxSpec, Stdio};
use cofer_supervisor::{Bridge, Plan, PlanError, Planner};
use secrecy::SecretString;

use super::volumes;
use crate::keyring::KeyRing;
use crate::settings::HostingSettings;

/// Written on every sandbox of a hosted server.
pub(crate) const OWNER_KIND: &str = "mcp_server";
const PLAIN_CONTAINER: &str = "this server runs in a plain container: it shares the machine's kernel; install gVisor for a sandbox, and set `require_sandbox` to allow nothing less";

/// What every plan of this Cofer needs.
pub(crate) struct PlanningOffice {
    pub(crate) instance: String,
    pub(crate) settings: HostingSettings,
    pub(crate) providers: Providers,
    pub(crate) keyring: Arc<KeyRing>,
}

impl fmt::Debug for PlanningOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanningOffice").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// One server's planner. The reconciler sets what it plans for.
#[derive(Debug)]
pub(crate) struct ServerPlanner {
    pub(crate) office: Arc<PlanningOffice>,
    pub(crate) id: ServerId,
    pub(crate) project_id: ProjectId,
    pub(crate) name: ServerName,
    wanted: RwLock<Arc<Blueprint>>,
    latest: RwLock<Drawn>,
    mask: RwLock<Arc<Mask>>,
}

/// Which revision of the configuration a run was planned by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) run: u64,
    pub(crate) revision: i64,
}

/// What was asked for, as of the latest change.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub(crate) revision: i64,
    pub(crate) config: HostedConfig,
    pub(crate) placed: Option<ProviderName>,
}

impl ServerPlanner {
    pub(crate) fn new(
        office: Arc<PlanningOffice>,
        id: ServerId,
        project_id: ProjectId,
        name: ServerName,
        blueprint: Blueprint,
        latest: Drawn,
    ) -> Self {
        let (wanted, latest) = (RwLock::new(Arc::new(blueprint)), RwLock::new(latest));
        Self { office, id, project_id, name, wanted, latest, mask: RwLock::default() }
    }

    /// Hides what it was given in confidence at its latest start.
    pub(crate) fn mask(&self) -> Arc<Mask> {
        self.mask.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The revision that this run was planned by, if it is the latest one planned.
    pub(crate) fn revision_of(&self, run: u64) -> Option<i64> {
        let latest = *self.latest.read().unwrap_or_else(PoisonError::into_inner);
        (latest.run == run).then_some(latest.revision)
    }

    pub(crate) fn blueprint(&self) -> Arc<Blueprint> {
        self.wanted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, blueprint: Blueprint) {
        *self.wanted.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(blueprint);
    }

    /// Remembers where it was placed, unless it was told to be elsewhere meanwhile.
    fn note_placed(&self, drawn_from: &Arc<Blueprint>, placed: ProviderName) {
        let mut wanted = self.wanted.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&wanted, drawn_from) {
            *wanted = Arc::new(Blueprint { placed: Some(placed), ..Blueprint::clone(&wanted) });
        }
    }
}

#[async_trait]
impl Planner for ServerPlanner {
    async fn plan(&self, run: u64) -> Result<Plan, PlanError> {
        let blueprint = self.blueprint();
        let config = &blueprint.config;
        let office = &self.office;
        let secrets = office.open_secrets_named_by(self.project_id, config).await?;
        let asked = config.provider.or(blueprint.placed);
        let picked = office
            .providers
            .pick(asked, office.settings.default_provider, office.settings.require_sandbox)
            .await
            .map_err(|error| PlanError { kind: error.kind(), message: error.to_string() })?;
        self.note_placed(&blueprint, picked.provider.name());
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) =
            Drawn { run, revision: blueprint.revision };
        let mask = Arc::new(Mask::of(secrets.values()));
        *self.mask.write().unwrap_or_else(PoisonError::into_inner) = mask.clone();
        let isolation = picked.capabilities.isolation;
        let plain = isolation == Isolation::Container && config.provider.is_none();
        Ok(Plan {
            isolation,
            spec: self.spec(config, &secrets, run)?,
            mask,
            restart_policy: config.restart_policy,
            bridge: office.bridge(config),
            health_interval: Duration::from_millis(config.health_interval_ms),
            warnings: plain.then(|| PLAIN_CONTAINER.to_owned()).into_iter().collect(),
            provider: picked.provider,
        })
    }
}

impl ServerPlanner {
    fn spec(
        &self,
        config: &HostedConfig,
        secrets: &BTreeMap<SecretName, SecretString>,
        run: u64,
    ) -> Result<SandboxSpec, PlanError> {
        let office = &self.office;
        Ok(SandboxSpec {
            owner: Owner {
                instance: office.instance.clone(),
                kind: OWNER_KIND.to_owned(),
                id: self.id.0,
                name: self.name.to_string(),
                run,
            },
            image: config.image.clone(),
            entrypoint: None,
            cmd: config.cmd.clone(),
            environment: filled(&config.environment, secrets).map_err(|missing| missing_secrets(&missing))?,
            user: config.user.clone(),
            workdir: config.workdir.clone(),
            volumes: volumes::mounts(&office.instance, self.project_id, &self.name, &config.volumes),
            binds: Vec::new(),
            limits: Some(config.resource_limits),
            rights: Rights::Dropped,
            network: config.network,
            network_name: office.settings.network_name.clone(),
            aliases: Vec::new(),
            ports: config.ports.clone(),
            stdio: if config.stdio_bridge { Stdio::Bridged } else { Stdio::LogOnly },
        })
    }
}

impl PlanningOffice {
    fn bridge(&self, config: &HostedConfig) -> Bridge {
        if !config.stdio_bridge {
            return Bridge::Http { path: config.http_path.clone() };
        }
        Bridge::Stdio {
            in_flight_max: config.max_in_flight,
            queue_max: self.settings.call_queue_max,
            message_bytes_max: self.settings.message_bytes_max,
        }
    }

    /// The project's secrets, if this configuration names any; an error names those that are missing.
    pub(crate) async fn open_secrets_named_by(
        &self,
        project: ProjectId,
        config: &HostedConfig,
    ) -> Result<BTreeMap<SecretName, SecretString>, PlanError> {
        let named = template::names(config.environment.values().map(String::as_str));
        if named.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut secrets = self.keyring.open_secrets(project).await.map_err(|error| PlanError {
            kind: error.kind(),
            message: format!("the project's secrets cannot be opened: {error}"),
        })?;
        secrets.retain(|name, _| named.contains(name));
        let missing: BTreeSet<_> = named.into_iter().filter(|name| !secrets.contains_key(name)).collect();
        if missing.is_empty() { Ok(secrets) } else { Err(missing_secrets(&missing)) }
    }
}

fn filled(
    environment: &BTreeMap<String, String>,
    secrets: &BTreeMap<SecretName, SecretString>,
) -> Result<Vec<(String, SecretString)>, BTreeSet<SecretName>> {
    let fill = |(name, value): (&String, &String)| Ok((name.clone(), template::fill(value, secrets)?));
    environment.iter().map(fill).collect()
}

fn missing_secrets(missing: &BTreeSet<SecretName>) -> PlanError {
    let names = missing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let message = format!(
        "`environment` names secrets that the project does not have: {names}; set them with `cofer secret set`"
    );
    PlanError { kind: Kind::Invalid, message }
}
