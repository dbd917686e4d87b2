//! Texts with `${NAME}` in them, where NAME is a secret. `$${NAME}` stands for `${NAME}` itself.
//!
//! Anything else with a dollar is left as it is, so that values which were never meant as templates come out whole.

use std::collections::{BTreeMap, BTreeSet};

use secrecy::{ExposeSecret, SecretString};

use crate::SecretName;

/// The secrets that these texts name.
pub fn names<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<SecretName> {
    let parts = texts.into_iter().flat_map(parts);
    parts.filter_map(|part| if let Part::Secret(name) = part { Some(name) } else { None }).collect()
}

/// The text with its secrets put in, or the names that are missing.
pub fn fill(
    text: &str,
    secrets: &BTreeMap<SecretName, SecretString>,
) -> Result<SecretString, BTreeSet<SecretName>> {
    let mut filled = String::with_capacity(text.len());
    let mut missing = BTreeSet::new();
    for part in parts(text) {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Secret(name) => match secrets.get(&name) {
                Some(value) => filled.push_str(value.expose_secret()),
                None => _ = missing.insert(name),
            },
        }
    }
    if missing.is_empty() { Ok(filled.into()) } else { Err(missing) }
}

/// The text with this in the place of each secret, to see whether the rest of it can be right.
pub fn with_each_as(text: &str, stand_in: &str) -> String {
    let part = |part: &Part<'_>| match part {
        Part::Text(text) => (*text).to_owned(),
        Part::Secret(_) => stand_in.to_owned(),
    };
    parts(text).iter().map(part).collect()
}

#[derive(Debug, PartialEq)]
enum Part<'a> {
    Text(&'a str),
    Secret(SecretName),
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let escaped = rest[..at].ends_with('$');
        let end = rest[at..].find('}').map(|length| at + length);
        let name = end.and_then(|end| SecretName::try_from(rest[at + 2..end].to_owned()).ok());
        match (name, end) {
            (Some(_), Some(end)) if escaped => {
                parts.push(Part::Text(&rest[..at - 1]));
                parts.push(Part::Text(&rest[at..=end]));
                rest = &rest[end + 1..];
            }
            (Some(name), Some(end)) => {
                parts.push(Part::Text(&rest[..at]));
                parts.push(Part::Secret(name));
                rest = &rest[end + 1..];
            }
            _ => {
                parts.push(Part::Text(&rest[..at + 2]));
                rest = &rest[at + 2..];
            }
        }
    }
    parts.push(Part::Text(rest));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(text: &str) -> Result<String, String> {
        let name = |text: &str| SecretName::try_from(text.to_owned()).unwrap();
        let secrets = BTreeMap::from([
            (name("KEY"), SecretString::from("k3y")),
            (name("URL"), SecretString::from("${KEY}")),
        ]);
        fill(text, &secrets)
            .map(|filled| filled.expose_secret().to_owned())
            .map_err(|missing| missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn names_are_replaced_by_their_secrets() {
        assert_eq!(filled("Bearer ${KEY}, again ${KEY}").as_deref(), Ok("Bearer k3y, again k3y"));
        assert_eq!(filled("nothing here").as_deref(), Ok("nothing here"));
    }

    #[test]
    fn what_a_secret_says_is_not_a_template() {
        assert_eq!(filled("${URL}").as_deref(), Ok("${KEY}"));
    }

    #[test]
    fn every_missing_name_is_told() {
        assert_eq!(filled("${B} ${KEY} ${A} ${B}"), Err("A B".to_owned()));
    }

    #[test]
    fn other_dollars_are_left_alone() {
        for text in ["$KEY", "${", "${}", "${not a name}", "cost: 5$", "$$", "${9}", "a}b"] {
            assert_eq!(filled(text).as_deref(), Ok(text));
        }
        assert_eq!(filled("$${KEY}").as_deref(), Ok("${KEY}"));
        assert_eq!(filled("${not ${KEY}").as_deref(), Ok("${not k3y"));
    }

    proptest! {
        #[test]
        fn a_text_without_names_comes_out_whole(text in "[a-z${} ]{0,40}") {
            prop_assume!(!text.contains("$$") && names([text.as_str()]).is_empty());
            prop_assert_eq!(filled(&text), Ok(text));
        }
    }
}
