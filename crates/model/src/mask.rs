//! Keeps clear secrets out of whatever is about to be written.
//!
//! A `Mask` knows values that must not be seen and replaces each by `[masked]`. Everything that reaches a log
//! goes through one (`server/src/telemetry/masking.rs`). It is the second line of defence: the first is that a
//! secret's type cannot be printed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memmem::Finder;
use secrecy::{ExposeSecret, SecretString};

/// Values shorter than this are not masked: they would blot out ordinary words and protect nobody.
const VALUE_BYTES_MIN: usize = 6;
const MASKED: &str = "[masked]";
/// How every token that Cofer makes begins.
pub const TOKEN_PREFIX: &str = "cofer_";
/// How many characters follow it.
pub const TOKEN_SECRET_CHARS: usize = 52;

#[derive(Default)]
pub struct Mask {
    hidden: BTreeSet<String>,
    finder: Option<AhoCorasick>,
    /// What must not be seen either, and changes.
    changing: Option<Arc<RwLock<Mask>>>,
}

impl Mask {
    /// Hides all of these.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut mask = Self::default();
        values.into_iter().for_each(|value| mask.hide(value));
        mask
    }

    /// From now on, hides this value, also as it reads inside a JSON string.
    pub fn hide(&mut self, value: &SecretString) {
        let clear = value.expose_secret();
        if clear.len() < VALUE_BYTES_MIN || self.hidden.contains(clear) {
            return;
        }
        self.hidden.insert(clear.to_owned());
        self.hidden.insert(escaped_as_json(clear));
        // The longest match first, so that a secret containing another is hidden whole. A set of values too
        // large to be searched for cannot happen: each was held in memory a moment ago.
        self.finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&self.hidden).ok();
    }

    /// How many texts it hides.
    pub fn hides(&self) -> usize {
        self.hidden.len()
    }

    /// From now on, hides whatever this other one hides at the time.
    pub fn follow(&mut self, changing: Arc<RwLock<Self>>) {
        self.changing = Some(changing);
    }

    /// The text without any hidden value and without anything that looks like a token of ours.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = match &self.finder {
            Some(finder) if finder.is_match(text) => {
                Cow::Owned(finder.replace_all(text, &vec![MASKED; self.hidden.len()]))
            }
            _ => Cow::Borrowed(text),
        };
        let text = match &self.changing {
            Some(changing) => {
                let changing = changing.read().unwrap_or_else(PoisonError::into_inner);
                match changing.apply(&text) {
                    Cow::Owned(masked) => Cow::Owned(masked),
                    Cow::Borrowed(_) => text,
                }
            }
            None => text,
        };
        mask_tokens(text)
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").field("hidden", &self.hidden.len()).finish_non_exhaustive()
    }
}

fn escaped_as_json(clear: &str) -> String {
    let mut escaped = String::with_capacity(clear.len());
    for c in clear.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if c < ' ' => _ = write!(escaped, "\\u{:04x}", u32::from(c)),
            c => escaped.push(c),
        }
    }
    escaped
}

fn mask_tokens(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some(first) = find_token(&text) else { return text };
    let mut masked = String::with_capacity(text.len());
    let (mut rest, mut next) = (&*text, Some(first));
    while let Some(at) = next {
        masked.push_str(&rest[..at + TOKEN_PREFIX.len()]);
        masked.push_str(MASKED);
        rest = &rest[at + TOKEN_PREFIX.len() + TOKEN_SECRET_CHARS..];
        next = find_token(rest);
    }
    masked.push_str(rest);
    Cow::Owned(masked)
}

/// Whether this has the form of a token that Cofer made, which nobody can guess.
pub fn is_of_our_making(token: &str) -> bool {
    token.len() == TOKEN_PREFIX.len() + TOKEN_SECRET_CHARS && find_token(token) == Some(0)
}

fn find_token(text: &str) -> Option<usize> {
    static PREFIX: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TOKEN_PREFIX));
    PREFIX.find_iter(text.as_bytes()).find(|at| {
        let secret =
            text.as_bytes().get(at + TOKEN_PREFIX.len()..at + TOKEN_PREFIX.len() + TOKEN_SECRET_CHARS);
        secret.is_some_and(|s| s.iter().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mask_of(values: &[&str]) -> Mask {
        let mut mask = Mask::default();
        for value in values {
            mask.hide(&SecretString::from(*value));
        }
        mask
    }

    #[test]
    fn what_changes_is_hidden_as_it_is_at_the_time() {
        let changing = Arc::new(RwLock::new(mask_of(&["first-token"])));
        let mut mask = mask_of(&["hunter2"]);
        mask.follow(changing.clone());
        assert_eq!(mask.apply("first-token hunter2"), "[masked] [masked]");
        changing.write().unwrap().hide(&"second-token".into());
        assert_eq!(mask.apply("second-token"), "[masked]");
    }

    #[test]
    fn hides_known_values_wherever_they_stand() {
        let mask = mask_of(&["hunter2hunter2", "hunter2"]);
        assert_eq!(mask.apply("key=hunter2hunter2, old=hunter2."), "key=[masked], old=[masked].");
    }

    #[test]
    fn hides_a_value_as_json_writes_it() {
        let mask = mask_of(&["line\nwith \"quotes\""]);
        let line = serde_json::to_string("the line\nwith \"quotes\" leaked").unwrap();
        assert_eq!(mask.apply(&line), "\"the [masked] leaked\"");
    }

    #[test]
    fn hides_tokens_that_nobody_told_it_of() {
        let token = format!("{TOKEN_PREFIX}{}", "a2".repeat(TOKEN_SECRET_CHARS / 2));
        let text = format!("Bearer {token} and {token}");
        assert_eq!(mask_of(&[]).apply(&text), "Bearer cofer_[masked] and cofer_[masked]");
        assert_eq!(mask_of(&[]).apply("cofer_server ran"), "cofer_server ran");
    }

    #[test]
    fn leaves_short_values_alone() {
        assert_eq!(mask_of(&["a", "on"]).apply("a server on a host"), "a server on a host");
    }

    proptest! {
        #[test]
        fn no_hidden_value_survives(value in "[a-z\"\\\\\n]{6,20}", before in ".{0,20}", after in ".{0,20}") {
            let text = format!("{before}{value}{after}");
            prop_assert!(!mask_of(&[&value]).apply(&text).contains(&value));
        }
    }
}
