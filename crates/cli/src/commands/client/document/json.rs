//! Servers in JSON, with comments and trailing commas.

use std::collections::HashSet;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde_json::Value;

use super::Servers;

const BYTE_ORDER_MARK: char = '\u{feff}';
const NOTHING_YET: &str = "{}\n";

/// What some client or other reads. What goes beyond would be read by us and by none of them.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

pub struct Json {
    is_marked: bool,
    root: CstRootNode,
    key: &'static str,
}

impl Json {
    pub fn read(text: &str, key: &'static str) -> Result<Self, String> {
        let unmarked = text.strip_prefix(BYTE_ORDER_MARK);
        let text = unmarked.unwrap_or(text);
        let text = if text.trim().is_empty() { NOTHING_YET } else { text };
        let root = CstRootNode::parse(text, &OPTIONS).map_err(|error| {
            format!("line {}, column {}: {}", error.line_display(), error.column_display(), error.kind())
        })?;
        let json = Self { is_marked: unmarked.is_some(), root, key };
        json.check()?;
        Ok(json)
    }

    fn check(&self) -> Result<(), String> {
        if self.root.value().is_some() && self.root.object_value().is_none() {
            return Err("it is JSON, but not an object".to_owned());
        }
        let Some(object) = self.root.object_value() else { return Ok(()) };
        check_names(names(&object).filter(|name| name == self.key))?;
        match object.get(self.key).map(|servers| servers.object_value()) {
            None => Ok(()),
            Some(Some(servers)) => check_names(names(&servers)),
            Some(None) => Err(format!("`{}` is not an object", self.key)),
        }
    }

    fn servers(&self) -> Option<CstObject> {
        self.root.object_value()?.object_value(self.key)
    }
}

fn names(object: &CstObject) -> impl Iterator<Item = String> {
    object.properties().into_iter().filter_map(|property| property.decoded_name())
}

/// Which of two properties with one name counts is for each client to say, so we do not guess.
fn check_names(names: impl Iterator<Item = String>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if let Some(name) = seen.replace(name) {
            return Err(format!("`{name}` stands there twice; remove one of them"));
        }
    }
    Ok(())
}

impl Servers for Json {
    fn entries(&self) -> Vec<(String, Value)> {
        let properties = self.servers().map(|servers| servers.properties()).unwrap_or_default();
        let named = |property: CstObjectProp| {
            Some((property.decoded_name()?, property.value()?.to_serde_value().unwrap_or_default()))
        };
        properties.into_iter().filter_map(named).collect()
    }

    fn put(&mut self, name: &str, entry: &Value) {
        let servers = self.root.object_value_or_set().object_value_or_set(self.key);
        match servers.get(name) {
            Some(property) => property.set_value(input(entry)),
            None => _ = servers.append(name, input(entry)),
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(property) = self.servers().and_then(|servers| servers.get(name)) {
            property.remove();
        }
    }

    fn text(&self) -> String {
        let mark = if self.is_marked { BYTE_ORDER_MARK.to_string() } else { String::new() };
        format!("{mark}{}", self.root)
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(truth) => CstInputValue::Bool(*truth),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(fields) => {
            CstInputValue::Object(fields.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
    }
}
