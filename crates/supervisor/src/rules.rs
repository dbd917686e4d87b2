//! The numbers that the life of a server keeps to. The defaults are those that callers were promised.

use std::time::Duration;

/// A crash loop without any wait would be one for the whole machine.
const CRASH_DELAY_IF_NONE_IS_SET: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// So many crashes within [`Rules::crash_window`] are a crash loop.
    pub crash_threshold: usize,
    pub crash_window: Duration,
    /// The waits before each restart in a crash loop; the last one is used again.
    pub crash_delays: Vec<Duration>,
    /// Running for so long leaves the crash loop.
    pub stable: Duration,
    /// Between SIGTERM and SIGKILL when a person stops or restarts it.
    pub stop_grace: Duration,
    /// Until a start is tried again while the engine is away.
    pub unavailable_retry: Duration,
    /// At most so much is added to that, for each server differently: a thousand of them do not ask at once.
    pub unavailable_spread: Duration,
    /// Until a start that was refused is tried again.
    pub refused_retry: Duration,
    pub plan_timeout: Duration,
    pub image_timeout: Duration,
    pub launch_timeout: Duration,
    /// For each question to an engine: looking, destroying, listing.
    pub engine_timeout: Duration,
    /// A server that has not answered our greeting by then is called unresponsive.
    pub handshake_timeout: Duration,
    /// Its answer is still taken for so long.
    pub handshake_patience: Duration,
    pub ping_timeout: Duration,
    /// So many pings without an answer, one after the other, make it unresponsive.
    pub misses_max: u32,
    /// A sandbox whose stdout ended and that still runs after this has a broken bridge.
    pub broken_bridge_after: Duration,
    /// Between two looks at a sandbox whose stdout ended.
    pub look_again: Duration,
    /// Between two knocks at the port of an HTTP server that has not answered yet.
    pub knock_again: Duration,
    pub log_lines_max: usize,
    pub log_bytes_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            crash_threshold: 3,
            crash_window: seconds(60),
            crash_delays: [5, 15, 45, 120, 300].map(seconds).to_vec(),
            stable: seconds(60),
            stop_grace: seconds(10),
            unavailable_retry: seconds(3),
            unavailable_spread: seconds(1),
            refused_retry: seconds(300),
            plan_timeout: seconds(30),
            image_timeout: seconds(600),
            launch_timeout: seconds(120),
            engine_timeout: seconds(30),
            handshake_timeout: seconds(10),
            handshake_patience: seconds(600),
            ping_timeout: seconds(10),
            misses_max: 2,
            broken_bridge_after: seconds(2),
            look_again: Duration::from_millis(50),
            knock_again: Duration::from_millis(100),
            log_lines_max: 10_000,
            log_bytes_max: 1 << 20,
        }
    }
}

impl Rules {
    /// The wait before the restart of this step of a crash loop; the first step is 1.
    pub(crate) fn crash_delay(&self, step: usize) -> Duration {
        let at = step.saturating_sub(1).min(self.crash_delays.len().saturating_sub(1));
        self.crash_delays.get(at).copied().unwrap_or(CRASH_DELAY_IF_NONE_IS_SET)
    }
}
