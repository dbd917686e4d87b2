//! Tools that Cofer answers itself, through the same door and into the same record as any other.

use std::fmt;

use async_trait::async_trait;
use serde_json::value::RawValue;

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
    /// The result, as in `tools/call`.
    async fn call(&self, arguments: Option<&RawValue>) -> Box<RawValue>;

    /// Whether its calls are for a person to see.
    fn is_display(&self) -> bool {
        false
    }
}

/// A tool whose call is shown to the person, where there is one, and acknowledged to the model.
#[derive(Debug)]
pub struct Display;

#[async_trait]
impl NativeHandler for Display {
    async fn call(&self, _arguments: Option<&RawValue>) -> Box<RawValue> {
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
