//! The small questions: does it answer, does it live, how did it end, how many tools has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofer_mcp::{CallError, Face, Notification, Pump, Reply, shake_hands};
use cofer_sandbox::{Provider, SandboxError, SandboxId, SandboxState, Sighting};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

use crate::logs::Diary;
use crate::machine::{Checked, News, Seen};
use crate::plan::{Bridge, Facts};
use crate::probe;
use crate::rules::Rules;
use crate::start::Made;

/// After a sandbox has ended, what it said last is still on its way to us.
const LAST_WORDS: Duration = Duration::from_secs(1);
const TOOLS_TIMEOUT: Duration = Duration::from_secs(10);
const TOOL_PAGES_MAX: usize = 100;
/// A server that announces new tools all the time is asked no more often than this.
const RECOUNT_AFTER: Duration = Duration::from_secs(1);

/// Whom a run is spoken to.
#[derive(Clone)]
pub(crate) enum Peer {
    Stdio(Pump),
    /// `None` where no port is published: there is nothing to knock at.
    Http {
        host_port: Option<u16>,
        path: String,
    },
}

impl Peer {
    pub(crate) fn of(made: &Made) -> Self {
        let path = match &made.plan.bridge {
            Bridge::Http { path } => path.clone(),
            Bridge::Stdio { .. } => String::new(),
        };
        match &made.pump {
            Some(pump) => Self::Stdio(pump.clone()),
            None => Self::Http { host_port: made.endpoints.first().map(|endpoint| endpoint.host_port), path },
        }
    }

    /// Waits until it has answered. `None` when it never will.
    pub(crate) async fn greet(self, adopted: bool, rules: Arc<Rules>) -> Option<News> {
        let patience = rules.handshake_patience;
        match self {
            // One that was greeted by our predecessor must not be greeted twice.
            Self::Stdio(pump) if adopted => {
                lives(&pump.call_aside("ping", None, patience).await).then(|| News::Greeted(Facts::default()))
            }
            Self::Stdio(pump) => match shake_hands(&pump, &Face::default(), patience).await {
                Ok(hands) => Some(News::Greeted(Facts {
                    protocol_version: hands.protocol_version,
                    server_info: hands.server_info,
                    tool_count: None,
                })),
                Err(error) => lives(&Err(error)).then(|| News::Greeted(Facts::default())),
            },
            Self::Http { host_port: None, .. } => Some(News::Greeted(Facts::default())),
            Self::Http { host_port: Some(port), path } => {
                let stirs = knock_until_alive(port, &path, rules.knock_again);
                timeout(patience, stirs).await.is_ok().then(|| News::Greeted(Facts::default()))
            }
        }
    }

    /// Waits until it says anything.
    pub(crate) async fn listen(self, heard: u64, rules: Arc<Rules>) -> News {
        match self {
            Self::Stdio(pump) => pump.hears_more_than(heard).await,
            Self::Http { host_port: None, .. } => {}
            Self::Http { host_port: Some(port), path } => {
                knock_until_alive(port, &path, 10 * rules.knock_again).await;
            }
        }
        News::Spoke
    }

    /// Whether it lives. `None` when it has ended meanwhile, which is told by others.
    pub(crate) async fn check(
        self,
        lines_at_check: Arc<std::sync::atomic::AtomicU64>,
        rules: Arc<Rules>,
    ) -> Option<Checked> {
        let pump = match self {
            Self::Stdio(pump) => pump,
            Self::Http { host_port: None, .. } => return Some(Checked::Alive),
            Self::Http { host_port: Some(port), path } => {
                let alive = timeout(rules.ping_timeout, probe::is_alive(port, &path)).await.unwrap_or(false);
                return Some(if alive { Checked::Alive } else { Checked::Missed });
            }
        };
        let heard = pump.lines_heard();
        if lines_at_check.swap(heard, Ordering::Relaxed) < heard {
            return Some(Checked::Alive);
        }
        if !pump.is_idle() {
            return Some(Checked::Busy);
        }
        match pump.call_aside("ping", None, rules.ping_timeout).await {
            Err(CallError::Gone | CallError::MayHaveExecuted) => None,
            Err(CallError::Timeout) if pump.lines_heard() == heard => {
                // One that works on a call may well not look up.
                Some(if pump.is_idle() { Checked::Missed } else { Checked::Busy })
            }
            Ok(_) | Err(_) => Some(Checked::Alive),
        }
    }
}

/// Whatever came back came from somebody.
fn lives(answer: &Result<Reply, CallError>) -> bool {
    !matches!(answer, Err(CallError::Gone | CallError::MayHaveExecuted | CallError::Timeout))
}

async fn knock_until_alive(port: u16, path: &str, again: Duration) {
    while !probe::is_alive(port, path).await {
        sleep(again).await;
    }
}

/// How the sandbox does.
pub(crate) async fn look(
    provider: Arc<dyn Provider>,
    sandbox: SandboxId,
    pump: Option<Pump>,
    diary: Arc<Diary>,
    limit: Duration,
) -> Seen {
    let exit = match timeout(limit, provider.look(&sandbox)).await {
        Err(_) => return Seen::Unknown("the engine does not answer in time".to_owned()),
        Ok(Ok(Some(Sighting { state: SandboxState::Running { .. } | SandboxState::Made, .. }))) => {
            return Seen::Running;
        }
        Ok(Ok(Some(Sighting { state: SandboxState::Ended(exit), .. }))) => Some(exit),
        Ok(Ok(None) | Err(SandboxError::Gone { .. })) => None,
        Ok(Err(error)) => return Seen::Unknown(error.to_string()),
    };
    if let Some(pump) = pump {
        // Answers that it gave before it ended are answers.
        let _ = timeout(LAST_WORDS, pump.ended()).await;
    }
    diary.flush();
    let stderr_tail = diary.stderr_tail();
    match exit {
        Some(exit) => Seen::Ended { exit, stderr_tail },
        None => Seen::Gone { stderr_tail },
    }
}

/// When this server says that its tools have changed; `None` when it has ended.
pub(crate) async fn tools_changed(
    pump: &Pump,
    said: &mut broadcast::Receiver<Arc<Notification>>,
) -> Option<()> {
    let changed = async {
        loop {
            match said.recv().await {
                Ok(notification) if notification.method == "notifications/tools/list_changed" => {
                    return Some(());
                }
                Ok(_) => {}
                // It may have been among those.
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(()),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    };
    tokio::select! {
        _ = pump.ended() => None,
        changed = changed => {
            sleep(RECOUNT_AFTER).await;
            *said = said.resubscribe();
            changed
        }
    }
}

/// How many tools it offers, over all pages; `None` if it does not say, or never comes to an end.
pub(crate) async fn count_tools(pump: &Pump) -> Option<u64> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Page<'a> {
        #[serde(borrow)]
        tools: Vec<&'a RawValue>,
        next_cursor: Option<String>,
    }
    let mut count = 0;
    let mut params = None;
    for _ in 0..TOOL_PAGES_MAX {
        let Ok(Reply::Result(page)) = pump.call_aside("tools/list", params, TOOLS_TIMEOUT).await else {
            return None;
        };
        let page: Page<'_> = serde_json::from_str(page.get()).ok()?;
        count += page.tools.len() as u64;
        let Some(cursor) = page.next_cursor else { return Some(count) };
        params = Some(to_raw_value(&serde_json::json!({"cursor": cursor})).ok()?);
    }
    None
}
