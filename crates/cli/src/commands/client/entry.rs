//! What is written into a client's file, and how it is known again.
//!
//! An entry is ours by what it says, not by a list that we keep: it starts a `cofer stdio`, or it shows a token that only Cofer
//! makes. So it stays ours when the file is copied to another machine, and is no longer when somebody rewrites it.

use std::ffi::OsStr;
use std::path::Path;

use cofer_model::Kind;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::known::Known;
use crate::exit::Failure;

/// What every token of Cofer's making begins with.
const TOKEN_BEGINS: &str = "cofer_";
/// In the place of a token that is not made, or not shown.
pub const TOKEN_HIDDEN: &str = "cofer_…";

const NAME_CHARACTERS_MAX: usize = 64;

#[derive(Debug)]
pub enum Entry {
    /// A program for the client to start. Holds no secret.
    Stdio { command: String, args: Vec<String> },
    /// An address, and what to show there.
    Http { url: String, token: SecretString },
}

impl Entry {
    /// As this client wants it.
    pub fn spelled_for(&self, known: Known) -> Result<Value, Failure> {
        let mut spelled = Map::new();
        let mut say = |field: &str, value: Value| _ = spelled.insert(field.to_owned(), value);
        match self {
            Self::Stdio { command, args } => {
                if known.says_type() {
                    say("type", json!("stdio"));
                }
                say("command", json!(command));
                say("args", json!(args));
            }
            Self::Http { url, token } => {
                let spelling = known.http().ok_or_else(|| takes_programs_alone(known))?;
                if known.says_type() {
                    say("type", json!("http"));
                }
                say(spelling.url, json!(url));
                let shown = format!("Bearer {}", token.expose_secret());
                say(spelling.headers, json!({"Authorization": shown}));
            }
        }
        Ok(Value::Object(spelled))
    }
}

pub fn takes_programs_alone(known: Known) -> Failure {
    let message = format!(
        "{} takes no addresses in its file, only programs that it starts; leave `--http` out",
        known.title()
    );
    Failure::new(Kind::Invalid, message)
}

/// `stdio` or `http` for an entry of ours, however it came to be there.
pub fn ours(entry: &Value) -> Option<&'static str> {
    let starts_us = entry["command"].as_str().is_some_and(is_cofer) && entry["args"][0] == "stdio";
    let shows_our_token = ["headers", "http_headers"].iter().any(|headers| {
        let shown = entry[*headers]["Authorization"].as_str();
        shown
            .and_then(|shown| shown.strip_prefix("Bearer "))
            .is_some_and(|token| token.starts_with(TOKEN_BEGINS))
    });
    match (starts_us, shows_our_token) {
        (true, _) => Some("stdio"),
        (_, true) => Some("http"),
        _ => None,
    }
}

fn is_cofer(command: &str) -> bool {
    let path = Path::new(command);
    path.file_name() == Some(OsStr::new("cofer")) || std::env::current_exe().is_ok_and(|own| own == path)
}

/// A name that every client takes.
pub fn checked_name(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= NAME_CHARACTERS_MAX && name.chars().all(fits) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "a name is up to {NAME_CHARACTERS_MAX} letters, digits, `-` and `_`, because not every client takes others"
    ))
}

/// The same text, with every token of ours left out.
pub fn without_tokens(text: &str) -> String {
    let mut parts = text.split(TOKEN_BEGINS);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        let token_characters = part.len() - rest.len();
        if token_characters >= TOKEN_CHARACTERS_MIN {
            shown.push_str(TOKEN_HIDDEN);
            shown.push_str(rest);
        } else {
            shown.push_str(TOKEN_BEGINS);
            shown.push_str(part);
        }
    }
    shown
}

/// Shorter ones are words, such as `cofer_data`.
const TOKEN_CHARACTERS_MIN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_known_by_what_they_say() {
        let stdio = |command: &str, first: &str| json!({"command": command, "args": [first]});
        assert_eq!(ours(&stdio("/usr/bin/cofer", "stdio")), Some("stdio"));
        assert_eq!(ours(&stdio("cofer", "stdio")), Some("stdio"));
        assert_eq!(ours(&json!({"headers": {"Authorization": "Bearer cofer_abc"}})), Some("http"));
        assert_eq!(ours(&json!({"http_headers": {"Authorization": "Bearer cofer_abc"}})), Some("http"));
        for foreign in [
            stdio("/usr/bin/cofer", "serve"),
            stdio("/usr/bin/coffer", "stdio"),
            json!({"headers": {"Authorization": "Bearer other"}}),
            json!({"command": ["cofer"], "args": "stdio"}),
            json!({"args": {"0": "stdio"}, "headers": []}),
            json!([]),
            json!("cofer"),
            Value::Null,
        ] {
            assert_eq!(ours(&foreign), None, "{foreign}");
        }
    }

    #[test]
    fn tokens_are_left_out_and_words_are_not() {
        let token = format!("cofer_{}", "A1b2".repeat(13));
        let said = format!("\"Bearer {token}\", cofer_data, {token}");
        assert_eq!(without_tokens(&said), "\"Bearer cofer_…\", cofer_data, cofer_…");
    }

    #[test]
    fn names_are_what_every_client_takes() {
        assert!(["cofer", "a-b_C9"].iter().all(|name| checked_name(name).is_ok()));
        let long = "a".repeat(65);
        assert!(["", "a.b", "a b", "ä", "\"", long.as_str()].iter().all(|name| checked_name(name).is_err()));
    }
}
