//! What the model is offered: the project's tools that are wanted, with their whole schemas, under names that its API takes.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::names;
use crate::patterns::Patterns;
use crate::rest;

/// Of schemas the API takes no choice at the top.
const CHOICES: [&str; 3] = ["oneOf", "anyOf", "allOf"];

/// A tool of the project.
#[derive(Clone, Debug)]
pub struct Tool {
    /// What the project calls it.
    pub name: String,
    pub server: String,
    pub description: String,
    pub input_schema: Option<Box<RawValue>>,
    pub is_read_only: bool,
    /// Its calls are shown to the person.
    pub is_display: bool,
}

/// The tools of one turn.
#[derive(Debug)]
pub(crate) struct Offer {
    by_api_name: HashMap<String, Tool>,
    /// As the API wants them.
    pub(crate) json: Box<RawValue>,
}

#[derive(Serialize)]
struct Offered<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

/// Everything up to what carries this is remembered by the API.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum CacheControl {
    Ephemeral,
}

impl Offer {
    pub(crate) fn of(tools: Vec<Tool>, wanted: &Patterns) -> Self {
        let tools: Vec<Tool> =
            tools.into_iter().filter(|tool| wanted.mean(&tool.server, &tool.name)).collect();
        let own = std::iter::once(rest::NAME);
        let names = names::for_the_api(own.chain(tools.iter().map(|tool| tool.name.as_str())));
        let mut schemas = vec![(rest::description(), rest::schema())];
        schemas.extend(tools.iter().map(described));
        let last = schemas.len() - 1;
        let offered: Vec<_> = names
            .iter()
            .zip(&schemas)
            .enumerate()
            .map(|(at, (name, (description, input_schema)))| Offered {
                name,
                description,
                input_schema,
                cache_control: (at == last).then_some(CacheControl::Ephemeral),
            })
            .collect();
        let json = serde_json::value::to_raw_value(&offered).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { by_api_name: names.into_iter().skip(1).zip(tools).collect(), json }
    }

    /// Whom the model means. `None` if it made that name up.
    pub(crate) fn tool(&self, api_name: &str) -> Option<&Tool> {
        self.by_api_name.get(api_name)
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Its schema to the letter, unless the API would refuse the whole conversation for it.
fn described(tool: &Tool) -> (String, Box<RawValue>) {
    let any = || raw(r#"{"type":"object"}"#);
    let Some(schema) = &tool.input_schema else { return (tool.description.clone(), any()) };
    let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(schema.get()) else {
        return (tool.description.clone(), any());
    };
    let is_object = fields.get("type").is_some_and(|kind| kind.get() == "\"object\"");
    let choices: Vec<_> =
        CHOICES.iter().filter_map(|choice| Some(format!("{choice}: {}", fields.get(*choice)?))).collect();
    if is_object && choices.is_empty() {
        return (tool.description.clone(), schema.clone());
    }
    for choice in CHOICES {
        fields.remove(choice);
    }
    fields.insert("type".to_owned(), raw("\"object\""));
    let mut description = tool.description.clone();
    if !choices.is_empty() {
        // What cannot be said in the schema is said in words.
        description = format!("{description}\n\nThe input must also satisfy {}", choices.join("; "));
    }
    let schema = serde_json::value::to_raw_value(&fields).unwrap_or_else(|_| any());
    (description, schema)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tool(name: &str, schema: &str) -> Tool {
        Tool {
            name: name.to_owned(),
            server: "recipes".to_owned(),
            description: "Does.".to_owned(),
            input_schema: RawValue::from_string(schema.to_owned()).ok(),
            is_read_only: false,
            is_display: false,
        }
    }

    fn offered(tools: Vec<Tool>) -> Vec<Value> {
        serde_json::from_str(Offer::of(tools, &Patterns::default()).json.get()).unwrap()
    }

    #[test]
    fn schemas_are_offered_to_the_letter_and_the_last_tool_ends_what_is_remembered() {
        let odd = r#"{"type":"object","properties":{"n":{"type":"number","maximum":1e400}},"x-own":[1]}"#;
        let offer =
            Offer::of(vec![tool("a", r#"{"type":"object"}"#), tool("b.c", odd)], &Patterns::default());
        assert!(offer.json.get().contains(r#"{"type":"object","properties":{"n":{"type":"number","#));
        assert_eq!(offer.tool("b_c").unwrap().name, "b.c");
        assert!(offer.tool("b.c").is_none());
        let caching: Vec<_> = offer.json.get().matches("cache_control").collect();
        assert_eq!(caching.len(), 1);
        assert!(offer.json.get().ends_with(r#""cache_control":{"type":"ephemeral"}}]"#));
    }

    #[test]
    fn a_schema_that_the_api_refuses_costs_nobody_the_conversation() {
        let tools = offered(vec![
            tool("choice", r#"{"type":"object","anyOf":[{"required":["a"]}],"properties":{"a":{}}}"#),
            tool("untyped", r#"{"properties":{"a":{}}}"#),
            tool("none", "true"),
        ]);
        let schema = |at: usize| tools[at]["input_schema"].clone();
        assert_eq!(schema(1), json!({"type": "object", "properties": {"a": {}}}));
        assert!(tools[1]["description"].as_str().unwrap().contains(r#"anyOf: [{"required":["a"]}]"#));
        assert_eq!(schema(2), json!({"type": "object", "properties": {"a": {}}}));
        assert_eq!(schema(3), json!({"type": "object"}));
    }
}
