//! What an upstream wants to see in headers of the arguments of its tools, as far as its tools are known.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

use super::outgoing::Outgoing;
use super::request::header_text;
use crate::mirror::Mirrored;
use crate::raw;

/// By tool. Shared between the wire and whoever learns of the tools.
#[derive(Debug, Default)]
pub struct Mirrors(RwLock<HashMap<String, Arc<[Mirrored]>>>);

impl Mirrors {
    /// These are its tools now.
    pub fn learn<'a>(&self, tools: impl Iterator<Item = (&'a str, &'a Arc<[Mirrored]>)>) {
        let known = tools.filter(|(_, mirrored)| !mirrored.is_empty());
        let known = known.map(|(tool, mirrored)| (tool.to_owned(), mirrored.clone())).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// For a message that stands alone.
    pub(super) fn headers_of(&self, message: &Outgoing) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let tool = message.label.as_ref().and_then(|label| label.name.as_deref());
        let Some(tool) = tool.filter(|_| message.method() == Some("tools/call")) else { return headers };
        let Some(mirrored) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(tool).cloned() else {
            return headers;
        };
        let Ok(whole) = serde_json::from_slice::<&RawValue>(&message.line) else { return headers };
        let Some(arguments) = raw::at(whole, &["params", "arguments"]) else { return headers };
        for one in mirrored.iter() {
            let name = HeaderName::try_from(format!("mcp-param-{}", one.header)).ok();
            let value =
                one.value_in(arguments).and_then(|value| HeaderValue::from_str(&header_text(&value)).ok());
            headers.extend(name.zip(value));
        }
        headers
    }
}
