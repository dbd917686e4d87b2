//! How a request to an upstream looks: its headers, and the session that they name.
//!
//! Everything that depends on the version of the protocol is here: up to 2025-11-25 each request shows the session and the version that
//! were agreed on ([`Session::dress`]); since 2026-07-28 there is no session, and the headers repeat what the message says ([`dress_alone`]).

use std::sync::{Arc, Mutex, PoisonError};

use cofer_model::Kind;
use data_encoding::BASE64;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use reqwest::{Client, Method, RequestBuilder, Response};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use url::Url;

use super::credentials::{Credentials, Next, Refusal, TRIES_MAX};
use super::outgoing::{Label, Outgoing};
use super::trouble::Trouble;
use super::{HttpTarget, WireFault};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "application/json, text/event-stream";
const ANYTHING: &str = "*/*";
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An upstream that can be asked, with everything that each request carries.
#[derive(Debug)]
pub(super) struct Door {
    client: Client,
    url: Url,
    headers: HeaderMap,
    credentials: Option<Arc<dyn Credentials>>,
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
        Ok(Self { client, url: target.url, headers, credentials: None })
    }

    /// The same, showing these with each request.
    pub(super) fn showing(self, credentials: Option<Arc<dyn Credentials>>) -> Self {
        Self { credentials, ..self }
    }

    /// The same upstream at another address.
    pub(super) fn at(self, url: Url) -> Self {
        Self { url, ..self }
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn post(&self, session: &Session, message: &Outgoing) -> RequestBuilder {
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(JSON))]);
        match &message.label {
            Some(label) => dress_alone(&mut headers, message.method().unwrap_or_default(), label),
            None => session.dress(&mut headers),
        }
        self.request(Method::POST, BOTH, headers).body(message.line.clone())
    }

    /// Asks for what the upstream says by itself, or for the rest of a stream that broke off.
    pub(super) fn get(&self, session: &Session, last_event_id: Option<&str>) -> RequestBuilder {
        let last_event_id = last_event_id.and_then(|id| HeaderValue::from_str(id).ok());
        let mut headers: HeaderMap = last_event_id.map(|id| (LAST_EVENT_ID, id)).into_iter().collect();
        session.dress(&mut headers);
        self.request(Method::GET, EVENTS, headers)
    }

    pub(super) fn delete(&self, session: &Session) -> RequestBuilder {
        let mut headers = HeaderMap::new();
        session.dress(&mut headers);
        self.request(Method::DELETE, ANYTHING, headers)
    }

    /// Sends a request, with whatever is to be shown now. Refused, it is sent again only where there is something newer to show.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        let Some(credentials) = &self.credentials else {
            return request.send().await.map_err(Trouble::connection);
        };
        let mut before = 0;
        loop {
            let shown = credentials.bearer().await.map_err(Trouble::barred)?;
            // What is sent here is held in memory, and can be sent twice.
            let Some(mut attempt) = request.try_clone() else {
                return request.send().await.map_err(Trouble::connection);
            };
            if let Some(token) = &shown {
                attempt = attempt.header(AUTHORIZATION, bearer(token));
            }
            let response = attempt.send().await.map_err(Trouble::connection)?;
            let status = response.status().as_u16();
            if !matches!(status, 401 | 403) {
                return Ok(response);
            }
            let challenge = challenge_of(&response);
            let refusal = Refusal { status, shown: shown.as_ref(), challenge: &challenge, before };
            match credentials.refused(refusal).await {
                Next::Again if before + 1 < TRIES_MAX => before += 1,
                Next::Again | Next::Leave => return Ok(response),
                Next::Barred(fault) => return Err(Trouble::barred(fault)),
            }
        }
    }

    fn request(&self, method: Method, accept: &'static str, mut headers: HeaderMap) -> RequestBuilder {
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        // What the target names comes last, and instead of ours where both name a header.
        for name in self.headers.keys() {
            headers.remove(name);
        }
        headers.extend(self.headers.clone());
        self.client.request(method, self.url.clone()).headers(headers)
    }
}

fn bearer(token: &SecretString) -> HeaderValue {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
    let mut value = value.unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    value
}

/// Several headers say the same as one with commas.
fn challenge_of(response: &Response) -> String {
    let all = response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    all.collect::<Vec<_>>().join(", ")
}

/// A message that belongs to no session repeats in its headers what is in its body, for whoever stands in between and does not read bodies.
fn dress_alone(headers: &mut HeaderMap, method: &str, label: &Label) {
    let Label { protocol_version, name } = label;
    let name = name.as_deref().map(header_text);
    let fields =
        [(PROTOCOL_VERSION, Some(protocol_version.clone())), (METHOD, Some(method.to_owned())), (NAME, name)];
    for (header, value) in fields {
        let value = value.and_then(|value| HeaderValue::from_str(&value).ok());
        headers.extend(value.map(|value| (header, value)));
    }
}

/// As it is where a header can carry it, else as the protocol says to wrap it.
pub(super) fn header_text(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text;
    if is_plain && !text.starts_with("=?base64?") {
        return text.to_owned();
    }
    format!("=?base64?{}?=", BASE64.encode(text.as_bytes()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_wrapped_only_where_a_header_cannot_carry_it() {
        for (name, expected) in [
            ("get_weather", "get_weather"),
            ("test://a b", "test://a b"),
            ("größe", "=?base64?Z3LDtsOfZQ==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("a\nb", "=?base64?YQpi?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ] {
            assert_eq!(header_text(name), expected);
        }
    }
}
