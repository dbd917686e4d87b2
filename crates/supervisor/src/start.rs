//! Making a sandbox, or taking one over: the longest errand, and the one that must leave nothing behind.
//!
//! The plan and the image can be given up at any time. A launch is waited for, because an engine that was asked to make a sandbox
//! may do so after we hung up; if it takes too long the caller sweeps up by owner.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cofer_mcp::{Limits, Notification, Pump};
use cofer_model::{Kind, Moment};
use cofer_sandbox::{
    Endpoint, LogSink, Owner, ProgressSink, Provider, SandboxError, SandboxId, SandboxState, Streams,
};
use futures_util::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::logs::{Diary, LogBook};
use crate::machine::About;
use crate::plan::{Bridge, Plan, Planner};
use crate::rules::Rules;
use crate::truth::StartFailure;

/// Whatever was asked for, looking after one server must not keep a processor busy.
const HEALTH_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// What an attempt needs.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub run: u64,
    pub planner: Arc<dyn Planner>,
    pub rules: Arc<Rules>,
    pub book: Arc<LogBook>,
    pub publisher: broadcast::Sender<Arc<Notification>>,
    pub progress: ProgressSink,
    pub cancel: CancellationToken,
}

/// A sandbox that runs, and the way to speak to it.
#[derive(Debug)]
pub(crate) struct Made {
    pub plan: Plan,
    pub sandbox: SandboxId,
    pub endpoints: Vec<Endpoint>,
    pub pump: Option<Pump>,
    pub diary: Arc<Diary>,
    pub running_since: Moment,
    pub warnings: Vec<String>,
    /// When we launched it; `None` where it was taken over.
    pub born_at: Option<Instant>,
    /// How many lines it had said when it was last checked.
    pub lines_at_check: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(crate) struct NotMade {
    pub failure: StartFailure,
    /// Where something may have been left.
    pub sweep: Option<(Arc<dyn Provider>, Owner)>,
}

impl NotMade {
    pub(crate) fn clean(kind: Kind, message: impl Into<String>) -> Self {
        Self { failure: StartFailure::new(kind, message), sweep: None }
    }

    fn cancelled() -> Self {
        Self::clean(Kind::Unavailable, "the start was called off")
    }

    fn late(what: &str, limit: Duration) -> Self {
        Self::clean(Kind::Timeout, format!("{what} took longer than {} s", limit.as_secs()))
    }
}

impl From<SandboxError> for NotMade {
    fn from(error: SandboxError) -> Self {
        let (kind, message, field) = (error.kind(), error.to_string(), error.field());
        Self { failure: StartFailure { kind, message, field }, sweep: None }
    }
}

impl Made {
    pub(crate) fn about(&self) -> About {
        About {
            sandbox: self.sandbox.clone(),
            provider: self.plan.provider.name(),
            isolation: self.plan.isolation,
            endpoints: self.endpoints.clone(),
            running_since: self.running_since,
            restart_policy: self.plan.restart_policy,
            health_interval: self.plan.health_interval.max(HEALTH_INTERVAL_MIN),
            bridged: self.pump.is_some(),
            warnings: self.warnings.clone(),
        }
    }
}

impl Attempt {
    /// A new sandbox.
    pub(crate) async fn launch(self) -> Result<Made, NotMade> {
        let plan = self.plan().await?;
        let limit = self.rules.image_timeout;
        let fetching = timeout(limit, plan.provider.fetch_image(&plan.spec.image, self.progress.clone()));
        tokio::select! {
            () = self.cancel.cancelled() => return Err(NotMade::cancelled()),
            fetched = fetching => fetched.map_err(|_| NotMade::late("fetching the image", limit))??,
        }
        (self.progress)("starting the sandbox".to_owned());
        let diary = Arc::new(Diary::new(self.book.clone(), plan.mask.clone()));
        let limit = self.rules.launch_timeout;
        // A provider that panics has perhaps made something, like one that fails.
        let launching = AssertUnwindSafe(plan.provider.launch(&plan.spec, sink(&diary))).catch_unwind();
        let launched = timeout(limit, launching).await;
        let launched = match launched {
            Ok(Ok(Ok(launched))) => launched,
            Ok(Ok(Err(error))) => return Err(swept(&plan, error.into())),
            Ok(Err(_panic)) => {
                return Err(swept(&plan, NotMade::clean(Kind::Internal, "the launch broke off")));
            }
            Err(_) => return Err(swept(&plan, NotMade::late("launching the sandbox", limit))),
        };
        let mut warnings = plan.warnings.clone();
        warnings.extend(launched.warnings);
        Ok(Made {
            sandbox: launched.id,
            endpoints: launched.endpoints,
            pump: self.connect(&plan, launched.streams),
            diary,
            running_since: Moment::now(),
            warnings,
            born_at: Some(Instant::now()),
            lines_at_check: Arc::default(),
            plan,
        })
    }

    /// The sandbox of an earlier life, if it can be had.
    pub(crate) async fn adopt(self, provider: Arc<dyn Provider>, id: SandboxId) -> Result<Made, NotMade> {
        let plan = self.plan().await?;
        if plan.provider.name() != provider.name() {
            return Err(NotMade::clean(Kind::Conflict, "it is to run elsewhere now"));
        }
        let limit = self.rules.engine_timeout;
        let adopting = timeout(limit, self.take_over(plan, id));
        tokio::select! {
            () = self.cancel.cancelled() => Err(NotMade::cancelled()),
            adopted = adopting => adopted.map_err(|_| NotMade::late("taking over the sandbox", limit))?,
        }
    }

    async fn take_over(&self, plan: Plan, id: SandboxId) -> Result<Made, NotMade> {
        let bridged = matches!(plan.bridge, Bridge::Stdio { .. });
        let can = plan.provider.examine().await?;
        if bridged && !can.reattach {
            return Err(NotMade::clean(Kind::Invalid, "its streams cannot be attached anew"));
        }
        let seen = plan.provider.look(&id).await?;
        let Some((SandboxState::Running { since }, endpoints)) =
            seen.map(|seen| (seen.state, seen.endpoints))
        else {
            return Err(NotMade::clean(Kind::NotFound, "it no longer runs"));
        };
        let diary = Arc::new(Diary::new(self.book.clone(), plan.mask.clone()));
        let streams = match plan.provider.attach(&id, sink(&diary)).await {
            Ok(mut streams) if bridged => {
                // Half a line of whoever wrote before us must not spoil our first message.
                let fresh_line = async {
                    streams.stdin.write_all(b"\n").await?;
                    streams.stdin.flush().await
                };
                fresh_line.await.map_err(|error| NotMade::clean(Kind::Upstream, error.to_string()))?;
                Some(streams)
            }
            Ok(streams) => Some(streams),
            Err(error) if bridged => return Err(error.into()),
            // Its log is not worth a restart.
            Err(_) => None,
        };
        Ok(Made {
            sandbox: id,
            endpoints,
            pump: self.connect(&plan, streams),
            diary,
            running_since: since,
            warnings: Vec::new(),
            born_at: None,
            lines_at_check: Arc::default(),
            plan,
        })
    }

    async fn plan(&self) -> Result<Plan, NotMade> {
        let limit = self.rules.plan_timeout;
        tokio::select! {
            () = self.cancel.cancelled() => Err(NotMade::cancelled()),
            plan = timeout(limit, self.planner.plan(self.run)) => match plan {
                Ok(Ok(plan)) => Ok(plan),
                Ok(Err(error)) => Err(NotMade::clean(error.kind, error.message)),
                Err(_) => Err(NotMade::late("drawing up the plan", limit)),
            },
        }
    }

    fn connect(&self, plan: &Plan, streams: Option<Streams>) -> Option<Pump> {
        let Streams { stdin, mut stdout } = streams?;
        match plan.bridge {
            Bridge::Stdio { in_flight_max, queue_max, message_bytes_max } => {
                let limits = Limits { in_flight_max, queue_max, message_bytes_max };
                Some(Pump::start_publishing(stdin, stdout, limits, self.publisher.clone()))
            }
            Bridge::Http { .. } => {
                // Its log comes while this is read; it ends with the sandbox, or with the run.
                let cancel = self.cancel.clone();
                tokio::spawn(async move {
                    let mut nowhere = tokio::io::sink();
                    let drain = tokio::io::copy(&mut stdout, &mut nowhere);
                    let _ = cancel.run_until_cancelled(drain).await;
                });
                None
            }
        }
    }
}

fn swept(plan: &Plan, not_made: NotMade) -> NotMade {
    NotMade { sweep: Some((plan.provider.clone(), plan.spec.owner.clone())), ..not_made }
}

fn sink(diary: &Arc<Diary>) -> LogSink {
    let diary = diary.clone();
    Arc::new(move |stream, chunk| diary.take(stream, chunk))
}

/// Ends what was made, politely if there is a grace, and removes it. `Err` says why something may be left.
pub(crate) async fn tear_down(
    provider: Arc<dyn Provider>,
    sandbox: SandboxId,
    pump: Option<Pump>,
    grace: Option<Duration>,
    limit: Duration,
) -> Result<(), String> {
    let late = |_| "the engine does not answer in time".to_owned();
    if let Some(grace) = grace {
        let stopped = timeout(grace + limit, provider.stop(&sandbox, grace)).await.map_err(late)?;
        // Any other failure does not matter: destroying it is less polite and does as well.
        if let Err(error @ SandboxError::Unavailable { .. }) = stopped {
            return Err(error.to_string());
        }
    }
    if let Some(pump) = pump {
        pump.close();
    }
    match timeout(limit, provider.destroy(&sandbox)).await.map_err(late)? {
        Ok(()) | Err(SandboxError::Gone { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Removes whatever a launch that failed may have left.
pub(crate) async fn sweep(provider: Arc<dyn Provider>, owner: Owner, limit: Duration) -> Result<(), String> {
    let sweeping = async {
        for seen in provider.list(&owner.instance).await? {
            if seen.owner.kind == owner.kind && seen.owner.id == owner.id {
                provider.destroy(&seen.id).await?;
            }
        }
        Ok::<(), SandboxError>(())
    };
    let swept =
        timeout(limit, sweeping).await.map_err(|_| "the engine does not answer in time".to_owned())?;
    swept.map_err(|error| error.to_string())
}
