//! The HTTP+SSE transport of 2024: one GET whose stream carries everything that the upstream says, and whose first event gives the
//! address that messages are posted to. The session is that stream: when it ends, so does the wire.

use std::sync::Arc;

use cofer_model::Kind;
use reqwest::Client;
use tokio::sync::Mutex;
use url::Url;

use super::carrier::{Carrier, Delivery};
use super::credentials::Credentials;
use super::events::{Body, Bookmark};
use super::link::{self, Link};
use super::listening::EventStream;
use super::outgoing::Outgoing;
use super::request::{Door, Session};
use super::streamable::{STDIN_BYTES, hear, limit_for, within};
use super::trouble::{Executed, Trouble, excerpt};
use super::{HttpTarget, Wire, WireFault, WireLimits};

/// Opens the stream, and carries lines once the upstream has said where to.
pub async fn sse(target: HttpTarget, client: Client, limits: WireLimits) -> Result<Wire, WireFault> {
    sse_as(target, None, client, limits).await
}

/// The same, showing these credentials.
pub async fn sse_as(
    target: HttpTarget,
    credentials: Option<Arc<dyn Credentials>>,
    client: Client,
    limits: WireLimits,
) -> Result<Wire, WireFault> {
    let door = Door::new(target, client)?.showing(credentials);
    let greeting = tokio::time::timeout(limits.greeting_max, greet(&door, &limits)).await;
    let greeting = greeting.unwrap_or_else(|_| Err(Trouble::late("did not say where to post to")));
    let (stream, endpoint) = greeting.map_err(|trouble| trouble.as_fault())?;
    let (link, anchor, stdout, fault) = link::link();
    let (stdin, lines) = tokio::io::duplex(STDIN_BYTES);
    let delivery = Legacy {
        door: door.at(endpoint),
        session: Session::default(),
        link,
        limits,
        stream: Mutex::new(stream),
    };
    tokio::spawn(Carrier::new(lines, delivery, anchor, &limits).carry());
    Ok(Wire { stdin: Box::new(stdin), stdout: Box::new(stdout), fault, mirrors: Arc::default() })
}

struct Legacy {
    /// Where messages are posted to.
    door: Door,
    /// Stays empty: what is a session here is part of the address.
    session: Session,
    link: Link,
    limits: WireLimits,
    /// Read by one task, from the beginning to the end.
    stream: Mutex<EventStream>,
}

impl Delivery for Legacy {
    async fn deliver(&self, message: Outgoing) {
        if let Err(trouble) = within(limit_for(&message, &self.limits), self.post(&message)).await {
            self.link.report(&message, trouble).await;
        }
    }

    async fn listen(&self) {
        let mut stream = self.stream.lock().await;
        while let Some(event) = stream.next().await {
            hear(&self.link, &self.limits, event).await;
        }
        let trouble = Trouble::new("the upstream ended its event stream", Kind::Unavailable, Executed::Maybe);
        self.link.fail(trouble.as_fault());
    }

    /// The end of the stream says it.
    async fn farewell(&self) {}
}

impl Legacy {
    async fn post(&self, message: &Outgoing) -> Result<(), Trouble> {
        let request = self.door.post(&self.session, message);
        let response = self.door.send(request).await?;
        if !response.status().is_success() {
            return Err(Trouble::refusal(response, message.request_id(), true).await);
        }
        // Nothing of interest; but a connection whose body was read can be used again.
        excerpt(response).await;
        Ok(())
    }
}

async fn greet(door: &Door, limits: &WireLimits) -> Result<(EventStream, Url), Trouble> {
    let request = door.get(&Session::default(), None);
    let bytes_max = limits.message_bytes_max;
    let mut stream = EventStream::open(door, request, bytes_max, Bookmark::default(), false).await?;
    let nonsense = |message: String| Trouble::new(message, Kind::Upstream, Executed::No);
    while let Some(event) = stream.next().await {
        let Body::Whole(data) = event.body else { continue };
        if event.name != "endpoint" {
            continue;
        }
        let said = String::from_utf8_lossy(&data).into_owned();
        let endpoint = door.url().join(said.trim()).ok();
        let endpoint =
            endpoint.ok_or_else(|| nonsense("the upstream says to post to no address".to_owned()))?;
        // What we carry is for this upstream alone.
        if endpoint.origin() != door.url().origin() {
            let elsewhere = endpoint.origin().ascii_serialization();
            return Err(nonsense(format!("the upstream says to post to another one, at {elsewhere}")));
        }
        return Ok((stream, endpoint));
    }
    Err(nonsense("the upstream's stream ended before it said where to post to".to_owned()))
}
