//! How a hosted server is reached: through the bridge that its supervisor keeps, or, without one, at its endpoint.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_gateway::{Dial, DialError, Dialled};
use cofer_mcp::wire::HttpTarget;
use cofer_mcp::{CallError, Ear, Era, Face, Handshake, Pump, discover};
use cofer_model::{HostedStatus, Kind};
use cofer_supervisor::{CallRefused, Truth};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::external::{KnownEra, Means};
use crate::hosting::Entry;

/// A server that starts again is waited for; one that rests in a crash loop is not.
const RESTART_PATIENCE: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HostedDial {
    pub entry: Arc<Entry>,
    pub means: Arc<Means>,
    pub era: KnownEra,
}

#[async_trait]
impl Dial for HostedDial {
    async fn dial(&self, face: &Face, ear: Arc<dyn Ear>) -> Result<Dialled, DialError> {
        let pump = match self.line().await {
            Ok(pump) => pump,
            Err(CallRefused::NoBridge) => return self.over_http(face, ear).await,
            Err(refused) => return Err(not_there(&refused)),
        };
        pump.listen(ear);
        let facts = self.entry.supervised.truth().borrow().facts.clone();
        // One that knows no handshake may be of the later era.
        if facts.protocol_version.is_none()
            && let Ok(Some(hands)) = discover(&pump, face, DISCOVER_TIMEOUT).await
        {
            return Ok(Dialled { pump, hands, mask: self.entry.planner.mask(), held: Arc::new(()) });
        }
        let hands = Handshake {
            era: Era::Handshake,
            protocol_version: facts.protocol_version,
            server_info: facts.server_info,
            // A server that was taken over was greeted by an earlier life of Cofer: what it offers is asked, not assumed.
            capabilities: None,
            instructions: None,
        };
        Ok(Dialled { pump, hands, mask: self.entry.planner.mask(), held: Arc::new(()) })
    }

    fn takes_many(&self) -> bool {
        !self.entry.planner.blueprint().config.stdio_bridge
    }

    fn first_wait(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostedDial {
    /// Its bridge. One that has ended a moment ago, before its supervisor has heard of it, is not taken: there will be another.
    async fn line(&self) -> Result<Pump, CallRefused> {
        let mut truth = self.entry.supervised.truth();
        let deadline = Instant::now() + RESTART_PATIENCE;
        loop {
            // In time or not: how it stands now is asked next.
            let _ = timeout_at(deadline, truth.wait_for(is_settled)).await;
            let pump = self.entry.supervised.line()?;
            if !pump.has_ended() {
                return Ok(pump);
            }
            if !matches!(timeout_at(deadline, truth.changed()).await, Ok(Ok(()))) {
                return Err(CallRefused::Pump(CallError::Gone));
            }
        }
    }

    /// One without a bridge, at the port that it publishes.
    async fn over_http(&self, face: &Face, ear: Arc<dyn Ear>) -> Result<Dialled, DialError> {
        let endpoint = self.entry.supervised.truth().borrow().endpoints.first().cloned();
        let nowhere = || DialError::of_ours(Kind::Conflict, "it has neither a stdio bridge nor a port");
        let port = endpoint.ok_or_else(nowhere)?.host_port;
        let path = self.entry.planner.blueprint().config.http_path.clone();
        let url = Url::parse(&format!("http://127.0.0.1:{port}{path}")).map_err(|error| {
            DialError::of_ours(Kind::Invalid, format!("its address cannot be read: {error}"))
        })?;
        let target = HttpTarget { url, headers: Vec::new() };
        self.means.speak_to(target, face, ear, self.entry.planner.mask(), &self.era).await
    }
}

/// Whether waiting would change nothing soon.
fn is_settled(truth: &Truth) -> bool {
    match truth.status {
        HostedStatus::Creating => false,
        HostedStatus::Restarting => truth.next_try.is_some(),
        _ => true,
    }
}

fn not_there(refused: &CallRefused) -> DialError {
    match refused {
        CallRefused::NotReady { status, reason, retry_after } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            DialError {
                retry_after: Some((*retry_after).max(RETRY_AFTER)),
                ..DialError::of_ours(Kind::Unavailable, format!("it is {status}{reason}"))
            }
        }
        CallRefused::NoBridge => DialError::of_ours(Kind::Conflict, "it has no stdio bridge"),
        CallRefused::Pump(error) => DialError::of_ours(error.kind(), error.to_string()),
    }
}
