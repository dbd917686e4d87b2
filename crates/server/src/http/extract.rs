//! What handlers take out of a request, with every refusal in our envelope.
//!
//! [`Body`] is JSON of a known shape: sized, timed, unknown fields refused by name. [`Path`] is axum's,
//! with our words, and so is [`Query`].

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use cofer_model::Kind;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::error::{ApiError, shown};

/// How much may come, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub bytes_max: usize,
    pub timeout: Duration,
}

/// A JSON body of this shape.
#[derive(Clone, Copy, Debug)]
pub struct Body<T>(pub T);

impl<S, T> FromRequest<S> for Body<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
    BodyLimits: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        Self::read(&parts.headers, Given::Coming(body), BodyLimits::from_ref(state)).await
    }
}

impl<T: DeserializeOwned> Body<T> {
    pub(crate) async fn read(
        headers: &HeaderMap,
        given: Given,
        limits: BodyLimits,
    ) -> Result<Self, ApiError> {
        require_json(headers)?;
        parse(&given.read(limits).await?).map(Self)
    }
}

/// A body's bytes, whatever they are.
#[derive(Debug)]
pub(crate) enum Given {
    /// All of it has come.
    Whole(Bytes),
    Coming(axum::body::Body),
}

pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given == "application/json" {
        return Ok(());
    }
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(ApiError::new(
        Kind::UnsupportedMediaType,
        "the body must be JSON; send it with `Content-Type: application/json`",
    ))
}

impl Given {
    pub(crate) async fn read(self, limits: BodyLimits) -> Result<Bytes, ApiError> {
        let too_large = || {
            let message = format!("the body is larger than the {} bytes taken here", limits.bytes_max);
            Err(ApiError::new(Kind::TooLarge, message))
        };
        let body = match self {
            Self::Whole(bytes) if bytes.len() <= limits.bytes_max => return Ok(bytes),
            Self::Whole(_) => return too_large(),
            // Aside: what has come whole needs no room for it.
            Self::Coming(body) => Box::pin(Limited::new(body, limits.bytes_max).collect()),
        };
        match tokio::time::timeout(limits.timeout, body).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => too_large(),
            Ok(Err(_)) => Err(ApiError::new(Kind::Malformed, "the body broke off; send the request again")),
            Err(_elapsed) => {
                let message = format!("the body did not arrive within {:?}", limits.timeout);
                Err(ApiError::new(Kind::Timeout, message))
            }
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        // serde would take an array for an object, field by field.
        return Err(ApiError::invalid("", "the body must be a JSON object"));
    }
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    // Again, to say where it is wrong: to keep count of that costs as much as reading.
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        refuse(&path, error.inner())
    })?;
    json.end().map_err(|error| refuse(".", &error))?;
    Ok(value)
}

/// A part of a body, called `name`, whose shape is known only when the rest has been read.
pub(crate) fn part<T: DeserializeOwned>(name: &str, value: serde_json::Value) -> Result<T, ApiError> {
    if !value.is_object() {
        return Err(ApiError::invalid(name, format!("`{name}`: expected an object")));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().to_string();
        let inner = field_at(&error.path().to_string(), &message);
        let field = if inner.is_empty() { name.to_owned() } else { format!("{name}.{inner}") };
        ApiError::invalid(shown(&field), format!("`{}`: {}", shown(&field), without_values(&message)))
    })
}

fn refuse(path: &str, error: &serde_json::Error) -> ApiError {
    let message = error.to_string();
    match error.classify() {
        Category::Data => {
            let field = field_at(path, &message);
            let what = without_values(&message);
            let message = if field.is_empty() { what } else { format!("`{}`: {what}", shown(&field)) };
            ApiError::invalid(shown(&field), message)
        }
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::new(Kind::Malformed, format!("the body is not valid JSON: {}", shown_whole(&message)))
        }
    }
}

/// serde's words without what was sent: that may be a secret in the wrong place.
fn without_values(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let quotes_a_value = ["invalid type: ", "invalid value: ", "unknown variant "]
        .iter()
        .any(|start| message.starts_with(start));
    let expected = message.rsplit_once(", expected ").filter(|_| quotes_a_value);
    shown_whole(&match expected {
        Some((_, expected)) if expected.starts_with("struct ") => "expected an object".to_owned(),
        Some((_, expected)) => format!("expected {expected}"),
        None => message.to_owned(),
    })
}

/// The field an error is about. For one that is missing or unknown, the path ends at its parent and the message names it.
fn field_at(path: &str, message: &str) -> String {
    let parent = if path == "." { "" } else { path };
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split('`').next());
    match named {
        Some(name) if parent.is_empty() || parent == name => name.to_owned(),
        Some(name) if parent.ends_with(&format!(".{name}")) => parent.to_owned(),
        Some(name) => format!("{parent}.{name}"),
        None => parent.to_owned(),
    }
}

/// serde quotes what was sent; a message stays of readable length whatever that was.
fn shown_whole(message: &str) -> String {
    const CHARS_MAX: usize = 400;
    message.chars().take(CHARS_MAX).filter(|c| !c.is_control()).collect()
}

/// axum's path, answering in our envelope.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(inner)| Self(inner)).map_err(|rejection: PathRejection| {
            ApiError::new(
                Kind::Malformed,
                format!("the address cannot be read: {}", shown_whole(&rejection.body_text())),
            )
        })
    }
}

/// What follows the `?`, of this shape: unknown names are refused like unknown fields.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let given = axum::extract::Query::try_from_uri(&parts.uri);
        given.map(|axum::extract::Query(value)| Self(value)).map_err(|rejection| {
            let message = rejection.body_text();
            let message = message.split_once(": ").map_or(message.as_str(), |(_, message)| message);
            let (path, what) = match message.split_once(": ") {
                Some((path, what)) if !path.contains([' ', '`']) => (path, what),
                _ => (".", message),
            };
            let field = field_at(path, what);
            ApiError::invalid(shown(&field), format!("in the address: {}", without_values(what)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofer_model::ProjectName;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sent {
        #[expect(dead_code, reason = "only its parsing is looked at")]
        name: ProjectName,
        #[serde(default)]
        #[expect(dead_code, reason = "only its parsing is looked at")]
        ports: Vec<Port>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Port {
        #[expect(dead_code, reason = "only its parsing is looked at")]
        number: u16,
    }

    fn refusal(body: &str) -> String {
        let error = parse::<Sent>(body.as_bytes()).unwrap_err();
        format!(
            "{} {}",
            error.kind.code(),
            error.details.get("field").map(ToString::to_string).unwrap_or_default()
        )
    }

    #[test]
    fn a_refusal_names_the_field_wherever_it_is() {
        for (body, expected) in [
            (r#"{"name":"a","colour":"red"}"#, r#"validation_error "colour""#),
            ("{}", r#"validation_error "name""#),
            (r#"{"name":"a","name":"b"}"#, r#"validation_error "name""#),
            (r#"{"name":7}"#, r#"validation_error "name""#),
            (r#"{"name":"a/b"}"#, r#"validation_error "name""#),
            (
                r#"{"name":"a","ports":[{"number":1},{"number":"x"}]}"#,
                r#"validation_error "ports[1].number""#,
            ),
            (r#"{"name":"a","ports":[{"numbr":1}]}"#, r#"validation_error "ports[0].numbr""#),
            (r#"{"name":"a","ports":[{}]}"#, r#"validation_error "ports[0].number""#),
            (r#"["a"]"#, r#"validation_error """#),
            (r#""text""#, r#"validation_error """#),
            (r#"{"name":"a"} {}"#, "bad_request "),
            (r#"{"name":"#, "bad_request "),
            ("", "bad_request "),
            ("\u{0}", "bad_request "),
        ] {
            assert_eq!(refusal(body), expected, "{body}");
        }
    }

    #[test]
    fn what_was_sent_is_not_repeated() {
        for body in [
            r#""hunter2, expected x""#,
            r#"{"name":["hunter2"]}"#,
            r#"{"name":"a","ports":"hunter2"}"#,
            r#"{"name":"a","ports":[{"number":"hunter2"}]}"#,
        ] {
            let error = parse::<Sent>(body.as_bytes()).unwrap_err();
            assert!(
                error.message.contains("expected ") && !error.message.contains("hunter2"),
                "{}",
                error.message
            );
        }
    }

    proptest! {
        #[test]
        fn no_body_whatever_breaks_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Err(error) = parse::<Sent>(&bytes) {
                prop_assert!(matches!(error.kind, Kind::Malformed | Kind::Invalid));
            }
        }
    }
}
