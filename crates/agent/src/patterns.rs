//! Which tools are meant: names with `*` for anything, and `!` in front for all but these.

use serde::Deserialize;

const PATTERNS_MAX: usize = 256;
const PATTERN_CHARS_MAX: usize = 256;

/// `["git_*", "!git_push"]`. Where none includes, those that exclude are taken from everything; what is excluded stays so. An empty list means
/// nothing, and no list ([`Patterns::default`]) everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Patterns {
    is_everything: bool,
    included: Vec<String>,
    excluded: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadPattern {
    #[error("at most {PATTERNS_MAX} patterns are taken")]
    TooMany,
    #[error("a pattern has 1 to {PATTERN_CHARS_MAX} characters, `!` in front not counted")]
    Length,
}

impl Default for Patterns {
    fn default() -> Self {
        Self { is_everything: true, included: Vec::new(), excluded: Vec::new() }
    }
}

impl TryFrom<Vec<String>> for Patterns {
    type Error = BadPattern;

    fn try_from(texts: Vec<String>) -> Result<Self, BadPattern> {
        if texts.len() > PATTERNS_MAX {
            return Err(BadPattern::TooMany);
        }
        let mut patterns = Self::default();
        for text in texts {
            let (list, pattern) = match text.strip_prefix('!') {
                Some(excluded) => (&mut patterns.excluded, excluded.to_owned()),
                None => (&mut patterns.included, text),
            };
            if !(1..=PATTERN_CHARS_MAX).contains(&pattern.chars().count()) {
                return Err(BadPattern::Length);
            }
            list.push(pattern);
        }
        patterns.is_everything = patterns.included.is_empty() && !patterns.excluded.is_empty();
        Ok(patterns)
    }
}

impl Patterns {
    /// Whether a tool of this name is meant. Its server's name and `__` may stand in front in a pattern.
    pub fn mean(&self, server: &str, name: &str) -> bool {
        let qualified = format!("{server}__{name}");
        let any = |patterns: &[String]| {
            patterns.iter().any(|pattern| matches(pattern, name) || matches(pattern, &qualified))
        };
        (self.is_everything || any(&self.included)) && !any(&self.excluded)
    }

    /// Whether it is meant by its very name.
    pub fn name_exactly(&self, server: &str, name: &str) -> bool {
        let is_it = |pattern: &String| {
            !pattern.contains('*')
                && (pattern == name
                    || pattern.strip_prefix(server).and_then(|rest| rest.strip_prefix("__")) == Some(name))
        };
        self.included.iter().any(is_it)
    }
}

/// The parts between the stars, one after another; the first at the beginning, the last at the end.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(patterns: &[&str]) -> Vec<&'static str> {
        let patterns =
            Patterns::try_from(patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>()).unwrap();
        let all = ["git_push", "git_status", "fetch"];
        all.into_iter().filter(|name| patterns.mean("box", name)).collect()
    }

    #[test]
    fn patterns_include_and_exclude() {
        assert_eq!(meant(&[]), Vec::<&str>::new());
        assert!(Patterns::default().mean("box", "fetch"));
        assert_eq!(meant(&["git_*"]), ["git_push", "git_status"]);
        assert_eq!(meant(&["git_*", "!*push"]), ["git_status"]);
        assert_eq!(meant(&["!fetch"]), ["git_push", "git_status"]);
        assert_eq!(meant(&["!fetch", "fetch"]), Vec::<&str>::new());
        assert_eq!(meant(&["box__*"]), ["git_push", "git_status", "fetch"]);
        assert_eq!(meant(&["*t*s*"]), ["git_push", "git_status"]);
        assert_eq!(meant(&["nothing"]), Vec::<&str>::new());
    }

    #[test]
    fn a_list_that_nobody_needs_is_refused() {
        assert!(Patterns::try_from(vec!["a".to_owned(); 257]).is_err());
        for bad in ["", "!", &"x".repeat(257)] {
            assert!(Patterns::try_from(vec![bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn many_stars_are_no_trouble() {
        assert!(!matches(&"*a".repeat(120), &"a".repeat(100)));
        assert!(matches(&"*a".repeat(100), &"a".repeat(100_000)));
    }
}
