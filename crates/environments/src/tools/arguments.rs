//! A tool's arguments, asked for by name. What is missing or of another kind is told with its name.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{EnvError, Result};

const TEXT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct Arguments(Map<String, Value>);

impl Arguments {
    pub fn new(value: Option<Value>) -> Result<Self> {
        match value {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(Value::Object(all)) => Ok(Self(all)),
            Some(_) => {
                Err(EnvError::invalid("arguments", "the arguments are no object", "send them by name"))
            }
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn optional(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text)),
            Some(Value::String(_)) => Err(wrong(name, "is too long")),
            Some(_) => Err(wrong(name, "is no text")),
        }
    }

    pub fn text(&self, name: &str) -> Result<&str> {
        self.optional(name)?.ok_or_else(|| missing(name))
    }

    pub fn path(&self, name: &str) -> Result<PathBuf> {
        self.text(name).map(|path| Path::new(path).to_owned())
    }

    pub fn flag(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
            Some(_) => Err(wrong(name, "is neither true nor false")),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<usize>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => whole(value)
                .and_then(|number| usize::try_from(number).ok())
                .map(Some)
                .ok_or_else(|| wrong(name, "is no whole number from 0 on")),
        }
    }

    pub fn ports(&self, name: &str) -> Result<Vec<u16>> {
        let no_ports = || wrong(name, "is no list of ports from 1 to 65535");
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let port = |value: &Value| {
            whole(value)
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port > 0)
                .ok_or_else(no_ports)
        };
        value.as_array().ok_or_else(no_ports)?.iter().map(port).collect()
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        let no_texts = || wrong(name, "is no list of texts");
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned).ok_or_else(no_texts);
        value.as_array().ok_or_else(no_texts)?.iter().map(text).collect::<Result<_>>().map(Some)
    }

    /// The arguments inside an argument.
    pub fn inner(&self, name: &str) -> Result<Self> {
        match self.get(name) {
            Some(Value::Object(all)) => Ok(Self(all.clone())),
            Some(_) => Err(wrong(name, "is no object")),
            None => Err(missing(name)),
        }
    }
}

/// Some clients write whole numbers with a point.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "looked at just before")]
        is_whole.then_some(number as u64)
    })
}

fn missing(name: &str) -> EnvError {
    EnvError::invalid(
        "arguments",
        format!("required argument \"{name}\" not found"),
        format!("send `{name}`"),
    )
}

fn wrong(name: &str, what: &str) -> EnvError {
    EnvError::invalid("arguments", format!("argument \"{name}\" {what}"), "look at the tool's schema")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_or_of_another_kind_is_named() {
        let arguments =
            Arguments::new(Some(json!({"title": 7, "ports": ["x"], "background": "maybe", "n": -1})))
                .unwrap();
        for (error, part) in [
            (arguments.text("title").unwrap_err(), "\"title\" is no text"),
            (arguments.text("command").unwrap_err(), "required argument \"command\" not found"),
            (arguments.ports("ports").unwrap_err(), "\"ports\""),
            (arguments.flag("background").unwrap_err(), "\"background\""),
            (arguments.number("n").unwrap_err(), "\"n\""),
        ] {
            assert!(error.message.contains(part), "{error}");
        }
        assert!(Arguments::new(Some(json!([1]))).is_err());
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point() {
        let arguments = Arguments::new(Some(json!({"ports": [8080.0, 80], "bad": [70000]}))).unwrap();
        assert_eq!(arguments.ports("ports").unwrap(), [8080, 80]);
        assert!(arguments.ports("bad").is_err());
    }
}
