//! Tools that Cofer answers itself, through the same door and into the same record as any other.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use cofer_mcp::message::notification;
use cofer_mcp::raw;
use cofer_model::ProjectId;
use serde_json::value::RawValue;

use crate::call::Client;
use crate::outbox::Outbox;

/// The pseudo-server of native tools.
pub const NATIVE: &str = "native";

#[derive(Debug)]
pub struct Native {
    /// As in `tools/list`, its name included.
    pub description: Box<RawValue>,
    pub handler: Box<dyn NativeHandler>,
}

#[async_trait]
pub trait NativeHandler: Send + Sync + fmt::Debug {
    /// The result, as in `tools/call`. Dropping it calls it off.
    async fn call(&self, call: NativeCall<'_>) -> Box<RawValue>;

    /// Whether its calls are for a person to see.
    fn is_display(&self) -> bool {
        false
    }
}

/// One call of a native tool.
#[derive(Debug)]
pub struct NativeCall<'a> {
    pub arguments: Option<&'a RawValue>,
    pub project: ProjectId,
    pub trace_id: &'a str,
    pub progress: NativeProgress,
}

/// Tells whoever calls how far it is, if they want to hear of it. Clones tell the same.
#[derive(Clone, Debug, Default)]
pub struct NativeProgress(Option<(Arc<Outbox>, Arc<RawValue>)>);

impl NativeProgress {
    pub(crate) fn of(client: Option<Client<'_>>, params: &RawValue) -> Self {
        let token = raw::at(params, &["_meta", "progressToken"]);
        Self(client.zip(token).map(|(client, token)| (client.stream.clone(), token.to_owned().into())))
    }

    pub fn tell(&self, progress: f64, message: &str) {
        let Some((stream, token)) = &self.0 else { return };
        let message = raw::quoted(message);
        let params = format!(r#"{{"progressToken":{token},"progress":{progress},"message":{message}}}"#);
        if let Ok(params) = RawValue::from_string(params) {
            stream.push(notification("notifications/progress", Some(&params)));
        }
    }
}

/// A tool whose call is shown to the person, where there is one, and acknowledged to the model.
#[derive(Debug)]
pub struct Display;

#[async_trait]
impl NativeHandler for Display {
    async fn call(&self, _call: NativeCall<'_>) -> Box<RawValue> {
        text_result("shown to the user", false)
    }

    fn is_display(&self) -> bool {
        true
    }
}

/// A tool's result that is one text.
pub fn text_result(text: &str, is_error: bool) -> Box<RawValue> {
    let text = cofer_mcp::raw::quoted(text);
    let json = format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":{is_error}}}"#);
    RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
