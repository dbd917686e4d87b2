//! Agents' runs: begun by a request, under way without it, ended by the model, a limit, a word, or the end of Cofer.
//!
//! ```text
//!   POST …/chat ──► begin ──► a row, a place among the living ──► a task of its own: cofer_agent::run
//!        ▲                                                          │        │         │
//!        └────────────── Listener ◄──────── Outlet ◄────────────────┘     journal   ProjectTools
//! ```
//!
//! A run goes on when its client leaves or does not keep up: what it does is in the record, and `cancel` ends it.

mod journal;
mod outlet;
mod tools;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofer_agent::{
    Asked, Blocks, Claude, Event, Failure, Journal, Limits, Message, Outcome, Patterns, Person, Said, Wishes,
    World,
};
use cofer_gateway::{Caller, Gateway, Project};
use cofer_model::mask::Mask;
use cofer_model::{Kind, Moment, ProjectId, RunId, RunRecord, RunStatus, SecretName, Speaker, Usage};
use cofer_store::{RunProgress, Store};
use secrecy::SecretString;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use outlet::{Listener, Told};

use crate::http::ApiError;
use crate::http::error::chain;
use crate::keyring::KeyRing;
use crate::settings::AgentSettings;
use crate::telemetry::metrics;
use journal::{Place, StoredJournal};
use outlet::{Outlet, outlet};
use tools::ProjectTools;

const KEY_NAME: &str = "ANTHROPIC_API_KEY";
/// More was never said in one run.
const MESSAGES_MAX: u32 = 100_000;
/// How often a run says that it is still under way, and after how long one that does not is taken to be gone.
const HEARTBEAT: Duration = Duration::from_secs(10);
const SILENT_AFTER: Duration = Duration::from_secs(35);
const FORGET_EVERY: Duration = Duration::from_hours(1);
/// How long runs may take to write down that they were stopped.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// All runs of this process.
#[derive(Debug)]
pub struct Agents {
    store: Store,
    keyring: Arc<KeyRing>,
    gateway: Arc<Gateway>,
    settings: AgentSettings,
    /// For projects that have none of their own.
    key: Option<SecretString>,
    http: reqwest::Client,
    live: Mutex<HashMap<RunId, Arc<Live>>>,
    tasks: TaskTracker,
    chores: Mutex<Chores>,
}

#[derive(Debug)]
struct Chores {
    heartbeat: Instant,
    forgotten: Option<Instant>,
}

/// A run under way.
#[derive(Debug)]
pub struct Live {
    stop: CancellationToken,
    /// Why it was stopped, if not because somebody wanted it so.
    is_shutdown: std::sync::atomic::AtomicBool,
    approvals: Mutex<HashMap<Uuid, (Asked, oneshot::Sender<bool>)>>,
    outlet: Outlet,
    over: watch::Sender<bool>,
}

/// What a caller wants.
#[derive(Debug)]
pub struct Turn {
    pub project: Arc<Project>,
    pub said: Vec<(Speaker, Blocks)>,
    pub model: Option<String>,
    pub system: Option<String>,
    pub resume: Option<RunId>,
    pub limits: Limits,
    pub tools: Patterns,
    pub approve: Option<Patterns>,
    pub caller: String,
    pub trace_id: String,
}

/// How a run ended, for whoever listens.
#[derive(Debug)]
pub struct Ended {
    pub run: RunId,
    pub outcome: Outcome,
}

impl Agents {
    pub fn new(
        store: Store,
        keyring: Arc<KeyRing>,
        gateway: Arc<Gateway>,
        settings: AgentSettings,
        key: Option<SecretString>,
    ) -> Self {
        let is_here = url::Url::parse(&settings.base_url).is_ok_and(|url| is_loopback(&url));
        // A proxy for the wide world has no business between two processes of one machine.
        let http =
            if is_here { cofer_mcp::wire::direct_http_client() } else { cofer_mcp::wire::http_client() };
        let chores = Mutex::new(Chores { heartbeat: Instant::now(), forgotten: None });
        let (live, tasks) = (Mutex::default(), TaskTracker::new());
        Self { store, keyring, gateway, settings, key, http, live, tasks, chores }
    }

    pub fn settings(&self) -> &AgentSettings {
        &self.settings
    }

    /// Begins a turn of a new run, or of one that is there. Its task ends without anybody's help.
    pub async fn begin(self: &Arc<Self>, turn: Turn) -> Result<(RunId, Listener), ApiError> {
        let (claude, mask) = self.model(turn.project.id).await?;
        let id = turn.resume.unwrap_or_else(RunId::generate);
        let (outlet, listener) = outlet();
        let place = self.take_place(id, outlet)?;
        let (wishes, messages, journal) = self.prepare(id, &turn, mask).await?;
        let caller = Caller { name: turn.caller, trace_id: turn.trace_id, run: Some(id), step: None };
        let tools = ProjectTools { project: turn.project, caller };
        let agents = self.clone();
        self.tasks.spawn(async move {
            let live = place.live.clone();
            let watcher = Watcher(&live);
            let world = World { model: &claude, tools: &tools, journal: &journal, person: &watcher };
            let rules = agents.settings.rules;
            let outcome = cofer_agent::run(world, &wishes, &rules, messages, &live.stop).await;
            agents.end(id, &live, outcome).await;
            drop(place);
        });
        Ok((id, listener))
    }

    /// The model with the project's key, and a mask for all of the project's secrets.
    async fn model(&self, project: ProjectId) -> Result<(Claude, Mask), ApiError> {
        let secrets = self.keyring.open_secrets(project).await?;
        let mut mask = Mask::default();
        for secret in secrets.values() {
            mask.hide(secret);
        }
        let name = SecretName::try_from(KEY_NAME.to_owned()).ok();
        let own = name.and_then(|name| secrets.get(&name).cloned());
        let Some(key) = own.or_else(|| self.key.clone()) else {
            let message = format!(
                "there is no key for the model's API; give the project one with `cofer secret set {KEY_NAME}`, or start Cofer with that variable"
            );
            return Err(ApiError::new(Kind::PreconditionFailed, message));
        };
        mask.hide(&key);
        let claude = Claude::new(self.http.clone(), &self.settings.base_url, key);
        let claude = claude.map_err(|error| ApiError::new(Kind::Internal, error.to_string()))?;
        Ok((claude, mask))
    }

    fn take_place(self: &Arc<Self>, id: RunId, outlet: Outlet) -> Result<LivePlace, ApiError> {
        let mut all = self.live();
        if all.contains_key(&id) {
            return Err(still_running());
        }
        if all.len() >= self.settings.runs_max {
            let message = format!(
                "{} runs are under way, which is the most there may be; try again when one has ended",
                self.settings.runs_max
            );
            return Err(ApiError::new(Kind::LimitExceeded, message));
        }
        let live = Arc::new(Live {
            stop: CancellationToken::new(),
            is_shutdown: false.into(),
            approvals: Mutex::default(),
            outlet,
            over: watch::Sender::new(false),
        });
        all.insert(id, live.clone());
        metrics::run_began();
        Ok(LivePlace { agents: self.clone(), id, live })
    }

    /// Everything that is read and written before the model is asked.
    async fn prepare(
        &self,
        id: RunId,
        turn: &Turn,
        mask: Mask,
    ) -> Result<(Wishes, Vec<Message>, StoredJournal), ApiError> {
        let before = match turn.resume {
            Some(id) => Some(self.resumed(id, turn).await?),
            None => None,
        };
        let (run, mut said) = match before {
            Some(before) => before,
            None => (self.created(id, turn).await?, Vec::new()),
        };
        let progress = RunProgress { steps: run.steps, usage: run.usage };
        let position = i64::try_from(said.len()).unwrap_or(i64::MAX);
        let journal = StoredJournal::open(self.store.clone(), Place { run: id, position, progress }, mask);
        for (speaker, content) in &turn.said {
            let (speaker, content) = (*speaker, content.clone());
            journal.note(Said { step: run.steps, speaker, content, usage: Usage::default() });
        }
        said.extend(turn.said.iter().cloned());
        let wishes = Wishes {
            model: run.model,
            system: run.system,
            tools: turn.tools.clone(),
            approve: turn.approve.clone(),
            limits: turn.limits,
            steps_before: run.steps,
        };
        Ok((wishes, cofer_agent::transcript(said), journal))
    }

    async fn created(&self, id: RunId, turn: &Turn) -> Result<RunRecord, ApiError> {
        let now = Moment::now();
        let run = RunRecord {
            id,
            project_id: turn.project.id,
            status: RunStatus::Running,
            reason: None,
            error: None,
            model: turn.model.clone().unwrap_or_else(|| self.settings.model.clone()),
            system: turn.system.clone(),
            steps: 0,
            usage: Usage::default(),
            caller: Some(turn.caller.clone()),
            trace_id: Some(turn.trace_id.clone()),
            created_at: now,
            updated_at: now,
        };
        self.store.create_run(&run).await?;
        Ok(run)
    }

    /// One that is there, set going again, and what was said in it.
    async fn resumed(&self, id: RunId, turn: &Turn) -> Result<(RunRecord, Vec<(Speaker, Blocks)>), ApiError> {
        let found = self.store.run(turn.project.id, id).await?;
        let mut run = found.ok_or_else(|| no_such_run(id))?;
        let messages = self.store.run_messages(id, 0, MESSAGES_MAX).await?;
        let said: Vec<_> =
            messages.into_iter().map(|message| (message.role, journal::blocks(&message.content))).collect();
        let is_answered = cofer_agent::transcript(said.clone())
            .last()
            .is_none_or(|last| last.role == cofer_agent::Role::Assistant);
        if turn.said.is_empty() && is_answered {
            let message = "the model has said its last word in this run; say something with `message`";
            return Err(ApiError::invalid("message", message));
        }
        run.model = turn.model.clone().unwrap_or(run.model);
        run.system = turn.system.clone().or(run.system);
        if !self.store.resume_run(id, &run.model, run.system.as_deref(), Moment::now()).await? {
            return Err(still_running());
        }
        Ok((run, said))
    }

    /// Writes down how it ended, then tells.
    async fn end(&self, id: RunId, live: &Live, mut outcome: Outcome) {
        if live.is_shutdown.load(std::sync::atomic::Ordering::Relaxed)
            && outcome.status == RunStatus::Cancelled
        {
            (outcome.status, outcome.reason) = (RunStatus::Failed, "error".to_owned());
            outcome.error = Some(Failure::Interrupted);
        }
        // Whoever reads the record after the end finds all of it.
        self.gateway.recorded().await;
        let error = outcome.error.as_ref().map(ToString::to_string);
        if let Some(error) = &error {
            tracing::warn!(run.id = %id, "run {id} failed: {error}");
        }
        let ended = self.store.end_run(id, outcome.status, &outcome.reason, error.as_deref(), Moment::now());
        if let Err(error) = ended.await {
            tracing::error!(run.id = %id, "the end of run {id} could not be recorded: {}", chain(&error));
        }
        metrics::run_ended(outcome.status);
        live.outlet.tell(Told::Done(Ended { run: id, outcome }));
    }

    /// Ends a run that is under way here, and waits until it has ended. Says whether there was one.
    pub async fn cancel(&self, id: RunId) -> bool {
        let Some(live) = self.living(id) else { return false };
        live.stop.cancel();
        let mut over = live.over.subscribe();
        let _ = tokio::time::timeout(STOP_GRACE, over.wait_for(|over| *over)).await;
        true
    }

    /// Answers whether something may be called. `false` if nobody asks that (any more).
    pub fn answer(&self, id: RunId, approval: Uuid, allow: bool) -> bool {
        let Some(live) = self.living(id) else { return false };
        let asked = live.approvals().remove(&approval);
        asked.is_some_and(|(_, answer)| answer.send(allow).is_ok())
    }

    /// What a run waits to be allowed.
    pub fn asked(&self, id: RunId) -> Vec<Asked> {
        let Some(live) = self.living(id) else { return Vec::new() };
        let mut asked: Vec<_> = live.approvals().values().map(|(asked, _)| asked.clone()).collect();
        asked.sort_by_key(|asked| asked.approval_id);
        asked
    }

    fn living(&self, id: RunId) -> Option<Arc<Live>> {
        self.live().get(&id).cloned()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What somebody left behind who is gone. A database that is ours alone has only what we left ourselves.
    pub async fn recover(&self) {
        let now = Moment::now();
        let since = if self.store.is_shared() { before(now, SILENT_AFTER) } else { now.after(SILENT_AFTER) };
        match self.store.end_silent_runs(since, &Failure::Interrupted.to_string(), now).await {
            Ok(0) => {}
            Ok(runs) => tracing::info!("{runs} runs were interrupted by the end of a Cofer"),
            Err(error) => {
                tracing::warn!("runs that were interrupted still read as running: {}", chain(&error));
            }
        }
    }

    /// Done now and then: says of each run that it is under way, and forgets what is too old.
    pub async fn tend(&self) {
        let (beats, forgets) = {
            let (mut chores, now) =
                (self.chores.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
            let beats = now.duration_since(chores.heartbeat) >= HEARTBEAT;
            let forgets = chores.forgotten.is_none_or(|at| now.duration_since(at) >= FORGET_EVERY);
            if beats {
                chores.heartbeat = now;
            }
            if forgets {
                chores.forgotten = Some(now);
            }
            (beats, forgets)
        };
        if beats && self.store.is_shared() {
            self.beat().await;
        }
        if let Some(keep_for) = self.settings.keep_for.filter(|_| forgets)
            && let Err(error) = self.forget(before(Moment::now(), keep_for)).await
        {
            tracing::warn!("old runs are kept for now: {}", chain(&error));
        }
    }

    /// Where others share the database, they know by this that a run is not for them to end.
    async fn beat(&self) {
        let live: Vec<RunId> = self.live().keys().copied().collect();
        if let Err(error) = self.store.touch_runs(&live, Moment::now()).await {
            tracing::debug!("runs could not say that they are under way: {}", chain(&error));
        }
        self.recover().await;
    }

    async fn forget(&self, before: Moment) -> Result<(), cofer_store::StoreError> {
        for project in self.store.projects().await? {
            while self.store.drop_runs_before(project.id, before).await? > 0 {}
            while self.store.drop_calls_before(project.id, before).await? > 0 {}
        }
        Ok(())
    }

    /// Stops every run, and waits until each has written so.
    pub async fn stop(&self) {
        let all: Vec<_> = self.live().values().cloned().collect();
        for live in all {
            live.is_shutdown.store(true, std::sync::atomic::Ordering::Relaxed);
            live.stop.cancel();
        }
        self.tasks.close();
        if tokio::time::timeout(STOP_GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!("{} runs were still under way at the end", self.tasks.len());
        }
    }
}

impl Live {
    fn approvals(&self) -> MutexGuard<'_, HashMap<Uuid, (Asked, oneshot::Sender<bool>)>> {
        self.approvals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run's place among the living, given up when it is over, however that came.
#[derive(Debug)]
struct LivePlace {
    agents: Arc<Agents>,
    id: RunId,
    live: Arc<Live>,
}

impl Drop for LivePlace {
    fn drop(&mut self) {
        self.agents.live().remove(&self.id);
        metrics::run_left();
        self.live.over.send_replace(true);
    }
}

/// Tells whoever listens, and asks them.
#[derive(Debug)]
struct Watcher<'a>(&'a Live);

#[async_trait]
impl Person for Watcher<'_> {
    fn tell(&self, event: Event) {
        self.0.outlet.tell(Told::Event(event));
    }

    async fn allows(&self, asked: Asked) -> bool {
        let (answer, answered) = oneshot::channel();
        let id = asked.approval_id;
        self.0.approvals().insert(id, (asked.clone(), answer));
        let _struck = Struck(self.0, id);
        self.0.outlet.tell(Told::Approval(asked));
        answered.await.unwrap_or(false)
    }
}

/// A question that nobody waits for any more is not asked.
struct Struck<'a>(&'a Live, Uuid);

impl Drop for Struck<'_> {
    fn drop(&mut self) {
        self.0.approvals().remove(&self.1);
    }
}

pub fn no_such_run(id: RunId) -> ApiError {
    ApiError::new(Kind::NotFound, format!("there is no run `{id}`"))
}

fn still_running() -> ApiError {
    ApiError::new(Kind::Conflict, "this run is under way; wait for its end, or cancel it")
}

fn before(now: Moment, time: Duration) -> Moment {
    let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Moment::from_unix_ms(now.unix_ms().saturating_sub(ms))
}

fn is_loopback(url: &url::Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
