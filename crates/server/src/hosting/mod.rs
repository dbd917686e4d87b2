//! Hosted servers: MCP servers that stay up, in sandboxes.
//!
//! ```text
//!   routes ─► Hosting ─► rows (what is wanted) ──┐
//!                │                               │ settle
//!                ▼                               ▼
//!              Fleet: an Entry each ─► Supervised (cofer-supervisor) ─► Provider (cofer-sandbox)
//!                                          │ truth, events
//!                                          ▼
//!                                    record: rows (what was seen), history
//! ```
//!
//! A change is written to its row first and then settled, so that whatever dies in between, the next start does the same. Reads
//! and calls go to the fleet and ask no database.

mod figures;
mod fleet;
mod images;
mod making;
mod planner;
mod reconcile;
mod record;
mod register;
mod request;
mod status;
mod tenure;
mod volumes;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cofer_model::{
    HostedConfig, HostedEvent, HostedEventKind, HostedStatus, Kind, Moment, ProjectId, ProviderName,
    Reference, ServerId, ServerName, Wanted,
};
use cofer_sandbox::{Providers, Volume};
use cofer_store::{RecordedEvent, Store, StoreError};
use cofer_supervisor::{Rules, Truth};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::ApiError;
use crate::keyring::KeyRing;
use crate::settings::HostingSettings;
pub(crate) use fleet::Entry;
use fleet::{Fleet, Told};
pub(crate) use images::{BuildImage, BuiltImage};
pub(crate) use making::{Making, Outcome};
use planner::PlanningOffice;
use record::History;
pub use request::{Change, Registration};
pub use status::ServerStatus;

/// How long a request waits for what it asked for to be so; then it answers with how far things are.
const SETTLED_DEADLINE: Duration = Duration::from_mins(1);
/// How long a removal waits for the sandbox to be gone. What takes longer goes on without it.
const GONE_DEADLINE: Duration = Duration::from_secs(45);
/// Beside the grace that servers get at the end.
const SHUT_DOWN_MARGIN: Duration = Duration::from_secs(15);
/// How long engines are waited for to say what servers use, however many these are.
const USAGE_PATIENCE: Duration = Duration::from_millis(200);

/// All of hosting.
#[derive(Debug)]
pub struct Hosting {
    store: Store,
    office: Arc<PlanningOffice>,
    rules: Arc<Rules>,
    fleet: Fleet,
    history: History,
    default_project: ProjectId,
    in_office: AtomicBool,
    /// The fleet is what the rows say; before that it is empty, and says nothing.
    knows_fleet: AtomicBool,
    settling: tokio::sync::Mutex<()>,
    /// Rows were changed by somebody else, such as with their project.
    changed: Notify,
    anything_to_watch: Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Hosting {
    /// Starts what is wanted, each for itself, and comes back at once.
    pub async fn open(
        store: Store,
        settings: HostingSettings,
        providers: Providers,
        keyring: Arc<KeyRing>,
    ) -> Result<Arc<Self>, StoreError> {
        let instance = match &settings.instance {
            Some(given) => given.clone(),
            None => store.instance(Moment::now()).await?,
        };
        let default = Reference::Name(cofer_model::project::DEFAULT_PROJECT.to_owned());
        let default_project =
            store.project(&default).await?.map_or(ProjectId::generate(), |project| project.id);
        let rules = Arc::new(Rules {
            crash_threshold: settings.crash_loop.threshold,
            crash_window: settings.crash_loop.window,
            crash_delays: settings.crash_loop.delays.clone(),
            stable: settings.crash_loop.stable,
            ..Rules::default()
        });
        let (history, writing) = History::open(store.clone());
        let hosting = Arc::new(Self {
            office: Arc::new(PlanningOffice { instance, settings, providers, keyring }),
            store,
            rules,
            fleet: Fleet::default(),
            history,
            default_project,
            in_office: AtomicBool::default(),
            knows_fleet: AtomicBool::default(),
            settling: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            anything_to_watch: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        hosting.tasks.spawn(writing);
        if hosting.enabled() {
            hosting.run_for_office().await?;
            hosting.begin_watching();
        }
        Ok(hosting)
    }

    /// Why nothing is hosted here, if that is so.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match (self.enabled(), self.is_in_charge()) {
            (true, true) => None,
            (false, _) => Some("hosting is switched off here; set ENABLE_AGENT_WORKSPACES=true and restart"),
            (true, false) => Some(
                "another Cofer on this database runs the servers; ask that one (this one takes over when it ends)",
            ),
        }
    }

    pub fn enabled(&self) -> bool {
        self.office.settings.enabled
    }

    pub(crate) fn default_project(&self) -> ProjectId {
        self.default_project
    }

    pub(crate) fn settings(&self) -> &HostingSettings {
        &self.office.settings
    }

    pub(crate) fn providers(&self) -> &Providers {
        &self.office.providers
    }

    /// Rows may have gone with their project: look soon.
    pub fn rows_may_have_changed(&self) {
        self.changed.notify_one();
    }

    /// The entry that a caller points at, by id or by name in this project.
    pub(crate) fn find(&self, project: Option<ProjectId>, reference: &Reference) -> Option<Arc<Entry>> {
        self.fleet.find(project.unwrap_or(self.default_project), reference)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.fleet.all()
    }

    /// Another configuration, in a new sandbox. An image or a provider that cannot be had leaves everything as it was.
    pub(crate) async fn change(self: &Arc<Self>, entry: &Entry, change: Change) -> Result<Truth, ApiError> {
        let places_anew = change.places_anew();
        let config = change.apply(&entry.planner.blueprint().config)?;
        self.reconfigure(entry, config, places_anew).await
    }

    async fn reconfigure(
        self: &Arc<Self>,
        entry: &Entry,
        config: HostedConfig,
        places_anew: bool,
    ) -> Result<Truth, ApiError> {
        let old = entry.planner.blueprint();
        self.check_secrets(entry.planner.project_id, &config).await?;
        let placed = if places_anew { config.provider } else { old.placed };
        if places_anew || config.image != old.config.image {
            self.require_image(&config, placed).await?;
        }
        let changed =
            self.store.change_hosted_config(entry.planner.id, &config, placed, Moment::now()).await?;
        if !changed {
            return Err(gone(&entry.planner.name));
        }
        let message = "its configuration was changed".to_owned();
        let event =
            HostedEvent { at: Moment::now(), kind: HostedEventKind::Changed, message, details: json!({}) };
        self.history.add(entry.planner.id, event);
        self.settle().await?;
        Ok(self.settled(entry, SETTLED_DEADLINE).await)
    }

    /// What a person wants from now on, also after a restart of Cofer.
    pub(crate) async fn want(self: &Arc<Self>, entry: &Entry, wanted: Wanted) -> Result<Truth, ApiError> {
        if !self.store.set_hosted_wanted(entry.planner.id, wanted, Moment::now()).await? {
            return Err(gone(&entry.planner.name));
        }
        self.settle().await?;
        Ok(self.settled(entry, SETTLED_DEADLINE).await)
    }

    /// Wants it to run, and starts it also where it ended by itself and was left so.
    pub(crate) async fn start(self: &Arc<Self>, entry: &Entry) -> Result<Truth, ApiError> {
        self.want(entry, Wanted::Running).await?;
        entry.note_command(entry.supervised.start_now());
        Ok(self.settled(entry, SETTLED_DEADLINE).await)
    }

    /// Ends it and starts it anew; one that was stopped is wanted again.
    pub(crate) async fn restart(self: &Arc<Self>, entry: &Entry) -> Result<Truth, ApiError> {
        if !self.store.set_hosted_wanted(entry.planner.id, Wanted::Running, Moment::now()).await? {
            return Err(gone(&entry.planner.name));
        }
        // The supervisor hears it once: being told to restart, it wants to run.
        entry.set_told(Told { wanted: Wanted::Running, ..entry.told() });
        entry.note_command(entry.supervised.restart());
        Ok(self.settled(entry, SETTLED_DEADLINE).await)
    }

    /// Forgets the server and ends it. Its volumes stay.
    pub(crate) async fn remove(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), ApiError> {
        let asked = {
            // Who settles has read the rows: a server that went in between would be taken in again.
            let _one_at_a_time = self.settling.lock().await;
            if !self.store.delete_hosted_server(entry.planner.id).await? {
                return Err(gone(&entry.planner.name));
            }
            self.let_go(entry)
        };
        let mut truth = entry.supervised.truth();
        // With a reason why it is not gone, such as an engine that is away, it goes on without whoever asked.
        let gone_or_not = truth.wait_for(|truth| truth.gone || truth.seen >= asked && truth.reason.is_some());
        let gone = tokio::time::timeout(GONE_DEADLINE, gone_or_not).await;
        if !gone.is_ok_and(|truth| truth.is_ok_and(|truth| truth.gone)) {
            let name = &entry.planner.name;
            tracing::warn!("server {name} is deleted; its sandbox is still being ended");
        }
        Ok(())
    }

    /// Removes the volumes of a server that is gone.
    pub(crate) async fn remove_volumes_of(&self, entry: &Entry) -> Result<(), ApiError> {
        let blueprint = entry.planner.blueprint();
        let paths = &blueprint.config.volumes;
        let mounts =
            volumes::mounts(&self.office.instance, entry.planner.project_id, &entry.planner.name, paths);
        if let Some(home) = blueprint.config.provider.or(blueprint.placed)
            && !mounts.is_empty()
        {
            // Below, an engine that is away has no volumes; of the one that has these that must not be believed.
            self.office.providers.get(home).examine().await?;
        }
        for (provider, volume) in self.volumes().await? {
            if mounts.iter().any(|mount| mount.name == volume.name) {
                self.office.providers.get(provider).remove_volume(&volume.name).await?;
            }
        }
        Ok(())
    }

    /// All volumes of this Cofer, and who has them. An engine that is away has none to show.
    pub(crate) async fn volumes(&self) -> Result<Vec<(ProviderName, Volume)>, ApiError> {
        let mut all = Vec::new();
        let mut refusals = Vec::new();
        for engine in [ProviderName::Docker, ProviderName::Podman] {
            match self.office.providers.get(engine).volumes(&self.office.instance).await {
                Ok(volumes) => all.extend(volumes.into_iter().map(|volume| (engine, volume))),
                Err(error) => refusals.push(error),
            }
        }
        match refusals.pop() {
            Some(error) if refusals.len() == 1 => Err(error.into()),
            _ => Ok(all),
        }
    }

    /// Whether a registered server will want this volume again.
    pub(crate) fn claims_volume(&self, name: &str) -> Option<Arc<Entry>> {
        let claims = |entry: &Arc<Entry>| {
            let planner = &entry.planner;
            let paths = &planner.blueprint().config.volumes;
            let mounts = volumes::mounts(&self.office.instance, planner.project_id, &planner.name, paths);
            mounts.iter().any(|mount| mount.name == name)
        };
        self.fleet.all().into_iter().find(claims)
    }

    pub(crate) async fn events(
        &self,
        server: ServerId,
        before: Option<uuid::Uuid>,
        limit: u32,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.store.hosted_events(server, before, limit).await
    }

    /// The status objects of these, with what they use now.
    pub(crate) async fn statuses(&self, entries: Vec<Arc<Entry>>) -> Vec<ServerStatus> {
        let until = Instant::now() + USAGE_PATIENCE;
        let status = async |entry: Arc<Entry>| {
            let usage = entry.supervised.usage(until).await;
            let truth = entry.supervised.truth().borrow().clone();
            ServerStatus::of(&entry, &truth, usage, Moment::now())
        };
        futures_util::future::join_all(entries.into_iter().map(status)).await
    }

    /// Uses since the last time are written down.
    pub async fn write_down_uses(&self) {
        record::write_down_uses(&self.store, &self.fleet).await;
    }

    /// Ends every server, all at once, and leaves nothing.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.end_all().await;
        self.history.written().await;
        self.write_down_uses().await;
    }

    async fn end_all(&self) {
        let grace = self.office.settings.stop_grace;
        let everybody = self.fleet.all_and_leaving().into_iter();
        let ends = everybody.map(|entry| async move { entry.supervised.shut_down(grace).await });
        let all = futures_util::future::join_all(ends);
        if tokio::time::timeout(grace + SHUT_DOWN_MARGIN, all).await.is_err() {
            tracing::warn!("some hosted servers did not end in time; the next start ends them");
        }
    }

    /// Waits until what was asked last is so, or cannot be.
    async fn settled(&self, entry: &Entry, deadline: Duration) -> Truth {
        let asked = entry.last_command();
        let mut truth = entry.supervised.truth();
        let settled = truth.wait_for(|truth| truth.seen >= asked && has_settled(truth));
        let outcome = match tokio::time::timeout(deadline, settled).await {
            Ok(Ok(truth)) => Some(truth.clone()),
            Ok(Err(_)) | Err(_) => None,
        };
        outcome.unwrap_or_else(|| entry.supervised.truth().borrow().clone())
    }

    async fn check_secrets(&self, project: ProjectId, config: &HostedConfig) -> Result<(), ApiError> {
        let opened = self.office.open_secrets_named_by(project, config).await;
        opened.map(|_| ()).map_err(|error| match error.kind {
            Kind::Invalid => ApiError::invalid("environment", error.message),
            kind => ApiError::new(kind, error.message),
        })
    }

    async fn require_image(
        &self,
        config: &HostedConfig,
        placed: Option<ProviderName>,
    ) -> Result<(), ApiError> {
        let settings = &self.office.settings;
        let asked = config.provider.or(placed);
        let picked =
            self.office.providers.pick(asked, settings.default_provider, settings.require_sandbox).await?;
        Ok(picked.provider.fetch_image(&config.image, Arc::new(|_| {})).await?)
    }
}

/// Nothing that was asked for is still on its way.
fn has_settled(truth: &Truth) -> bool {
    let at_rest = matches!(
        truth.status,
        HostedStatus::Ready | HostedStatus::Unresponsive | HostedStatus::Stopped | HostedStatus::Error
    );
    // It is to end, and something is in the way: the engine is away.
    let waits = truth.status == HostedStatus::Stopping && truth.reason.is_some();
    at_rest || waits || truth.gone || truth.restart_count > 0 || truth.crash_loop.next_restart_at.is_some()
}

fn gone(name: &ServerName) -> ApiError {
    ApiError::new(Kind::NotFound, format!("server `{name}` was deleted meanwhile"))
}
