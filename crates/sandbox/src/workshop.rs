//! A container that stays, and commands in it at the cost of a local shell.
//!
//! The helper (`crates/inside`) is mounted read-only into the container and is its first process. Commands come to it over a socket in a directory
//! that both sides see, so no engine is asked. Where the socket cannot be reached (gVisor keeps sockets to itself) the same helper is started by
//! the engine's own exec for each command, and spoken to in the same words.
//!
//! ```text
//!   Workshop::start ──► sock ──────────────► helper (pid 1) ─► warden ─► command
//!               └─ not reachable ─► engine exec ─────────────► warden ─► command
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofer_inside::{Deed, Reason};
use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::command::{self, Lifeline, NoAnswer};
use crate::{
    BindMount, CommandSpec, Launched, Provider, Rights, RunningCommand, SandboxError, SandboxId, SandboxSpec,
    SandboxState, Stdio, Streams, channel, helper,
};

/// Where the helper and its channel are in the container.
const HELPER_INSIDE: &str = "/.cofer/inside";
const CHANNEL_INSIDE: &str = "/.cofer/channel";
const READY_MAX: Duration = Duration::from_secs(30);
const READY_LOOK_FIRST: Duration = Duration::from_millis(1);
const READY_LOOK_MAX: Duration = Duration::from_millis(20);
/// How often it is looked whether the container, which is not ready, has ended.
const ENDED_LOOK_EVERY: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A big tree of files takes its time.
const FILES_MAX: Duration = Duration::from_mins(5);

/// A container with our helper inside.
#[derive(Debug)]
pub struct Workshop {
    provider: Arc<dyn Provider>,
    id: SandboxId,
    channel: PathBuf,
    /// Found out at the first command: the socket cannot be reached.
    by_exec: AtomicBool,
}

/// What became of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub changed: u32,
    /// So many could not be.
    pub failed: u32,
}

impl Workshop {
    /// Adds the helper, its channel and the entrypoint to `spec`, launches it, and returns when the helper answers. Commands run as the user that
    /// `spec` or the image names.
    pub async fn launch(
        provider: Arc<dyn Provider>,
        spec: SandboxSpec,
        channel: &Path,
        helper_dir: &Path,
    ) -> Result<(Self, Launched), SandboxError> {
        Self::bring_up(provider, spec, None, channel, helper_dir).await
    }

    /// A background one: `main` runs as the container's main job, and the container ends as it does. It has neither stdin nor a terminal; what it
    /// says is in the [`log`](Self::log).
    pub async fn launch_main(
        provider: Arc<dyn Provider>,
        spec: SandboxSpec,
        main: &CommandSpec,
        channel: &Path,
        helper_dir: &Path,
    ) -> Result<(Self, Launched), SandboxError> {
        Self::bring_up(provider, spec, Some(main), channel, helper_dir).await
    }

    /// One that runs already, perhaps launched by another process.
    pub fn at(provider: Arc<dyn Provider>, id: SandboxId, channel: &Path) -> Self {
        Self { provider, id, channel: channel.to_owned(), by_exec: AtomicBool::new(false) }
    }

    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    async fn bring_up(
        provider: Arc<dyn Provider>,
        mut spec: SandboxSpec,
        main: Option<&CommandSpec>,
        channel: &Path,
        helper_dir: &Path,
    ) -> Result<(Self, Launched), SandboxError> {
        let refused = |reason: String| SandboxError::Refused { provider: provider.name(), reason };
        channel::prepare(channel).map_err(|error| {
            refused(format!("the directory {} cannot be used: {error}", channel.display()))
        })?;
        let helper = helper::write_out(helper_dir).map_err(|error| {
            refused(format!("the helper could not be written to {}: {error}", helper_dir.display()))
        })?;
        let user = take_user(provider.as_ref(), &mut spec).await?;
        furnish(&mut spec, &helper, channel, user, main);
        let launched = provider.launch(&spec, Arc::new(|_, _| ())).await?;
        let mut unready = Unready { provider: Arc::clone(&provider), id: Some(launched.id.clone()) };
        let workshop = Self::at(provider, launched.id.clone(), channel);
        let begun = workshop.begun(main.is_some()).await;
        unready.id = None;
        if let Err(error) = begun {
            // One that cannot be destroyed now is listed, and destroyed by whoever looks.
            let _ = workshop.provider.destroy(&workshop.id).await;
            return Err(error);
        }
        Ok((workshop, launched))
    }

    /// Returns when the helper answers. A background command may have ended by then, and that is for others to judge.
    async fn begun(&self, is_main: bool) -> Result<(), SandboxError> {
        let deadline = Instant::now() + READY_MAX;
        let mut look_at_container = Instant::now() + ENDED_LOOK_EVERY;
        let mut pause = READY_LOOK_FIRST;
        while !channel::is_ready(&self.channel) {
            if Instant::now() >= look_at_container {
                look_at_container = Instant::now() + ENDED_LOOK_EVERY;
                self.still_runs().await?;
            }
            if Instant::now() >= deadline {
                return Err(self.broken(&format!("the helper was not ready within {READY_MAX:?}")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(READY_LOOK_MAX);
        }
        if is_main { Ok(()) } else { self.deed(&Deed::Ping, ANSWER_MAX).await.map(|_| ()) }
    }

    async fn still_runs(&self) -> Result<(), SandboxError> {
        match self.provider.look(&self.id).await?.map(|sighting| sighting.state) {
            Some(SandboxState::Ended(exit)) => {
                let code = exit.code.map_or_else(String::new, |code| format!(" with code {code}"));
                Err(self.broken(&format!(
                    "the helper ended at once{code}; can programs of this machine run in the image?"
                )))
            }
            Some(_) => Ok(()),
            None => Err(SandboxError::Gone { id: self.id.clone() }),
        }
    }

    pub async fn start(&self, command: &CommandSpec) -> Result<RunningCommand, SandboxError> {
        let streams = self.connect().await?;
        let lifeline = self.by_exec.load(Ordering::Relaxed).then(|| self.lifeline());
        let started = RunningCommand::start(streams, lifeline, command).await;
        started.map_err(|error| self.no_answer(error))
    }

    fn lifeline(&self) -> Lifeline {
        let (provider, id) = (Arc::clone(&self.provider), self.id.clone());
        Arc::new(move || {
            let (provider, id) = (Arc::clone(&provider), id.clone());
            async move {
                // An engine that does not answer says nothing of the container.
                let seen = provider.look(&id).await;
                seen.map_or(true, |seen| {
                    seen.is_some_and(|seen| matches!(seen.state, SandboxState::Running { .. }))
                })
            }
            .boxed()
        })
    }

    /// What a background one said last, also after its end: the newest 64 to 128 KiB.
    pub fn log(&self) -> io::Result<Vec<u8>> {
        channel::log(&self.channel)
    }

    /// Gives what is below a directory of the container, and does not belong to them yet, to a user of the host. Under a rootless engine the
    /// host's user is the container's root.
    pub async fn own(&self, path: &str, uid: u32, gid: u32) -> Result<Changed, SandboxError> {
        let rootless = self.provider.examine().await?.rootless;
        let (uid, gid) = if rootless { (0, 0) } else { (uid, gid) };
        self.deed(&Deed::Own { path: path.as_bytes().to_vec(), uid, gid }, FILES_MAX).await
    }

    /// Empties a directory of the container. Links are removed, not followed; what is mounted there is left.
    pub async fn wipe(&self, path: &str) -> Result<Changed, SandboxError> {
        self.deed(&Deed::Wipe { path: path.as_bytes().to_vec() }, FILES_MAX).await
    }

    async fn deed(&self, deed: &Deed, patience: Duration) -> Result<Changed, SandboxError> {
        let streams = self.connect().await?;
        let done = command::deed(streams, deed, patience).await;
        let (changed, failed) = done.map_err(|error| self.no_answer(error))?;
        Ok(Changed { changed, failed })
    }

    async fn connect(&self) -> Result<Streams, SandboxError> {
        if !self.by_exec.load(Ordering::Relaxed) {
            match channel::connect(&self.channel).await {
                Ok(stream) => {
                    let (source, drain) = stream.into_split();
                    return Ok(Streams { stdin: Box::new(drain), stdout: Box::new(source) });
                }
                Err(error) => {
                    tracing::debug!(sandbox = %self.id, "the helper of sandbox {} is reached by exec: {error}", self.id);
                    self.by_exec.store(true, Ordering::Relaxed);
                }
            }
        }
        let argv = [HELPER_INSIDE.to_owned(), "warden".to_owned()];
        self.provider.exec(&self.id, &argv).await
    }

    fn no_answer(&self, error: NoAnswer) -> SandboxError {
        match error {
            NoAnswer::Refused(Reason::NotFound | Reason::NotAllowed, reason) => {
                SandboxError::NotStarted { reason }
            }
            NoAnswer::Refused(Reason::NotUnderstood | Reason::Failed, reason) => self.broken(&reason),
            NoAnswer::Broken(error) => {
                self.broken(&format!("the helper in the container does not answer: {error}"))
            }
        }
    }

    fn broken(&self, reason: &str) -> SandboxError {
        SandboxError::Unavailable { provider: self.provider.name(), reason: reason.to_owned() }
    }
}

/// A container whose helper has not answered yet. Dropped before that, it takes the container away.
struct Unready {
    provider: Arc<dyn Provider>,
    id: Option<SandboxId>,
}

impl Drop for Unready {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let provider = Arc::clone(&self.provider);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { provider.destroy(&id).await });
        }
    }
}

/// The helper is root, to be able to start commands as whoever they should run as; without that right the container runs as that user.
async fn take_user(provider: &dyn Provider, spec: &mut SandboxSpec) -> Result<Option<String>, SandboxError> {
    if spec.rights == Rights::Dropped {
        return Ok(None);
    }
    let user = match spec.user.take() {
        Some(user) => Some(user),
        None => provider.image(&spec.image).await?.user,
    };
    spec.user = Some("0:0".to_owned());
    Ok(user.filter(|user| !matches!(user.as_str(), "0" | "root" | "0:0" | "root:root")))
}

fn furnish(
    spec: &mut SandboxSpec,
    helper: &Path,
    channel: &Path,
    user: Option<String>,
    main: Option<&CommandSpec>,
) {
    let bind = |source: &Path, target: &str, read_only| BindMount {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only,
    };
    spec.binds.push(bind(helper, HELPER_INSIDE, true));
    spec.binds.push(bind(channel, CHANNEL_INSIDE, false));
    let part = if main.is_some() { "main" } else { "serve" };
    let mut entrypoint: Vec<_> = [HELPER_INSIDE, part, CHANNEL_INSIDE].map(ToOwned::to_owned).into();
    entrypoint.extend(user.into_iter().flat_map(|user| ["--user".to_owned(), user]));
    if let Some(main) = main {
        entrypoint.push("--".to_owned());
        entrypoint.extend(main.argv.clone());
        spec.environment.extend(main.environment.clone());
        spec.workdir = main.workdir.clone().or(spec.workdir.take());
    }
    spec.entrypoint = Some(entrypoint);
    spec.cmd = None;
    spec.stdio = Stdio::None;
}
