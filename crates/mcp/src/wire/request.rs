//! How a request to an upstream looks: its headers, and the session that they name.
//!
//! Everything that depends on the version of the protocol is here. A version without sessions, whose headers repeat the method and the
//! name of what is asked for, changes [`Session::dress`] and nothing else.

use std::sync::{Mutex, PoisonError};

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use url::Url;

use super::{HttpTarget, WireFault};
use cofer_model::Kind;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An upstream that can be asked, with everything that each request carries.
#[derive(Debug)]
pub(super) struct Door {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

/// What an upstream gave us to show with each further request.
#[derive(Debug, Default)]
pub(super) struct Session(Mutex<Tokens>);

#[derive(Clone, Debug, Default)]
struct Tokens {
    id: Option<HeaderValue>,
    protocol_version: Option<HeaderValue>,
}

impl Door {
    pub(super) fn new(target: HttpTarget, client: Client) -> Result<Self, WireFault> {
        let mut headers = HeaderMap::new();
        for (name, value) in &target.headers {
            let parsed =
                name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value.expose_secret()).ok());
            let Some((header, mut value)) = parsed else { return Err(unusable(name)) };
            value.set_sensitive(true);
            headers.append(header, value);
        }
        Ok(Self { client, url: target.url, headers })
    }

    /// The same upstream at another address.
    pub(super) fn at(self, url: Url) -> Self {
        Self { url, ..self }
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn post(&self, session: &Session, line: bytes::Bytes) -> RequestBuilder {
        let accept = const { HeaderValue::from_static("application/json, text/event-stream") };
        let request = self.request(Method::POST, accept, session);
        request.header(CONTENT_TYPE, const { HeaderValue::from_static(JSON) }).body(line)
    }

    /// Asks for what the upstream says by itself, or for the rest of a stream that broke off.
    pub(super) fn get(&self, session: &Session, last_event_id: Option<&str>) -> RequestBuilder {
        let request = self.request(Method::GET, const { HeaderValue::from_static(EVENTS) }, session);
        match last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            Some(id) => request.header(LAST_EVENT_ID, id),
            None => request,
        }
    }

    pub(super) fn delete(&self, session: &Session) -> RequestBuilder {
        self.request(Method::DELETE, const { HeaderValue::from_static("*/*") }, session)
    }

    fn request(&self, method: Method, accept: HeaderValue, session: &Session) -> RequestBuilder {
        // What the target names comes last, and instead of ours where both name a header.
        let mut headers = HeaderMap::from_iter([(ACCEPT, accept)]);
        session.dress(&mut headers);
        for name in self.headers.keys() {
            headers.remove(name);
        }
        headers.extend(self.headers.clone());
        self.client.request(method, self.url.clone()).headers(headers)
    }
}

impl Session {
    /// Takes note of what came with the answer to `initialize`.
    pub(super) fn begin(&self, response: &Response) {
        self.tokens().id = response.headers().get(SESSION_ID).cloned();
    }

    /// Takes note of the version that the upstream chose, from its answer to `initialize`.
    pub(super) fn agree(&self, answer: &[u8]) {
        #[derive(Deserialize)]
        struct Answer {
            result: Option<Greeting>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Greeting {
            protocol_version: Option<String>,
        }
        let greeting = serde_json::from_slice::<Answer>(answer).ok().and_then(|answer| answer.result);
        let version = greeting.and_then(|greeting| greeting.protocol_version);
        self.tokens().protocol_version = version.and_then(|version| HeaderValue::from_str(&version).ok());
    }

    pub(super) fn is_open(&self) -> bool {
        self.tokens().id.is_some()
    }

    fn dress(&self, headers: &mut HeaderMap) {
        let Tokens { id, protocol_version } = self.tokens().clone();
        headers.extend(id.map(|id| (SESSION_ID, id)));
        headers.extend(protocol_version.map(|version| (PROTOCOL_VERSION, version)));
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, Tokens> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the body of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Events,
    Other,
}

impl Media {
    pub(super) fn of(response: &Response) -> Self {
        let said =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let said = said.split(';').next().unwrap_or_default().trim();
        if said.eq_ignore_ascii_case(JSON) {
            Self::Json
        } else if said.eq_ignore_ascii_case(EVENTS) {
            Self::Events
        } else {
            Self::Other
        }
    }
}

fn unusable(header: &str) -> WireFault {
    let message = format!(
        "the header `{header}` cannot be sent: its name or value has characters that headers cannot have"
    );
    WireFault { kind: Kind::Invalid, message, status: None, www_authenticate: None }
}
