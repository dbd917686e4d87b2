//! What can go wrong with one message, told in two ways: as the answer to it, and, where the upstream as a whole is lost, as the wire's
//! fault.

use std::time::Duration;

use cofer_model::Kind;
use reqwest::header::WWW_AUTHENTICATE;
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::WireFault;
use super::outgoing::id_text;

/// Of an answer that is none, as much is read.
const EXCERPT_BYTES_MAX: usize = 64 << 10;
/// And no longer than this.
const EXCERPT_TIME_MAX: Duration = Duration::from_secs(2);
/// And as much is told.
const EXCERPT_CHARACTERS_MAX: usize = 300;
const SERVER_ERROR: i64 = -32000;

#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub message: String,
    pub kind: Kind,
    status: Option<StatusCode>,
    www_authenticate: Option<String>,
    may_have_executed: bool,
    /// Whether the whole upstream is lost.
    fatal: bool,
    /// Whether it can pass by itself, whatever its status says.
    may_pass: bool,
    /// The upstream's own answer to this very message, which then is the answer.
    own_words: Option<Vec<u8>>,
}

/// Whether a message can have reached somebody who acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    No,
    Maybe,
}

/// An error that a server wrote into a body that it did not mean as an answer.
#[derive(Deserialize)]
struct ErrorBody<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    error: ErrorPart,
}

#[derive(Deserialize)]
struct ErrorPart {
    message: String,
}

impl Trouble {
    pub(super) fn new(message: impl Into<String>, kind: Kind, executed: Executed) -> Self {
        Self {
            message: message.into(),
            kind,
            status: None,
            www_authenticate: None,
            may_have_executed: executed == Executed::Maybe,
            fatal: false,
            may_pass: false,
            own_words: None,
        }
    }

    pub(super) fn too_long(bytes_max: usize) -> Self {
        let message = format!("the upstream's answer is longer than the {bytes_max} bytes taken");
        Self::new(message, Kind::Upstream, Executed::Maybe)
    }

    pub(super) fn late(what: &str) -> Self {
        Self::new(format!("the upstream {what} in time"), Kind::Timeout, Executed::Maybe)
    }

    /// The connection could not be had, or broke.
    pub(super) fn connection(error: reqwest::Error) -> Self {
        let nobody_there = error.is_connect();
        let error = error.without_url();
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        if nobody_there {
            let message = format!("the upstream cannot be reached: {cause}");
            return Self { fatal: true, ..Self::new(message, Kind::Unavailable, Executed::No) };
        }
        let message = format!("the connection to the upstream broke before it answered: {cause}");
        Self::new(message, Kind::Upstream, Executed::Maybe)
    }

    /// It answered with a status that is no success. `request` is the id that it was asked under, `in_session` whether it gave us a
    /// session before.
    pub(super) async fn refusal(response: Response, request: Option<&str>, in_session: bool) -> Self {
        let status = response.status();
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let www_authenticate = header(WWW_AUTHENTICATE).map(ToOwned::to_owned);
        let location = header(reqwest::header::LOCATION).map(ToOwned::to_owned);
        let body = excerpt(response).await;
        let error = serde_json::from_slice::<ErrorBody<'_>>(&body).ok();
        let names_it = |error: &ErrorBody<'_>| error.id.map(id_text).as_deref() == request;
        let about_it = request.is_some() && error.as_ref().is_some_and(names_it);
        let own_words = about_it.then(|| body.clone());
        let said = readable(error.as_ref().map_or(&body, |error| error.error.message.as_bytes()));
        let said = match location.filter(|_| status.is_redirection()) {
            Some(location) => {
                format!("it redirects to {location}; if that is its address, register that one")
            }
            None => said,
        };
        let lost_session = in_session && is_session_lost(status, &said, about_it);
        let unwelcome = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let executed = if status.is_server_error() { Executed::Maybe } else { Executed::No };
        let kind = if lost_session { Kind::Unavailable } else { Kind::Upstream };
        let message = match said.as_str() {
            "" => format!("the upstream answered HTTP {status}"),
            said => format!("the upstream answered HTTP {status}: {said}"),
        };
        Self {
            status: Some(status),
            www_authenticate,
            fatal: lost_session || unwelcome,
            own_words,
            ..Self::new(message, kind, executed)
        }
    }

    /// It was refused for want of credentials, which may be there the next time.
    pub(super) fn barred(fault: WireFault) -> Self {
        let status = fault.status.and_then(|status| StatusCode::from_u16(status).ok());
        let www_authenticate = fault.www_authenticate;
        let trouble = Self::new(fault.message, fault.kind, Executed::No);
        Self { status, www_authenticate, may_pass: true, ..trouble }
    }

    /// What was asked for before may have been executed, whatever became of this.
    pub(super) fn maybe_executed(self) -> Self {
        Self { may_have_executed: true, ..self }
    }

    /// Whether it was refused in a way that asking again does not change.
    pub(super) fn is_final(&self) -> bool {
        if self.may_pass {
            return false;
        }
        self.status.is_some_and(|status| !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS)
            || self.status == Some(StatusCode::NOT_IMPLEMENTED)
    }

    pub(super) fn is_session_lost(&self) -> bool {
        self.status.is_some() && self.fatal && self.kind == Kind::Unavailable
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.fatal
    }

    pub(super) fn has_status(&self) -> bool {
        self.status.is_some()
    }

    /// The answer for whoever asked under this id, which is JSON.
    pub(super) fn answer_to(&self, id: &str) -> Vec<u8> {
        if let Some(own_words) = &self.own_words {
            return own_words.clone();
        }
        let status = self.status.map(|status| status.as_u16());
        let data = json!({"http_status": status, "may_have_executed": self.may_have_executed});
        let error = json!({"code": SERVER_ERROR, "message": self.message, "data": data});
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes()
    }

    pub(super) fn into_fault(self) -> Option<WireFault> {
        self.fatal.then(|| self.as_fault())
    }

    pub(super) fn as_fault(&self) -> WireFault {
        WireFault {
            kind: self.kind,
            message: self.message.clone(),
            status: self.status.map(|status| status.as_u16()),
            www_authenticate: self.www_authenticate.clone(),
        }
    }
}

/// 404 is what the protocol says. Many servers made after an early example of the official SDK say 400 and speak of the session, not of
/// what they were asked.
fn is_session_lost(status: StatusCode, said: &str, about_the_request: bool) -> bool {
    let speaks_of_session = || said.to_ascii_lowercase().contains("session");
    status == StatusCode::NOT_FOUND
        || (status == StatusCode::BAD_REQUEST && !about_the_request && speaks_of_session())
}

/// The beginning of a body, or what has come of it in time.
pub(super) async fn excerpt(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let deadline = Instant::now() + EXCERPT_TIME_MAX;
    while body.len() < EXCERPT_BYTES_MAX
        && let Ok(Ok(Some(piece))) = tokio::time::timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&piece);
    }
    body.truncate(EXCERPT_BYTES_MAX);
    body
}

/// Text that may be anything, so that it fits in a sentence.
pub(super) fn readable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words = text.split(|character: char| character.is_whitespace() || character.is_control());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(EXCERPT_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_happened_and_whether_it_may_have_been_executed() {
        let trouble = Trouble::late("did not answer");
        let answer: serde_json::Value = serde_json::from_slice(&trouble.answer_to("7")).unwrap();
        let error = json!({"code": -32000, "message": "the upstream did not answer in time",
            "data": {"http_status": null, "may_have_executed": true}});
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 7, "error": error}));
    }

    #[test]
    fn a_lost_session_is_recognised_also_where_servers_say_it_in_their_own_way() {
        assert!(is_session_lost(StatusCode::NOT_FOUND, "", false));
        assert!(is_session_lost(StatusCode::BAD_REQUEST, "Bad Request: No valid session ID provided", false));
        assert!(!is_session_lost(StatusCode::BAD_REQUEST, "no such browser session", true));
        assert!(!is_session_lost(StatusCode::BAD_REQUEST, "invalid arguments", false));
    }

    #[test]
    fn whatever_a_body_is_it_fits_in_a_sentence() {
        assert_eq!(readable(b"<html>\r\n\x07<b>no</b>\0"), "<html> <b>no</b>");
        assert!(readable(&[b'x'; 10_000]).len() == EXCERPT_CHARACTERS_MAX);
    }
}
