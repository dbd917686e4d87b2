//! The Claude Messages API over HTTP: one question, one answer that streams.
//!
//! What the tools and the system text are is remembered by the API, and so is everything said before the last message: each question
//! marks the ends of these.

mod stream;

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;

use crate::api::{Answer, Hear, Model, ModelError, Question, Trouble};
use crate::offer::CacheControl;
use crate::talk::{Message, Role};
use stream::Stream;

const VERSION: &str = "2023-06-01";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// So long nothing may come; the API sends a ping now and then while it thinks.
const SILENCE_MAX: Duration = Duration::from_mins(2);
const ERROR_BYTES_MAX: usize = 64 << 10;
/// However the question was wrong, more of what the API says of it helps nobody.
const WORDS_CHARS_MAX: usize = 1000;

#[derive(Debug)]
pub struct Claude {
    http: reqwest::Client,
    url: Url,
    key: SecretString,
    silence_max: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("the base URL of the model's API is not an http address")]
pub struct BadBaseUrl;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Text<'a>; 1]>,
    tools: &'a RawValue,
    messages: Vec<Sent<'a>>,
    stream: bool,
}

#[derive(Serialize)]
struct Text<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "text")]
    words: &'a str,
    cache_control: CacheControl,
}

#[derive(Serialize)]
struct Sent<'a> {
    role: Role,
    content: Vec<&'a RawValue>,
}

impl Claude {
    pub fn new(http: reqwest::Client, base: &str, key: SecretString) -> Result<Self, BadBaseUrl> {
        let url =
            format!("{}/v1/messages", base.trim_end_matches('/')).parse::<Url>().map_err(|_| BadBaseUrl)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BadBaseUrl);
        }
        Ok(Self { http, url, key, silence_max: SILENCE_MAX })
    }

    /// With another limit for how long nothing may come.
    #[must_use]
    pub fn with_silence_max(self, silence_max: Duration) -> Self {
        Self { silence_max, ..self }
    }

    async fn ask(&self, question: &Question<'_>) -> Result<Response, ModelError> {
        let marked = question
            .messages
            .last()
            .and_then(|message| message.content.last())
            .and_then(|block| marked(block));
        let body = Body {
            model: question.model,
            max_tokens: question.answer_tokens_max,
            system: question
                .system
                .filter(|text| !text.is_empty())
                .map(|words| [Text { kind: "text", words, cache_control: CacheControl::Ephemeral }]),
            tools: question.tools,
            messages: sent(question.messages, marked.as_deref()),
            stream: true,
        };
        let body = serde_json::to_vec(&body).map_err(|error| ModelError::lasting(error.to_string()))?;
        let mut key = HeaderValue::from_str(self.key.expose_secret())
            .map_err(|_| ModelError::lasting("the API key has characters that no key has; set it again"))?;
        key.set_sensitive(true);
        let request =
            self.http.post(self.url.clone()).header(API_KEY, key).header("anthropic-version", VERSION);
        let request =
            request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream").body(body);
        let sent = tokio::time::timeout(self.silence_max, request.send()).await;
        let response = sent.map_err(|_| self.silent())?.map_err(|error| broken(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    fn silent(&self) -> ModelError {
        ModelError::passing(format!("the model's API said nothing for {:?}", self.silence_max))
    }

    async fn refusal(&self, mut response: Response) -> ModelError {
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        let reading = async {
            while let Ok(Some(chunk)) = response.chunk().await
                && body.len() < ERROR_BYTES_MAX
            {
                body.extend_from_slice(&chunk);
            }
        };
        let _ = tokio::time::timeout(self.silence_max, reading).await;
        refused(status, &headers, &body)
    }
}

#[async_trait]
impl Model for Claude {
    async fn answer(&self, question: &Question<'_>, hear: &mut Hear<'_>) -> Result<Answer, ModelError> {
        let mut response = self.ask(question).await?;
        let mut stream = Stream::default();
        loop {
            let chunk = tokio::time::timeout(self.silence_max, response.chunk()).await;
            match chunk.map_err(|_| self.silent())?.map_err(|error| broken(&error))? {
                Some(chunk) => {
                    if let Some(answer) = stream.take(&chunk, hear)? {
                        return Ok(answer);
                    }
                }
                None => return Err(ModelError::passing("the model's API ended its answer in the middle")),
            }
        }
    }
}

fn sent<'a>(messages: &'a [Message], last_block: Option<&'a RawValue>) -> Vec<Sent<'a>> {
    let mut sent: Vec<_> = messages
        .iter()
        .map(|message| Sent {
            role: message.role,
            content: message.content.iter().map(|block| &**block).collect(),
        })
        .collect();
    if let (Some(marked), Some(block)) =
        (last_block, sent.last_mut().and_then(|last| last.content.last_mut()))
    {
        *block = marked;
    }
    sent
}

/// The block, and that everything up to it is to be remembered. `None` for what cannot carry the mark, or has it.
fn marked(block: &RawValue) -> Option<Box<RawValue>> {
    let text = block.get();
    let open = text.strip_suffix('}').filter(|_| !text.contains("\"cache_control\""))?.trim_end();
    if open == "{" {
        return None;
    }
    RawValue::from_string(format!(r#"{open},"cache_control":{{"type":"ephemeral"}}}}"#)).ok()
}

fn broken(error: &reqwest::Error) -> ModelError {
    // Without the address: whoever set it knows it, and others need not.
    let what = if error.is_connect() { "cannot be reached" } else { "broke off" };
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    ModelError::passing(format!("the model's API {what}: {cause}"))
}

#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: ErrorWords,
}

#[derive(Default, Deserialize)]
pub(crate) struct ErrorWords {
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) message: String,
}

fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ModelError {
    let ErrorWords { kind, message } = serde_json::from_slice::<ErrorBody>(body).unwrap_or_default().error;
    let message: String = message.chars().take(WORDS_CHARS_MAX).collect();
    let words = match (kind.as_str(), message.as_str()) {
        ("", _) => String::new(),
        (kind, message) => format!(": {message} ({kind})"),
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seconds = |name: &str| text(name)?.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    let retry_after = seconds("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| seconds("retry-after"));
    let passes = matches!(status.as_u16(), 408 | 409 | 429) || status.is_server_error();
    let passes = match text("x-should-retry") {
        Some("false") => false,
        Some("true") => true,
        _ => passes,
    };
    let trouble = if passes {
        Trouble::Passing { retry_after: retry_after.map(Duration::from_secs_f64) }
    } else {
        Trouble::Lasting
    };
    ModelError { message: format!("the model's API answered {}{words}", status.as_u16()), trouble }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &str)], body: &str) -> ModelError {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect();
        refused(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes())
    }

    #[test]
    fn what_passes_is_told_from_what_lasts() {
        let passing = |after| Trouble::Passing { retry_after: after };
        for (status, headers, expected) in [
            (429, vec![("retry-after", "7")], passing(Some(Duration::from_secs(7)))),
            (529, vec![], passing(None)),
            (503, vec![("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], passing(None)),
            (500, vec![("retry-after-ms", "250")], passing(Some(Duration::from_millis(250)))),
            (500, vec![("x-should-retry", "false")], Trouble::Lasting),
            (429, vec![("retry-after", "-1")], passing(None)),
            (400, vec![], Trouble::Lasting),
            (401, vec![], Trouble::Lasting),
            (404, vec![], Trouble::Lasting),
        ] {
            assert_eq!(refusal(status, &headers, "").trouble, expected, "{status} {headers:?}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_apis_words() {
        let body =
            r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#;
        assert_eq!(
            refusal(401, &[], body).message,
            "the model's API answered 401: invalid x-api-key (authentication_error)"
        );
        assert_eq!(refusal(502, &[], "<html>").message, "the model's API answered 502");
    }

    #[test]
    fn the_last_block_carries_the_mark_once() {
        let block = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let once = marked(&block(r#"{"type":"text","text":"}"}"#)).unwrap();
        assert_eq!(once.get(), r#"{"type":"text","text":"}","cache_control":{"type":"ephemeral"}}"#);
        assert!(marked(&once).is_none() && marked(&block("{}")).is_none());
    }

    #[test]
    fn only_a_web_address_is_asked() {
        let claude = |base: &str| Claude::new(reqwest::Client::new(), base, "k".into());
        let _ = rustls::crypto::ring::default_provider().install_default();
        assert_eq!(
            claude("https://api.anthropic.com/").unwrap().url.as_str(),
            "https://api.anthropic.com/v1/messages"
        );
        assert!(claude("file:///etc").is_err() && claude("nonsense").is_err());
    }
}
