//! The handshake of the older protocol (`initialize`, `notifications/initialized`), forgiving: a server that does not know it
//! is a server all the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::message::Reply;
use crate::pump::{CallError, Pump};

/// The newest version that begins with a handshake.
const PROTOCOL_VERSION: &str = "2025-11-25";

/// What a server said of itself.
#[derive(Clone, Debug, Default)]
pub struct Handshake {
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
        Handshake { protocol_version, server_info, capabilities, instructions }
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
