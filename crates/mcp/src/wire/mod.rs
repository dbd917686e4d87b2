//! Upstreams over HTTP, as two streams of lines, so that the one [`crate::Pump`] serves every transport.
//!
//! ```text
//!                      ┌─ carrier ──────────────────────────────┐
//!   pump ─► stdin ───► │ a line: POST it, many at once          │ ──► upstream
//!   pump ◄─ stdout ◄── │ a body, an event: a line               │ ◄── upstream
//!                      └─ ends with the pump, or with a fault ──┘
//! ```
//!
//! [`streamable()`] is the transport of today, [`sse()`] the one before it. Both share the carrier ([`carrier`]), which knows about order,
//! limits and cancellation, and differ in how a line is delivered. Messages are carried as they came; only `id` and `method` are looked at.
//!
//! Messages that stand alone, as those of 2026-07-28 do, are told by what they say of themselves, and can be sent beside the others.
//!
//! What a POST asks and the upstream does not answer is answered here, with an error that says what happened and whether the call may
//! have been executed. Nothing is ever posted twice. When the upstream as a whole is lost, stdout ends and [`Fault`] says why; whoever
//! owns the wire dials anew.

mod carrier;
mod credentials;
mod events;
mod legacy;
mod link;
mod listening;
mod mirrors;
mod outgoing;
mod request;
mod streamable;
mod trouble;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofer_model::Kind;
use reqwest::{StatusCode, redirect};
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use url::Url;

pub use credentials::{Credentials, Next, Refusal};
pub use legacy::{sse, sse_as};
pub use listening::{Backoff, Jitter};
pub use mirrors::Mirrors;
pub use streamable::{streamable, streamable_as};

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How soon a connection is looked after on which nothing is said: a stream may be silent for hours, and its other end gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Less than the five seconds after which Node.js and uvicorn hang up on a connection that nobody uses: a call that meets such an end
/// may have been executed or not, and nobody can tell.
const IDLE_CONNECTION_MAX: Duration = Duration::from_secs(4);
const IDLE_CONNECTIONS_MAX: usize = 16;
const REDIRECTS_MAX: usize = 5;

/// Both ends of an upstream, for [`crate::Pump::start`]. It ends when both are dropped, or `stdin` is and all is answered.
pub struct Wire {
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub fault: Fault,
    /// To be told of its tools.
    pub mirrors: Arc<Mirrors>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("fault", &self.fault).finish_non_exhaustive()
    }
}

/// Where an upstream is, and what every request to it carries.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    pub url: Url,
    pub headers: Vec<(String, SecretString)>,
}

#[derive(Clone, Copy, Debug)]
pub struct WireLimits {
    /// Longest message taken, as a body or an event. A longer answer fails its call alone.
    pub message_bytes_max: usize,
    /// Messages on their way at once; more wait.
    pub in_flight_max: usize,
    /// How long the upstream may take to shake hands, and to give the address to post to where it does that.
    pub greeting_max: Duration,
    /// How long it may take to accept what needs no answer.
    pub accept_max: Duration,
    /// How long it is waited before a stream is asked for again.
    pub backoff: Backoff,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self {
            message_bytes_max: 16 << 20,
            in_flight_max: 64,
            greeting_max: Duration::from_mins(1),
            accept_max: Duration::from_secs(30),
            backoff: Backoff::default(),
        }
    }
}

/// Why a wire ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WireFault {
    pub kind: Kind,
    /// What the upstream answered or failed to. It may repeat what it was sent: mask it before it is shown.
    pub message: String,
    pub status: Option<u16>,
    /// What it wants to see, as it said with a 401 or 403.
    pub www_authenticate: Option<String>,
}

/// Says why a wire ended, once it has. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fault(watch::Receiver<Option<WireFault>>);

impl Fault {
    /// None while it lasts, and after an end that was asked for.
    pub fn get(&self) -> Option<WireFault> {
        self.0.borrow().clone()
    }
}

/// A client for all upstreams. The process must have chosen its cryptography before (`rustls`).
pub fn http_client() -> reqwest::Client {
    // Fails only where TLS cannot be set up at all, and then the other way would as well.
    builder().build().unwrap_or_default()
}

/// The same for servers on this machine: a proxy for the wide world has no business between two of its processes.
pub fn direct_http_client() -> reqwest::Client {
    builder().no_proxy().build().unwrap_or_default()
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("cofer/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
        .tcp_keepalive(KEEP_ALIVE)
        .connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_CONNECTION_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .retry(reqwest::retry::never())
        .redirect(redirect::Policy::custom(follow_within_origin))
}

/// What we carry is for this upstream: it is not taken elsewhere, and a POST stays a POST.
fn follow_within_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let same_origin =
        attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    let same_method =
        matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    if same_origin && same_method && attempt.previous().len() <= REDIRECTS_MAX {
        attempt.follow()
    } else {
        attempt.stop()
    }
}
