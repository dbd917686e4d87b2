//! The streamable HTTP transport: every message is a POST, answered by a body or by a stream of events that has the answer in it.
//!
//! After the handshake a GET asks for what the upstream says by itself; it is asked for again whenever it ends, from where it ended. A stream
//! with an answer in it that breaks off before the answer is taken up again in the same way, if the upstream numbers its events.
//! The message itself is never posted again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cofer_model::Kind;
use reqwest::{Client, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::carrier::{Carrier, Delivery};
use super::credentials::Credentials;
use super::events::{Body, Bookmark, Event};
use super::link::{self, Link};
use super::listening::EventStream;
use super::outgoing::{Outgoing, id_text};
use super::request::{Door, Media, Session};
use super::trouble::{Executed, Trouble, readable};
use super::{HttpTarget, Mirrors, Wire, WireLimits};

/// What the pump can write ahead of us.
pub(super) const STDIN_BYTES: usize = 64 << 10;
/// A stream should end after its answer. Whether it does is awaited so long, because a connection whose stream has ended can be used again.
const REST_MAX: Duration = Duration::from_secs(2);
const FAREWELL_MAX: Duration = Duration::from_secs(5);
const RESUME_TRIES_MAX: u32 = 5;

/// Carries lines to an upstream and back. To be called inside a runtime. Nothing is sent before the first line.
pub fn streamable(target: HttpTarget, client: Client, limits: WireLimits) -> Wire {
    streamable_as(target, None, client, limits)
}

/// The same, showing these credentials.
pub fn streamable_as(
    target: HttpTarget,
    credentials: Option<Arc<dyn Credentials>>,
    client: Client,
    limits: WireLimits,
) -> Wire {
    let (link, anchor, stdout, fault) = link::link();
    let (stdin, lines) = tokio::io::duplex(STDIN_BYTES);
    let mirrors = Arc::<Mirrors>::default();
    match Door::new(target, client) {
        Ok(door) => {
            let door = door.showing(credentials);
            let greeted = watch::Sender::new(false);
            let mirrors = mirrors.clone();
            let delivery = Streamable { door, session: Session::default(), link, limits, greeted, mirrors };
            tokio::spawn(Carrier::new(lines, delivery, anchor, &limits).carry());
        }
        Err(unusable) => link.fail(unusable),
    }
    Wire { stdin: Box::new(stdin), stdout: Box::new(stdout), fault, mirrors }
}

struct Streamable {
    door: Door,
    session: Session,
    link: Link,
    limits: WireLimits,
    /// Whether the upstream has accepted `notifications/initialized`.
    greeted: watch::Sender<bool>,
    mirrors: Arc<Mirrors>,
}

impl Delivery for Streamable {
    async fn deliver(&self, message: Outgoing) {
        match within(limit_for(&message, &self.limits), self.exchange(&message)).await {
            Ok(()) if message.is_initialized() => {
                self.greeted.send_replace(true);
            }
            Ok(()) => {}
            Err(trouble) => self.link.report(&message, trouble).await,
        }
    }

    async fn listen(&self) {
        let mut greeted = self.greeted.subscribe();
        if greeted.wait_for(|greeted| *greeted).await.is_err() {
            return;
        }
        let mut bookmark = Bookmark::default();
        let mut fruitless = 0;
        let mut had_stream = false;
        loop {
            match self.open(&bookmark).await {
                Ok(mut stream) => {
                    had_stream = true;
                    while let Some(event) = stream.next().await {
                        fruitless = 0;
                        self.hear(event).await;
                    }
                    bookmark = stream.bookmark().clone();
                }
                Err(trouble) if had_stream && trouble.is_session_lost() => {
                    return self.link.fail(trouble.as_fault());
                }
                // Without a status nobody was there. With one, that this is not offered; whether anything else is, the next POST tells.
                Err(trouble) if trouble.is_fatal() && !trouble.has_status() => {
                    return self.link.fail(trouble.as_fault());
                }
                Err(trouble) if !had_stream && trouble.is_final() => return,
                Err(_) => {}
            }
            tokio::time::sleep(self.limits.backoff.pause(fruitless, bookmark.retry)).await;
            fruitless += 1;
        }
    }

    async fn farewell(&self) {
        if self.session.is_open() {
            // An upstream that does not want to know of it, or is gone, forgets the session by itself.
            let farewell = self.door.send(self.door.delete(&self.session));
            let _ = tokio::time::timeout(FAREWELL_MAX, farewell).await;
        }
    }
}

impl Streamable {
    async fn exchange(&self, message: &Outgoing) -> Result<(), Trouble> {
        let request = self.door.post(&self.session, message).headers(self.mirrors.headers_of(message));
        let response = self.door.send(request).await?;
        if !response.status().is_success() {
            let in_session = self.session.is_open() && !message.is_initialize();
            return Err(Trouble::refusal(response, message.request_id(), in_session).await);
        }
        if message.is_initialize() {
            self.session.begin(&response);
        }
        match Media::of(&response) {
            Media::Events => self.follow(response, message).await,
            Media::Json => self.take_body(response, message).await,
            Media::Other if message.request_id().is_none() => Ok(()),
            Media::Other => Err(no_answer(&response)),
        }
    }

    async fn take_body(&self, mut response: Response, message: &Outgoing) -> Result<(), Trouble> {
        let bytes_max = self.limits.message_bytes_max;
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(Trouble::connection)? {
            if body.len() + piece.len() > bytes_max {
                return Err(Trouble::too_long(bytes_max));
            }
            body.extend_from_slice(&piece);
        }
        let excerpt = readable(&body[..body.len().min(1024)]);
        let mut answered = message.request_id().is_none();
        for part in parts(body) {
            answered |= self.pass(part, message).await;
        }
        if answered {
            return Ok(());
        }
        let text = format!("the upstream answered with something that is no answer: {excerpt}");
        Err(Trouble::new(text, Kind::Upstream, Executed::Maybe))
    }

    /// Reads until the answer has come, over as many streams as it takes.
    async fn follow(&self, response: Response, message: &Outgoing) -> Result<(), Trouble> {
        let mut stream = EventStream::new(response, self.limits.message_bytes_max, Bookmark::default());
        let mut fruitless = 0;
        loop {
            while let Some(event) = stream.next().await {
                fruitless = 0;
                if self.take_event(event, message).await? {
                    self.hear_out(stream);
                    return Ok(());
                }
            }
            if message.request_id().is_none() {
                return Ok(());
            }
            stream = self.resume(stream.bookmark(), &mut fruitless).await?;
        }
    }

    /// Whether it was the answer.
    async fn take_event(&self, event: Event, message: &Outgoing) -> Result<bool, Trouble> {
        match event.body {
            Body::Whole(data) if is_message(&event.name) => Ok(self.pass(data, message).await),
            Body::TooLong { id: Some(id) } if message.request_id() == Some(&id.to_string()) => {
                Err(Trouble::too_long(self.limits.message_bytes_max))
            }
            _ => Ok(false),
        }
    }

    /// Hands one message up. Whether it was the answer.
    async fn pass(&self, data: Vec<u8>, message: &Outgoing) -> bool {
        let Some(is_answer) = is_answer_to(message, &data) else { return false };
        if is_answer && message.is_initialize() {
            self.session.agree(&data);
        }
        self.link.say(data).await;
        is_answer
    }

    async fn resume(&self, bookmark: &Bookmark, fruitless: &mut u32) -> Result<EventStream, Trouble> {
        if bookmark.last_event_id.is_none() {
            let message = "the upstream's stream ended before its answer came";
            return Err(Trouble::new(message, Kind::Upstream, Executed::Maybe));
        }
        let mut failures = 0;
        loop {
            tokio::time::sleep(self.limits.backoff.pause(*fruitless, bookmark.retry)).await;
            *fruitless += 1;
            match self.open(bookmark).await {
                Ok(stream) => return Ok(stream),
                Err(trouble) if trouble.is_final() || failures == RESUME_TRIES_MAX => {
                    return Err(trouble.maybe_executed());
                }
                Err(_) => failures += 1,
            }
        }
    }

    async fn open(&self, bookmark: &Bookmark) -> Result<EventStream, Trouble> {
        let request = self.door.get(&self.session, bookmark.last_event_id.as_deref());
        let bytes_max = self.limits.message_bytes_max;
        EventStream::open(&self.door, request, bytes_max, bookmark.clone(), self.session.is_open()).await
    }

    /// What may still come after the answer.
    fn hear_out(&self, mut stream: EventStream) {
        let (link, limits) = (self.link.clone(), self.limits);
        tokio::spawn(async move {
            let rest = async {
                while let Some(event) = stream.next().await {
                    hear(&link, &limits, event).await;
                }
            };
            // One that goes on is cut off.
            let _ = tokio::time::timeout(REST_MAX, rest).await;
        });
    }

    async fn hear(&self, event: Event) {
        hear(&self.link, &self.limits, event).await;
    }
}

/// Hands up what came on a stream that belongs to no request.
pub(super) async fn hear(link: &Link, limits: &WireLimits, event: Event) {
    match event.body {
        Body::Whole(data) if is_message(&event.name) => link.say(data).await,
        Body::TooLong { id: Some(id) } => {
            let trouble = Trouble::too_long(limits.message_bytes_max);
            link.say(trouble.answer_to(&id.to_string())).await;
        }
        Body::TooLong { id: None } => tracing::debug!("an upstream's event was too long to be taken"),
        Body::Whole(_) => {}
    }
}

/// How long a message may take. A request takes as long as whoever asked waits for it; their giving up ends it.
pub(super) fn limit_for(message: &Outgoing, limits: &WireLimits) -> Option<Duration> {
    match message.request_id() {
        Some(_) => message.is_initialize().then_some(limits.greeting_max),
        None => Some(limits.accept_max),
    }
}

pub(super) async fn within(
    limit: Option<Duration>,
    exchange: impl Future<Output = Result<(), Trouble>>,
) -> Result<(), Trouble> {
    match limit {
        Some(limit) => match tokio::time::timeout(limit, exchange).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(Trouble::late("did not answer")),
        },
        None => exchange.await,
    }
}

/// Other names are for other purposes, such as keeping a connection open.
fn is_message(name: &str) -> bool {
    matches!(name, "" | "message")
}

/// None for what is no message at all.
fn is_answer_to(message: &Outgoing, data: &[u8]) -> Option<bool> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        method: Option<&'a RawValue>,
    }
    let envelope = serde_json::from_slice::<Envelope<'_>>(data).ok()?;
    let id = envelope.id.filter(|_| envelope.method.is_none()).map(id_text);
    Some(id.is_some() && id.as_deref() == message.request_id())
}

/// The messages of a body: one, or several in a list.
fn parts(body: Vec<u8>) -> Vec<Vec<u8>> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return vec![body];
    }
    let list = serde_json::from_slice::<Vec<&RawValue>>(&body).unwrap_or_default();
    list.into_iter().map(|part| part.get().as_bytes().to_vec()).collect()
}

fn no_answer(response: &Response) -> Trouble {
    let header = response.headers().get(reqwest::header::CONTENT_TYPE);
    let said = header.map_or_else(|| "nothing".to_owned(), |header| readable(header.as_bytes()));
    let status = response.status();
    let message =
        format!("the upstream answered HTTP {status} with {said}, where JSON or an event stream is expected");
    Trouble::new(message, Kind::Upstream, Executed::Maybe)
}
