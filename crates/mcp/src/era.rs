//! The two eras of the protocol. Up to 2025-11-25 a conversation begins with a handshake, and both sides ask. Since 2026-07-28 every
//! request stands alone: it says in `_meta` which version it speaks and what its client can do, and a server that needs something of the
//! client answers that it does.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use crate::handshake::Face;
use crate::message::{INVALID_PARAMS, RpcError};
use crate::raw;

/// The first version of the later era, and the only one so far.
pub const STANDALONE_VERSION: &str = "2026-07-28";

pub const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CAPABILITY: i64 = -32021;
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// What all of these names have, however their slash is written.
const PREFIX: &str = "io.modelcontextprotocol";
pub const PROTOCOL_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
pub const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Era {
    /// Up to 2025-11-25.
    #[default]
    Handshake,
    /// Since 2026-07-28.
    Standalone,
}

/// What a request of the later era says of itself.
#[derive(Debug)]
pub struct Introduction<'a> {
    pub protocol_version: Cow<'a, str>,
    pub capabilities: &'a RawValue,
    pub client_info: Option<&'a RawValue>,
    pub log_level: Option<Cow<'a, str>>,
}

/// Whether it is worth a look at what these parameters say of themselves: those of the earlier era say nothing.
pub fn may_be_introduced(params: &RawValue) -> bool {
    params.get().contains(PREFIX)
}

/// A request's `_meta`: what it says of the request itself, and what else.
#[derive(Debug, Default)]
pub struct Meta<'a> {
    protocol_version: Option<Cow<'a, str>>,
    capabilities: Option<&'a RawValue>,
    client_info: Option<&'a RawValue>,
    log_level: Option<Cow<'a, str>>,
    /// Field by field, as JSON.
    rest: String,
}

impl<'a> Meta<'a> {
    pub fn read(meta: &'a RawValue) -> Result<Self, RpcError> {
        let mut json = serde_json::Deserializer::from_str(meta.get());
        json.deserialize_map(MetaVisitor).map_err(|error| bad_meta(&error.to_string()))
    }

    /// The parameters in which it was found, without what it says of them.
    pub fn taken_out_of(&self, params: &RawValue, meta: &RawValue) -> Option<Box<RawValue>> {
        raw::replaced(params, meta, &format!("{{{}}}", self.rest))
    }
}

struct MetaVisitor;

impl<'de> Visitor<'de> for MetaVisitor {
    type Value = Meta<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Meta<'de>, A::Error> {
        let mut meta = Meta::default();
        while let Some(raw::Text(name)) = map.next_key()? {
            match &*name {
                PROTOCOL_VERSION_KEY => meta.protocol_version = text(&mut map)?,
                CAPABILITIES_KEY => meta.capabilities = map.next_value()?,
                CLIENT_INFO_KEY => meta.client_info = map.next_value()?,
                LOG_LEVEL_KEY => meta.log_level = text(&mut map)?,
                _ => {
                    let value: &RawValue = map.next_value()?;
                    let comma = if meta.rest.is_empty() { "" } else { "," };
                    for part in [comma, &raw::quoted(&name), ":", value.get()] {
                        meta.rest.push_str(part);
                    }
                }
            }
        }
        Ok(meta)
    }
}

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    map.next_value::<Option<raw::Text<'de>>>().map(|text| text.map(|raw::Text(text)| text))
}

impl<'a> Introduction<'a> {
    /// From a request's `_meta`. `None` for one that says nothing of itself, as those of the earlier era do.
    pub fn read(meta: Meta<'a>) -> Result<Option<Self>, RpcError> {
        let Some(protocol_version) = meta.protocol_version else {
            return match meta.capabilities {
                Some(_) => Err(bad_meta(&format!("`{PROTOCOL_VERSION_KEY}` is missing"))),
                None => Ok(None),
            };
        };
        let capabilities = meta
            .capabilities
            .filter(|capabilities| capabilities.get().starts_with('{'))
            .ok_or_else(|| {
                bad_meta(&format!(
                    "`{CAPABILITIES_KEY}` is missing; a client that can do nothing says `{{}}`"
                ))
            })?;
        let (client_info, log_level) = (meta.client_info, meta.log_level);
        Ok(Some(Self { protocol_version, capabilities, client_info, log_level }))
    }

    pub fn face(&self) -> Face {
        Face {
            capabilities: self.capabilities.to_owned(),
            client_info: self.client_info.map_or_else(|| Face::default().client_info, ToOwned::to_owned),
        }
    }
}

fn bad_meta(what: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("`_meta` of the request: {what}"))
}

/// Whether a server that refuses a version names ours among those that it takes.
pub(crate) fn is_supported(refusal: &RpcError) -> bool {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let data = refusal.data.as_deref().filter(|_| refusal.code == UNSUPPORTED_VERSION);
    data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok())
        .is_some_and(|data| data.supported.iter().any(|version| version == STANDALONE_VERSION))
}

/// The parameters of a request with what it must say of itself; what `_meta` has besides stays.
pub fn introduced(
    params: Option<Box<RawValue>>,
    face: &Face,
    log_level: Option<&str>,
) -> Option<Box<RawValue>> {
    let params = params.unwrap_or_else(raw::empty_object);
    let level = log_level.map(|level| format!(",\"{LOG_LEVEL_KEY}\":{}", raw::quoted(level)));
    let own = format!(
        "\"{PROTOCOL_VERSION_KEY}\":\"{STANDALONE_VERSION}\",\"{CAPABILITIES_KEY}\":{},\"{CLIENT_INFO_KEY}\":{}{}",
        face.capabilities,
        face.client_info,
        level.unwrap_or_default()
    );
    match raw::at(&params, &["_meta"]) {
        // As the client wrote it: it speaks this version itself.
        Some(meta) if raw::at(meta, &[PROTOCOL_VERSION_KEY]).is_some() => Some(params),
        Some(meta) => {
            let rest = meta.get().trim_start().strip_prefix('{')?;
            let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
            raw::with(&params, &["_meta"], &format!("{{{own}{comma}{rest}"))
        }
        None => raw::with_new(&params, "_meta", &format!("{{{own}}}")),
    }
}

/// The parameters without what a request of the later era says of itself, for a server of the earlier one; the rest of `_meta` stays.
pub fn unintroduced(params: Box<RawValue>) -> Box<RawValue> {
    if !may_be_introduced(&params) {
        return params;
    }
    let Some(meta) = raw::at(&params, &["_meta"]) else { return params };
    let Ok(said) = Meta::read(meta) else { return params };
    said.taken_out_of(&params, meta).unwrap_or(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn read(params: &RawValue) -> Result<Option<Introduction<'_>>, RpcError> {
        raw::at(params, &["_meta"]).map_or(Ok(None), of)
    }

    fn of(meta: &RawValue) -> Result<Option<Introduction<'_>>, RpcError> {
        Meta::read(meta).and_then(Introduction::read)
    }

    #[test]
    fn a_request_is_introduced_once_and_keeps_what_else_it_says() {
        let face = Face { capabilities: json("{}"), client_info: json(r#"{"name":"c"}"#) };
        let introduced = |params: Option<&str>| introduced(params.map(json), &face, None).unwrap();
        for params in
            [None, Some(r#"{"name":"x"}"#), Some(r#"{"_meta":{}}"#), Some(r#"{"_meta":{"progressToken":7}}"#)]
        {
            let once = introduced(params);
            let said = read(&once).unwrap().unwrap();
            assert_eq!(
                (&*said.protocol_version, said.face().client_info.get()),
                ("2026-07-28", r#"{"name":"c"}"#)
            );
            assert_eq!(introduced(Some(once.get())).get(), once.get());
            let without = unintroduced(once.clone());
            assert!(read(&without).unwrap().is_none(), "{without}");
            assert_eq!(without.get().contains("progressToken"), once.get().contains("progressToken"));
            let token = raw::at(&once, &["_meta", "progressToken"]).map(RawValue::get);
            assert_eq!(token, params.filter(|params| params.contains('7')).map(|_| "7"));
        }
    }

    #[test]
    fn a_slash_may_be_escaped() {
        let params = json(
            r#"{"_meta":{"io.modelcontextprotocol\/protocolVersion":"2026-07-28","io.modelcontextprotocol\/clientCapabilities":{}}}"#,
        );
        assert!(read(&params).unwrap().is_some());
        assert_eq!(unintroduced(params).get(), r#"{"_meta":{}}"#);
    }

    #[test]
    fn a_version_is_tried_again_only_where_it_is_named() {
        let refusal = |code, data: &str| RpcError { code, message: String::new(), data: Some(json(data)) };
        assert!(is_supported(&refusal(-32022, r#"{"supported":["2099-01-01","2026-07-28"]}"#)));
        assert!(!is_supported(&refusal(-32022, r#"{"supported":["2099-01-01"]}"#)));
        assert!(!is_supported(&refusal(-32601, r#"{"supported":["2026-07-28"]}"#)));
        assert!(!is_supported(&RpcError::new(-32022, "no")));
    }

    #[test]
    fn what_is_missing_is_named_and_who_says_nothing_is_of_the_earlier_era() {
        assert!(read(&json(r#"{"_meta":{"progressToken":1}}"#)).unwrap().is_none());
        for (meta, missing) in [
            (r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#, CAPABILITIES_KEY),
            (r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#, PROTOCOL_VERSION_KEY),
            (r#"{"io.modelcontextprotocol/protocolVersion":1}"#, "invalid type"),
        ] {
            let meta = json(meta);
            let error = of(&meta).unwrap_err();
            assert!(error.code == INVALID_PARAMS && error.message.contains(missing), "{error:?}");
        }
    }
}
