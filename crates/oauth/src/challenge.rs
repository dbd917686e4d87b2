//! What a server wants to see, as it says with a 401 or 403 (`WWW-Authenticate`, RFC 6750 and 9728).

/// The `Bearer` part of it; everything may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Where its metadata are.
    pub resource_metadata: Option<String>,
    pub scopes: Vec<String>,
    pub error: Option<String>,
}

impl Challenge {
    /// Reads what is there of it; a header may have challenges of several schemes.
    pub fn read(header: &str) -> Self {
        let mut found = Self::default();
        let mut is_bearer = false;
        let mut rest = header;
        while let Some((word, after)) = word(rest) {
            let Some(value) = after.trim_start().strip_prefix('=').filter(|_| !word.is_empty()) else {
                is_bearer = word.eq_ignore_ascii_case("bearer");
                rest = after;
                continue;
            };
            let (value, after) = value_of(value.trim_start());
            rest = after;
            if is_bearer {
                found.take(word, value);
            }
        }
        found
    }

    /// Whether it lets us in, but not to this.
    pub fn wants_more_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }

    fn take(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => self.resource_metadata = Some(value),
            "scope" => self.scopes = value.split_ascii_whitespace().map(ToOwned::to_owned).collect(),
            "error" => self.error = Some(value),
            _ => {}
        }
    }
}

/// The next word, and what follows it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', '\t', ',']);
    if text.is_empty() {
        return None;
    }
    let end = text.find([' ', '\t', ',', '=']).unwrap_or(text.len());
    // A `=` where a word should be is passed over, so that this comes to an end.
    if end == 0 { Some(("", &text[1..])) } else { Some((&text[..end], &text[end..])) }
}

/// A value, quoted or not, and what follows it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            plain => value.push(plain),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(header: &str) -> (Option<String>, String, Option<String>) {
        let Challenge { resource_metadata, scopes, error } = Challenge::read(header);
        (resource_metadata, scopes.join(" "), error)
    }

    #[test]
    fn the_bearer_part_is_found_among_others_and_however_it_is_written() {
        let some = |text: &str| Some(text.to_owned());
        for (header, expected) in [
            ("Bearer", (None, "", None)),
            (r#"Bearer resource_metadata="https://a/b", scope="x y""#, (some("https://a/b"), "x y", None)),
            (r#"bearer scope=x,error="insufficient_scope""#, (None, "x", some("insufficient_scope"))),
            (
                r#"Basic realm="scope=\"z\"", Bearer error = "invalid_token""#,
                (None, "", some("invalid_token")),
            ),
            (r#"Bearer scope="a b", Basic scope="c""#, (None, "a b", None)),
            (r#"Digest scope="a""#, (None, "", None)),
            ("", (None, "", None)),
        ] {
            assert_eq!(read(header), (expected.0, expected.1.to_owned(), expected.2), "{header}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_there_reading_comes_to_an_end(header in "\\PC*") {
            let _ = Challenge::read(&header);
        }
    }
}
