//! The handshake of the older protocol (`initialize`, `notifications/initialized`), forgiving: a server that does not know it
//! is a server all the same.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: Option<String>,
    server_info: Option<Value>,
    capabilities: Option<Value>,
}

/// Shakes hands. Any answer will do, an error too: it shows that the server is there. Calls need not wait for it: a server that
/// passes over what it does not know would be waited for in vain.
pub async fn shake_hands(pump: &Pump, timeout: Duration) -> Result<Handshake, CallError> {
    let reply = pump.call_aside("initialize", Some(hello()), timeout).await?;
    let Reply::Result(result) = reply else { return Ok(Handshake::default()) };
    pump.notify("notifications/initialized", None);
    let said = serde_json::from_str::<Initialized>(result.get()).ok();
    let handshake = said.map(|Initialized { protocol_version, server_info, capabilities }| Handshake {
        protocol_version,
        server_info,
        capabilities,
    });
    Ok(handshake.unwrap_or_default())
}

fn hello() -> Box<RawValue> {
    let client = json!({"name": "cofer", "version": env!("CARGO_PKG_VERSION")});
    let hello = json!({"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client});
    // A value made of texts can always be written.
    to_raw_value(&hello).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
