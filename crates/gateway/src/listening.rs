//! A client that only listens (`subscriptions/listen`): what it wants to hear of, and how it is told.

use std::collections::HashSet;

use cofer_mcp::era::SUBSCRIPTION_KEY;
use cofer_mcp::message::notification;
use cofer_mcp::raw;
use serde::Deserialize;
use serde_json::value::RawValue;

const URIS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Wanted {
    /// The id of its request, which is in everything that it is told.
    id: Box<RawValue>,
    filter: Filter,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: HashSet<String>,
}

impl Wanted {
    /// Says what is wrong with it.
    pub(crate) fn read(id: &RawValue, params: Option<&RawValue>) -> Result<Self, String> {
        let filter = params.and_then(|params| raw::at(params, &["notifications"]));
        let filter = filter.ok_or("`notifications` is missing: say what you want to hear of")?;
        let filter: Filter =
            serde_json::from_str(filter.get()).map_err(|error| format!("`notifications`: {error}"))?;
        if filter.resource_subscriptions.len() > URIS_MAX {
            return Err(format!("more than {URIS_MAX} resources cannot be subscribed to at once"));
        }
        Ok(Self { id: id.to_owned(), filter })
    }

    pub(crate) fn uris(&self) -> impl Iterator<Item = &String> {
        self.filter.resource_subscriptions.iter()
    }

    /// The first thing that it hears: what it will hear of.
    pub(crate) fn acknowledgement(&self) -> Vec<u8> {
        let Filter {
            tools_list_changed,
            prompts_list_changed,
            resources_list_changed,
            resource_subscriptions,
        } = &self.filter;
        let mut granted = serde_json::Map::new();
        for (name, is_wanted) in [
            ("toolsListChanged", tools_list_changed),
            ("promptsListChanged", prompts_list_changed),
            ("resourcesListChanged", resources_list_changed),
        ] {
            if *is_wanted {
                granted.insert(name.to_owned(), true.into());
            }
        }
        if !resource_subscriptions.is_empty() {
            let mut uris: Vec<_> = resource_subscriptions.iter().cloned().collect();
            uris.sort();
            granted.insert("resourceSubscriptions".to_owned(), uris.into());
        }
        let params = format!("{{{},\"notifications\":{}}}", self.meta(), serde_json::Value::from(granted));
        let params = RawValue::from_string(params).ok();
        notification("notifications/subscriptions/acknowledged", params.as_deref())
    }

    /// How it is told of this; `None` if it does not want to be.
    pub(crate) fn told(&self, method: &str, params: Option<&RawValue>) -> Option<Vec<u8>> {
        let is_wanted = match method {
            "notifications/tools/list_changed" => self.filter.tools_list_changed,
            "notifications/prompts/list_changed" => self.filter.prompts_list_changed,
            "notifications/resources/list_changed" => self.filter.resources_list_changed,
            "notifications/resources/updated" => true,
            _ => false,
        };
        if !is_wanted {
            return None;
        }
        let bare = params.map(|params| raw::without(params, "_meta").unwrap_or_else(|| params.to_owned()));
        let rest = bare.as_deref().and_then(|params| params.get().strip_prefix('{')).unwrap_or("}");
        let comma = if rest.trim_start() == "}" { "" } else { "," };
        let params = RawValue::from_string(format!("{{{}{comma}{rest}", self.meta())).ok();
        Some(notification(method, params.as_deref()))
    }

    fn meta(&self) -> String {
        format!("\"_meta\":{{\"{SUBSCRIPTION_KEY}\":{}}}", self.id)
    }

    /// The answer when it is over, for as long as anybody can hear it.
    pub(crate) fn farewell(&self) -> Box<RawValue> {
        RawValue::from_string(format!("{{\"resultType\":\"complete\",{}}}", self.meta()))
            .unwrap_or_else(|_| raw::empty_object())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn it_is_told_of_what_it_wants_with_its_own_id_and_nothing_else() {
        let params =
            json(r#"{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a:1"],"x":1}}"#);
        let wanted = Wanted::read(&json("\"l1\""), Some(&params)).unwrap();
        let text = |message: Vec<u8>| String::from_utf8(message).unwrap().trim_end().to_owned();
        let meta = r#""_meta":{"io.modelcontextprotocol/subscriptionId":"l1"}"#;
        assert_eq!(
            text(wanted.acknowledgement()),
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{{meta},"notifications":{{"toolsListChanged":true,"resourceSubscriptions":["a:1"]}}}}}}"#
            )
        );
        assert!(wanted.told("notifications/prompts/list_changed", None).is_none());
        assert!(wanted.told("notifications/message", None).is_none());
        let updated = json(r#"{"uri":"a:1","_meta":{"io.modelcontextprotocol/subscriptionId":77}}"#);
        assert_eq!(
            text(wanted.told("notifications/resources/updated", Some(&updated)).unwrap()),
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{{meta},"uri":"a:1"}}}}"#
            )
        );
        for bad in ["{}", r#"{"notifications":1}"#, r#"{"notifications":{"toolsListChanged":"yes"}}"#] {
            assert!(Wanted::read(&json("1"), Some(&json(bad))).is_err(), "{bad}");
        }
    }
}
