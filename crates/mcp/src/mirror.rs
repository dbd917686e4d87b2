//! Arguments of a tool that its calls repeat in headers (`x-mcp-header` in its schema), for whoever stands in between and does not read
//! bodies.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::raw;

const MARK: &str = "x-mcp-header";
const DEPTH_MAX: usize = 32;
/// Whole numbers that every reader of JSON can tell apart.
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// One argument, and the header that repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// What follows `Mcp-Param-`.
    pub header: String,
    path: Vec<String>,
    is_integer: bool,
}

/// Those of a tool, by its description; or what is wrong with what it says of them.
pub fn mirrored(tool: &RawValue) -> Result<Arc<[Mirrored]>, String> {
    if !tool.get().contains(MARK) {
        return Ok(Arc::new([]));
    }
    let schema =
        raw::at(tool, &["inputSchema"]).and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
    let schema = schema.unwrap_or_default();
    let mut found = Vec::new();
    look_into(&schema, &mut Vec::new(), &mut found)?;
    if found.len() != count(&schema) {
        return Err(format!("`{MARK}` stands where no argument can be found by its path"));
    }
    for (at, one) in found.iter().enumerate() {
        if found[..at].iter().any(|other| other.header.eq_ignore_ascii_case(&one.header)) {
            return Err(format!("`{MARK}` names `{}` twice", one.header));
        }
    }
    Ok(found.into())
}

/// Down the chain of `properties`, and nowhere else.
fn look_into(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirrored>) -> Result<(), String> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
    if path.len() >= DEPTH_MAX {
        return Ok(());
    }
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(mark) = property.get(MARK) {
            found.push(read(mark, property, path)?);
        }
        look_into(property, path, found)?;
        path.pop();
    }
    Ok(())
}

fn read(mark: &Value, property: &Value, path: &[String]) -> Result<Mirrored, String> {
    let header = mark.as_str().filter(|name| is_token(name));
    let header = header.ok_or_else(|| format!("`{MARK}` is {mark}, which is no name of a header"))?;
    let is_integer = match property.get("type").and_then(Value::as_str) {
        Some("string" | "boolean") => false,
        Some("integer") => true,
        _ => {
            return Err(format!(
                "`{MARK}` is on `{}`, which is no text, whole number or truth value",
                path.join(".")
            ));
        }
    };
    Ok(Mirrored { header: header.to_owned(), path: path.to_vec(), is_integer })
}

/// As HTTP has it.
fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// How often it stands anywhere.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let here = usize::from(fields.get(MARK).is_some_and(|mark| !mark.is_object()));
            here + fields.values().map(count).sum::<usize>()
        }
        Value::Array(values) => values.iter().map(count).sum(),
        _ => 0,
    }
}

impl Mirrored {
    /// What the header must say for these arguments; nothing where they do not have it.
    pub fn value_in(&self, arguments: &RawValue) -> Option<String> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        match serde_json::from_str(raw::at(arguments, &path)?.get()).ok()? {
            Value::String(text) => Some(text),
            Value::Bool(truth) => Some(truth.to_string()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Whether a header says what the arguments do.
    pub fn is_same(&self, shown: Option<&str>, meant: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.abs() <= SAFE_INTEGER_MAX);
        match (shown, meant) {
            (Some(shown), Some(meant)) if self.is_integer => {
                shown == meant || number(shown).is_some_and(|shown| number(meant) == Some(shown))
            }
            (shown, meant) => shown == meant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(schema: &str) -> Box<RawValue> {
        RawValue::from_string(format!(r#"{{"name":"t","inputSchema":{schema}}}"#)).unwrap()
    }

    #[test]
    fn arguments_are_found_along_properties_and_compared_by_what_they_mean() {
        let schema = r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},
            "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"plain":{"type":"string"}}}"#;
        let found = mirrored(&tool(schema)).unwrap();
        let arguments = RawValue::from_string(r#"{"region":"größe","deep":{"n":42}}"#.to_owned()).unwrap();
        let values: Vec<_> =
            found.iter().map(|one| (one.header.as_str(), one.value_in(&arguments))).collect();
        assert_eq!(values.len(), 2);
        assert!(
            values.contains(&("Region", Some("größe".to_owned())))
                && values.contains(&("N", Some("42".to_owned())))
        );
        let number = found.iter().find(|one| one.header == "N").unwrap();
        assert!(number.is_same(Some("42.0"), Some("42")) && !number.is_same(Some("43"), Some("42")));
        assert!(
            number.is_same(None, None)
                && !number.is_same(None, Some("42"))
                && !number.is_same(Some("1"), None)
        );
        let nothing = RawValue::from_string(r#"{"region":null}"#.to_owned()).unwrap();
        assert!(found.iter().all(|one| one.value_in(&nothing).is_none()));
        assert!(mirrored(&tool(r#"{"properties":{"x-mcp-header":{"type":"string"}}}"#)).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_mirrored_is_said() {
        for schema in [
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":7}}}"#,
            r#"{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"oneOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}"#,
        ] {
            assert!(mirrored(&tool(schema)).is_err(), "{schema}");
        }
    }
}
