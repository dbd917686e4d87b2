//! How a conversation begins, in either era. In the later one (see [`crate::era`]) a server is asked what it is, and whoever does not
//! know the question is of the earlier one. The handshake of that (`initialize`, `notifications/initialized`) is forgiving: a server that
//! does not know it is a server all the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::era::{self, Era, SERVER_INFO_KEY, STANDALONE_VERSION};
use crate::message::Reply;
use crate::pump::{CallError, Pump};

/// The newest version that begins with a handshake.
const PROTOCOL_VERSION: &str = "2025-11-25";

const DISCOVER_TRIES: usize = 2;

/// What a server said of itself.
#[derive(Clone, Debug, Default)]
pub struct Handshake {
    pub era: Era,
    /// Missing where the server does not know the handshake.
    pub protocol_version: Option<String>,
    pub server_info: Option<Value>,
    pub capabilities: Option<Value>,
    pub instructions: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: Option<String>,
    server_info: Option<Value>,
    capabilities: Option<Value>,
    instructions: Option<String>,
}

/// Asks a server what it is, as the later era does. `None` for one that does not know the question, or does not answer in time.
pub async fn discover(pump: &Pump, face: &Face, timeout: Duration) -> Result<Option<Handshake>, CallError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
        capabilities: Option<Value>,
        instructions: Option<String>,
        #[serde(rename = "_meta")]
        meta: Option<Value>,
    }
    let mut result = None;
    for _ in 0..DISCOVER_TRIES {
        let params = era::introduced(None, face, None);
        match pump.call_aside("server/discover", params, timeout).await {
            Ok(Reply::Result(said)) => {
                result = Some(said);
                break;
            }
            // It is of that era, and names our version after all.
            Ok(Reply::Error(error)) if era::is_supported(&error) => {}
            Ok(Reply::Error(_)) | Err(CallError::Timeout | CallError::Unreadable) => break,
            Err(error) => return Err(error),
        }
    }
    let Some(result) = result else { return Ok(None) };
    let said = serde_json::from_str::<Discovered>(result.get()).ok();
    let said =
        said.filter(|said| said.supported_versions.iter().any(|version| version == STANDALONE_VERSION));
    Ok(said.map(|Discovered { capabilities, instructions, meta, .. }| Handshake {
        era: Era::Standalone,
        protocol_version: Some(STANDALONE_VERSION.to_owned()),
        server_info: meta.and_then(|mut meta| meta.get_mut(SERVER_INFO_KEY).map(Value::take)),
        capabilities,
        instructions,
    }))
}

/// Shakes hands. Any answer will do, an error too: it shows that the server is there. Calls need not wait for it: a server that
/// passes over what it does not know would be waited for in vain.
///
/// `face` is what the client says of itself: `capabilities` and `clientInfo`, as it would send them.
pub async fn shake_hands(pump: &Pump, face: &Face, timeout: Duration) -> Result<Handshake, CallError> {
    let reply = pump.call_aside("initialize", Some(hello(face)), timeout).await?;
    let Reply::Result(result) = reply else { return Ok(Handshake::default()) };
    pump.notify("notifications/initialized", None);
    let said = serde_json::from_str::<Initialized>(result.get()).ok();
    let handshake = said.map(|Initialized { protocol_version, server_info, capabilities, instructions }| {
        Handshake { era: Era::Handshake, protocol_version, server_info, capabilities, instructions }
    });
    Ok(handshake.unwrap_or_default())
}

/// What a client shows of itself.
#[derive(Clone, Debug)]
pub struct Face {
    pub capabilities: Box<RawValue>,
    pub client_info: Box<RawValue>,
}

impl Default for Face {
    /// Cofer's own: it can have every question answered by whoever stands behind it.
    fn default() -> Self {
        let capabilities =
            r#"{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}"#;
        let client_info = format!(r#"{{"name":"cofer","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
        let raw = |text: String| RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { capabilities: raw(capabilities.to_owned()), client_info: raw(client_info) }
    }
}

fn hello(face: &Face) -> Box<RawValue> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Hello<'a> {
        protocol_version: &'static str,
        capabilities: &'a RawValue,
        client_info: &'a RawValue,
    }
    let Face { capabilities, client_info } = face;
    let hello = Hello { protocol_version: PROTOCOL_VERSION, capabilities, client_info };
    // A value made of JSON can always be written.
    to_raw_value(&hello).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
