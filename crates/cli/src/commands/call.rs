//! `cofer call`: one tool, by hand. What is typed becomes what the tool's schema says: `n=5` is a number where a number is wanted.

use std::io::Read;

use clap::Args;
use cofer_model::Kind;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::external::project_of;
use super::tools::Listed;
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, harmless, harmless_json, harmless_lines, print_line};

const FILE_BYTES_MAX: u64 = 16 << 20;

/// Call a tool
#[derive(Debug, Args)]
pub struct Call {
    /// The tool's name, as `cofer tools` lists it
    tool: String,
    /// `key=value`, `key:=JSON`, or `@FILE` with a JSON object (`@-` reads standard input)
    #[arg(value_name = "ARGUMENT")]
    arguments: Vec<String>,
    /// How long to wait [default: the server's]
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u64>,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Serialize)]
struct Body<'a> {
    name: &'a str,
    arguments: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

impl Call {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.target.client()?;
        let project = project_of(&client, self.project.as_deref()).await?;
        let schema = if self.arguments.iter().any(|argument| is_typed(argument)) {
            schema_of(&self.tool, &Listed::of(&client, &project).await?)
        } else {
            None
        };
        let arguments = arguments(&self.arguments, &schema.unwrap_or_default(), &read_file)?;
        let body = Body { name: &self.tool, arguments: &arguments, timeout_ms: self.timeout_ms };
        let result = client.post_raw(&["projects", &project, "tools", "call"], &body).await?;
        show(&self.tool, &result, format)
    }
}

/// Without one, what is typed is JSON where it reads as such, and a text otherwise.
fn schema_of(name: &str, listed: &Listed) -> Option<Value> {
    #[derive(Deserialize)]
    struct Tool<'a> {
        name: String,
        #[serde(borrow)]
        input_schema: Option<&'a RawValue>,
    }
    let tools = listed.tools.iter().filter_map(|tool| serde_json::from_str::<Tool<'_>>(tool.get()).ok());
    let tool = tools.into_iter().find(|tool| tool.name == name)?;
    serde_json::from_str(tool.input_schema?.get()).ok()
}

fn show(tool: &str, result: &RawValue, format: Format) -> Result<(), Failure> {
    // A result with a number that nothing here can hold is shown as it came.
    let parsed: Option<Value> = serde_json::from_str(result.get()).ok();
    let text = parsed.as_ref().map_or_else(|| harmless_json(result.get()), in_words);
    let failed = parsed.is_some_and(|result| result["isError"] == true);
    match format {
        Format::Json => print_line(&harmless_json(result.get()))?,
        Format::Text if !failed => print_line(&text)?,
        Format::Text => {}
    }
    match failed {
        false => Ok(()),
        true if text.starts_with("Unknown tool: ") => {
            let message = format!("there is no tool `{}`; `cofer tools` lists what there is", harmless(tool));
            Err(Failure::new(Kind::NotFound, message))
        }
        true => Err(Failure::new(Kind::Upstream, format!("{} failed: {text}", harmless(tool)))),
    }
}

/// What a person reads of a result.
fn in_words(result: &Value) -> String {
    let blocks = result["content"].as_array().into_iter().flatten().map(block);
    let text = blocks.collect::<Vec<_>>().join("\n");
    match (&result["structuredContent"], text.is_empty()) {
        (Value::Null, _) | (_, false) => text,
        (structured, true) => harmless_json(&serde_json::to_string_pretty(structured).unwrap_or_default()),
    }
}

fn block(block: &Value) -> String {
    let text = |field: &str| block[field].as_str().unwrap_or_default();
    match text("type") {
        "text" => harmless_lines(text("text")),
        "image" | "audio" => format!(
            "[{} {}, {} bytes in base64]",
            text("type"),
            harmless(text("mimeType")),
            text("data").len()
        ),
        "resource_link" => format!("[resource {}]", harmless(text("uri"))),
        "resource" => {
            let resource = &block["resource"];
            let content = resource["text"].as_str().map(harmless_lines);
            content.unwrap_or_else(|| {
                format!("[resource {}]", harmless(resource["uri"].as_str().unwrap_or_default()))
            })
        }
        _ => harmless_json(&block.to_string()),
    }
}

/// Whether the tool's schema has a say in it.
fn is_typed(argument: &str) -> bool {
    !argument.starts_with(['@', '{']) && argument.split_once('=').is_some_and(|(key, _)| !key.ends_with(':'))
}

type ReadFile = dyn Fn(&str) -> Result<String, Failure>;

fn read_file(path: &str) -> Result<String, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::new(Kind::Invalid, format!("@{path} cannot be read: {error}"));
    let mut text = String::new();
    match path {
        "-" => std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text),
        path => {
            std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        }
    }
    .map_err(unreadable)?;
    Ok(text)
}

/// The object that was typed, piece by piece; later pieces win.
fn arguments(given: &[String], schema: &Value, read: &ReadFile) -> Result<Value, Failure> {
    let mut all = Map::new();
    for argument in given {
        if let Some(path) = argument.strip_prefix('@') {
            all.extend(object_in(&format!("@{path}"), &read(path)?)?);
        } else if argument.starts_with('{') {
            all.extend(object_in("the argument", argument)?);
        } else {
            let (key, value) = pair(argument, schema)?;
            all.insert(key, value);
        }
    }
    Ok(Value::Object(all))
}

fn object_in(what: &str, text: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Failure::new(Kind::Invalid, format!("{what} is JSON, but not an object `{{…}}`"))),
        Err(error) => Err(Failure::new(Kind::Invalid, format!("{what} is not JSON: {error}"))),
    }
}

fn pair(argument: &str, schema: &Value) -> Result<(String, Value), Failure> {
    let Some((key, text)) = argument.split_once('=') else {
        let message = format!("`{argument}` is not an argument; write `key=value`, `key:=JSON` or `@FILE`");
        return Err(Failure::new(Kind::Invalid, message));
    };
    if let Some(key) = key.strip_suffix(':') {
        let value = serde_json::from_str(text);
        let value = value.map_err(|error| {
            Failure::new(Kind::Invalid, format!("the value of `{key}` is not JSON: {error}"))
        })?;
        return Ok((key.to_owned(), value));
    }
    Ok((key.to_owned(), typed(key, text, &schema["properties"][key])?))
}

/// The text as the first of the wanted types that it can be.
fn typed(key: &str, text: &str, property: &Value) -> Result<Value, Failure> {
    let wanted = types(property);
    let json = serde_json::from_str::<Value>(text).ok();
    for wanted in &wanted {
        match (wanted.as_str(), &json) {
            ("string", _) => return Ok(text.into()),
            ("integer", Some(Value::Number(number))) if number.is_i64() || number.is_u64() => {
                return Ok(number.clone().into());
            }
            ("number", Some(value @ Value::Number(_)))
            | ("boolean", Some(value @ Value::Bool(_)))
            | ("array", Some(value @ Value::Array(_)))
            | ("object", Some(value @ Value::Object(_)))
            | ("null", Some(value @ Value::Null)) => return Ok(value.clone()),
            _ => {}
        }
    }
    // A list of texts may be typed without the brackets.
    if wanted == ["array"]
        && types(&property["items"]).iter().all(|item| item == "string")
        && !text.starts_with('[')
    {
        return Ok(text.split(',').map(|item| Value::from(item.trim())).collect());
    }
    if wanted.is_empty() {
        return Ok(json.unwrap_or_else(|| text.into()));
    }
    let example = match wanted[0].as_str() {
        "boolean" => "true or false",
        "array" => "a list, such as '[1, 2]'",
        "object" => "an object, such as '{\"a\": 1}'",
        other => other,
    };
    Err(Failure::new(Kind::Invalid, format!("`{key}` is to be {example}; `{}` is not", harmless(text))))
}

/// The types that a schema allows, strings last: nearly everything can be read as one.
fn types(schema: &Value) -> Vec<String> {
    let named = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let mut types: Vec<String> = match &schema["type"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(several) => several.iter().filter_map(named).collect(),
        _ => {
            let choices = ["anyOf", "oneOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten();
            let listed = schema["enum"].as_array().into_iter().flatten().filter(|value| value.is_string());
            choices.flat_map(types).chain(listed.map(|_| "string".to_owned())).collect()
        }
    };
    types.sort_by_key(|name| name == "string");
    types.dedup();
    types
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn typed_as(argument: &str) -> Result<Value, Kind> {
        let schema = json!({"type": "object", "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"}, "deep": {"type": "object"},
            "yes": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "string"}}, "numbers": {"type": "array", "items": {"type": "number"}},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, "colour": {"enum": ["red", "1"]}, "open": {}}});
        let read = |path: &str| Ok(format!("{{\"file\": \"{path}\", \"n\": 12345678901234567890}}"));
        arguments(&[argument.to_owned()], &schema, &read).map_err(|failure| failure.kind)
    }

    #[test]
    fn what_is_typed_becomes_what_the_schema_says() {
        for (argument, made) in [
            ("text=5", json!({"text": "5"})),
            ("text=a=b", json!({"text": "a=b"})),
            ("text=", json!({"text": ""})),
            ("count=5", json!({"count": 5})),
            ("ratio=0.5", json!({"ratio": 0.5})),
            ("yes=true", json!({"yes": true})),
            ("list=a, b", json!({"list": ["a", "b"]})),
            ("list=[\"a\"]", json!({"list": ["a"]})),
            ("deep={\"a\":1}", json!({"deep": {"a": 1}})),
            ("maybe=5", json!({"maybe": 5})),
            ("maybe=x", json!({"maybe": "x"})),
            ("maybe=null", json!({"maybe": null})),
            ("colour=1", json!({"colour": "1"})),
            ("open=5", json!({"open": 5})),
            ("open=five", json!({"open": "five"})),
            ("unknown=x", json!({"unknown": "x"})),
            ("text:=5", json!({"text": 5})),
            ("@args.json", json!({"file": "args.json", "n": 12_345_678_901_234_567_890_u64})),
            ("{\"a\": 1}", json!({"a": 1})),
        ] {
            assert_eq!(typed_as(argument), Ok(made), "{argument}");
        }
        for bad in [
            "count=x",
            "count=1.5",
            "yes=1",
            "numbers=a",
            "deep=[]",
            "text:=x",
            "word",
            "{",
            "{\"a\"",
            "{}{}",
        ] {
            assert_eq!(typed_as(bad), Err(Kind::Invalid), "{bad}");
        }
    }

    #[test]
    fn a_result_reads_as_a_person_would_want_it() {
        let result = json!({"content": [{"type": "text", "text": "a\u{1b}[2Jb"}, {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "uri": "file:///x"}, {"type": "new", "x": 1}]});
        insta::assert_snapshot!(in_words(&result), @r#"
        a [2Jb
        [image image/png, 4 bytes in base64]
        [resource file:///x]
        {"type":"new","x":1}
        "#);
        assert_eq!(in_words(&json!({"content": [], "structuredContent": {"n": 1}})), "{\n  \"n\": 1\n}");
    }
}
