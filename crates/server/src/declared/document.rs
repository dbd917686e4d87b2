//! A file as a tree: JSON with comments and trailing commas as editors leave it, or TOML. A key that occurs twice is an error,
//! because one of the two would be lost.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{DeclaredError, FILE_BYTES_MAX};

pub(super) fn parse(text: &str) -> Result<Map<String, Value>, DeclaredError> {
    let refused = |message: String| DeclaredError::new("", message);
    if text.len() > FILE_BYTES_MAX {
        return Err(refused(format!("the file is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let plain = without_comments(text);
    let document = if plain.trim_start().starts_with('{') {
        let parsed: Result<Unrepeated, _> = serde_json::from_str(&plain);
        parsed.map_err(|error| refused(format!("the file is not valid JSON: {error}")))?.0
    } else {
        let parsed: Result<toml::Table, _> = toml::from_str(text);
        let table = parsed.map_err(|error| refused(format!("the file is neither JSON nor TOML: {error}")))?;
        serde_json::to_value(table).map_err(|error| refused(error.to_string()))?
    };
    match document {
        Value::Object(fields) => Ok(fields),
        _ => Err(refused("the file must be an object, `{…}`, or TOML".to_owned())),
    }
}

/// The same text with spaces in the place of comments and of commas before a closing bracket, so that an error's line and
/// column are those of the file.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    // Where a comma is that nothing has followed yet, and what stood last before here.
    let (mut comma, mut last) = (None, ' ');
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('"', _) => {
                (comma, last) = (None, c);
                plain.push(c);
                copy_string(&mut rest, &mut plain);
            }
            ('/', Some('/')) => {
                while rest.peek().is_some_and(|c| *c != '\n') {
                    rest.next();
                }
            }
            ('/', Some('*')) => skip_block(&mut rest, &mut plain),
            (']' | '}', _) => {
                if let Some(at) = comma.take() {
                    plain.replace_range(at..=at, " ");
                }
                last = c;
                plain.push(c);
            }
            // One after nothing is a mistake, and stays.
            (',', _) if !matches!(last, '[' | '{' | ',' | ':') => {
                (comma, last) = (Some(plain.len()), c);
                plain.push(c);
            }
            (c, _) => {
                if !c.is_whitespace() {
                    (comma, last) = (None, c);
                }
                plain.push(c);
            }
        }
    }
    plain
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// The rest of a string, up to its closing quote.
fn copy_string(rest: &mut Rest<'_>, plain: &mut String) {
    while let Some(c) = rest.next() {
        plain.push(c);
        match c {
            '\\' => plain.extend(rest.next()),
            '"' => return,
            _ => {}
        }
    }
}

/// The rest of a comment, keeping its line ends.
fn skip_block(rest: &mut Rest<'_>, plain: &mut String) {
    rest.next();
    let mut before = ' ';
    for c in rest.by_ref() {
        match (before, c) {
            ('*', '/') => return,
            (_, '\n') => plain.push('\n'),
            _ => {}
        }
        before = c;
    }
}

/// A JSON value in which no key occurs twice.
struct Unrepeated(Value);

impl<'de> Deserialize<'de> for Unrepeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree).map(Self)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unrepeated(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((name, Unrepeated(value))) = fields.next_entry::<String, _>()? {
            if all.contains_key(&name) {
                let shown: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format!("`{shown}` occurs twice")));
            }
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn comments_and_trailing_commas_are_no_part_of_it() {
        let text = "\u{feff}// first\n{ /* a, \n b */ \"a\": [1, 2, // two\n ], \"u\": \"http://x/*y*/\", \"q\": \"\\\"//\", }\n";
        assert_eq!(
            Value::Object(parse(text).unwrap()),
            json!({"a": [1, 2], "u": "http://x/*y*/", "q": "\"//"})
        );
    }

    #[test]
    fn toml_is_read_as_well() {
        let document = parse("[servers.time]\ncommand = 'uvx'\nargs = ['//x']\n").unwrap();
        assert_eq!(
            Value::Object(document),
            json!({"servers": {"time": {"command": "uvx", "args": ["//x"]}}})
        );
    }

    #[test]
    fn a_refusal_says_where() {
        for (text, said) in [
            ("[]", "neither JSON nor TOML"),
            ("{\"a\": 1,,}", "not valid JSON"),
            ("{\n  \"a\": 1,\n  /* c\n */ \"b\" }", "line 4"),
            ("{\"a\": 1, \"a\": 2}", "`a` occurs twice"),
            ("{\"a\": {\"b\": 1, \"b\": 2}}", "`b` occurs twice"),
            ("{\"a\": [,]}", "not valid JSON"),
            ("a = 1\na = 2", "duplicate key"),
            ("<?xml version='1.0'?>", "neither JSON nor TOML"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(said), "{text}: {error}");
        }
        assert!(parse(&"{\"a\":".repeat(100_000)).unwrap_err().message.contains("recursion"));
        assert!(parse(&" ".repeat(FILE_BYTES_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn valid_json_means_the_same_whatever_is_in_its_strings(texts in proptest::collection::vec(".{0,12}", 0..6)) {
            let document = json!({"texts": texts});
            let parsed = parse(&serde_json::to_string_pretty(&document).unwrap()).unwrap();
            prop_assert_eq!(Value::Object(parsed), document);
        }

        #[test]
        fn no_text_whatever_breaks_the_reader(text in "[ \\[\\]{},:\"\\\\/*a1\n]{0,40}") {
            let _ = parse(&text);
        }
    }
}
