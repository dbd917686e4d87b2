//! Changing one value in a text of JSON, and not a byte more.
//!
//! What passes through Cofer is carried as it came. Where a name or a token must become another, only that value is replaced: the
//! order of fields, their spelling, the spaces between them and whatever we do not know stay as they were.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The value at this path of field names, where there is one.
pub fn at<'a>(json: &'a RawValue, path: &[&str]) -> Option<&'a RawValue> {
    path.iter().try_fold(json, |object, name| several(object, [*name])[0])
}

/// The values of these fields of an object, in one look. The last of a name counts, as it does for most readers.
pub fn several<'a, const N: usize>(object: &'a RawValue, names: [&str; N]) -> [Option<&'a RawValue>; N] {
    let mut json = serde_json::Deserializer::from_str(object.get());
    json.deserialize_map(Several(names)).unwrap_or([None; N])
}

/// The text at this path.
pub fn text_at<'a>(json: &'a RawValue, path: &[&str]) -> Option<Cow<'a, str>> {
    text(at(json, path)?)
}

/// The text that this is.
pub fn text(json: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str(json.get()).ok().map(|Text(text)| text)
}

#[derive(serde::Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// The same text with another value at this path; `None` where there is no such path.
pub fn with(json: &RawValue, path: &[&str], value: &str) -> Option<Box<RawValue>> {
    replaced(json, at(json, path)?, value)
}

/// The same text with another value in the place of this one, which was found in it.
pub(crate) fn replaced(json: &RawValue, old: &RawValue, value: &str) -> Option<Box<RawValue>> {
    let begin = old.get().as_ptr().addr().checked_sub(json.get().as_ptr().addr())?;
    let before = json.get().get(..begin)?;
    let after = json.get().get(begin + old.get().len()..)?;
    let mut text = String::with_capacity(before.len() + value.len() + after.len());
    for part in [before, value, after] {
        text.push_str(part);
    }
    RawValue::from_string(text).ok()
}

/// The object with one more field in front; `None` if it is no object.
pub fn with_new(json: &RawValue, name: &str, value: &str) -> Option<Box<RawValue>> {
    let rest = json.get().strip_prefix('{')?;
    let comma = if rest.trim_start() == "}" { "" } else { "," };
    RawValue::from_string(format!("{{{}:{value}{comma}{rest}", quoted(name))).ok()
}

/// The object without this field; `None` if it is not there.
pub fn without(json: &RawValue, name: &str) -> Option<Box<RawValue>> {
    let rest = fields(json)?.into_iter().filter(|(field, _)| field != name);
    at(json, &[name])?;
    let rest: Vec<_> = rest.map(|(field, value)| format!("{}:{value}", quoted(&field))).collect();
    RawValue::from_string(format!("{{{}}}", rest.join(","))).ok()
}

/// Every field of an object, in its order.
pub fn fields(json: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    struct Fields;
    impl<'de> Visitor<'de> for Fields {
        type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let entries = std::iter::from_fn(|| map.next_entry::<Text<'de>, _>().transpose());
            entries.map(|entry| entry.map(|(Text(name), value)| (name, value))).collect()
        }
    }
    serde_json::Deserializer::from_str(json.get()).deserialize_map(Fields).ok()
}

pub fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// A text as JSON has it.
pub fn quoted(text: &str) -> String {
    if is_plain(text) { ["\"", text, "\""].concat() } else { serde_json::Value::from(text).to_string() }
}

/// Whether a text reads the same inside JSON.
pub fn is_plain(text: &str) -> bool {
    // All of it, whatever is found: many bytes are looked at at once then.
    text.bytes().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\'))
}

struct Several<'n, const N: usize>([&'n str; N]);

impl<'de, const N: usize> Visitor<'de> for Several<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(which) = map.next_key_seed(OneOf(&self.0))? {
            match which {
                Some(place) => found[place] = Some(map.next_value()?),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

/// Which of these a key is, if it is one.
struct OneOf<'n>(&'n [&'n str]);

impl<'de> DeserializeSeed<'de> for OneOf<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for OneOf<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, key: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|name| *name == key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn only_the_value_changes_and_everything_else_stays_to_the_letter() {
        let json =
            raw(r#"{ "z": 1e400, "name" : "old", "_meta":{"progressToken": 7,"x":[ ]}, "a":"\u00e9" }"#);
        assert_eq!(
            with(&json, &["name"], "\"new\"").unwrap().get(),
            r#"{ "z": 1e400, "name" : "new", "_meta":{"progressToken": 7,"x":[ ]}, "a":"\u00e9" }"#
        );
        assert_eq!(
            with(&json, &["_meta", "progressToken"], "\"t\"").unwrap().get(),
            r#"{ "z": 1e400, "name" : "old", "_meta":{"progressToken": "t","x":[ ]}, "a":"\u00e9" }"#
        );
        assert!(with(&json, &["missing"], "1").is_none());
        assert!(with(&json, &["name", "deeper"], "1").is_none());
    }

    #[test]
    fn values_are_found_under_names_however_these_are_written() {
        let json = raw(r#"{"n\u0061me":"x","list":[{"name":"inner"}],"name":"last"}"#);
        assert_eq!(text_at(&json, &["name"]).unwrap(), "last");
        assert_eq!(at(&json, &["list"]).unwrap().get(), r#"[{"name":"inner"}]"#);
        assert!(text_at(&json, &["list"]).is_none());
        assert!(at(&raw("[1]"), &["name"]).is_none());
        let [list, missing, name] = several(&json, ["list", "missing", "name"]);
        assert_eq!(
            (list.map(RawValue::get), missing.map(RawValue::get), name.map(RawValue::get)),
            (Some(r#"[{"name":"inner"}]"#), None, Some("\"last\""))
        );
    }

    #[test]
    fn a_field_is_taken_out_and_the_others_stay() {
        let json = raw(r#"{"a":1.0,"b":{"a":2},"c":"\u00e9"}"#);
        assert_eq!(without(&json, "a").unwrap().get(), r#"{"b":{"a":2},"c":"\u00e9"}"#);
        assert!(without(&json, "d").is_none() && without(&raw("[]"), "a").is_none());
    }

    #[test]
    fn a_field_is_added_in_front() {
        assert_eq!(with_new(&raw("{}"), "a", "1").unwrap().get(), r#"{"a":1}"#);
        assert_eq!(with_new(&raw(r#"{"b":2}"#), "a", "1").unwrap().get(), r#"{"a":1,"b":2}"#);
        assert!(with_new(&raw("[]"), "a", "1").is_none());
    }
}
