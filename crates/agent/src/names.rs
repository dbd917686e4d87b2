//! What the model calls the tools. Its API takes few characters, so a name that has others is written in another way, which depends
//! on nothing but the name, and is led back.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

const NAME_CHARS_MAX: usize = 128;

/// A name for each, all different and all to the API's taste. Those that are as they should be stay as they are.
pub(crate) fn for_the_api<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut taken: HashSet<String> =
        names.clone().filter(|name| is_valid(name)).map(ToOwned::to_owned).collect();
    let mut first_of: HashSet<&str> = HashSet::new();
    let mut given = Vec::new();
    for name in names {
        if is_valid(name) && first_of.insert(name) {
            given.push(name.to_owned());
            continue;
        }
        let plain: String =
            name.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(NAME_CHARS_MAX).collect();
        let plain = if plain.is_empty() { "_".to_owned() } else { plain };
        let is_whole = name.chars().count() <= NAME_CHARS_MAX;
        let mut chosen = if is_whole { plain.clone() } else { marked(&plain, name, 0) };
        for attempt in 0.. {
            if taken.insert(chosen.clone()) {
                break;
            }
            chosen = marked(&plain, name, attempt);
        }
        given.push(chosen);
    }
    given
}

fn is_valid(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(is_allowed)
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// With an end that tells it from others that would be written alike.
fn marked(plain: &str, name: &str, attempt: u32) -> String {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(format!("{name}\0{attempt}")));
    let mark = format!("_{:08x}", u32::from_be_bytes([a, b, c, d]));
    let kept: String = plain.chars().take(NAME_CHARS_MAX - mark.len()).collect();
    format!("{kept}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_the_api_takes_are_kept_and_others_written_otherwise() {
        let given = for_the_api(["create_recipe", "fs/read.file", "grün", "fs_read_file"].into_iter());
        assert_eq!(given[0], "create_recipe");
        assert_eq!(given[3], "fs_read_file");
        assert!(given[1].starts_with("fs_read_file_"), "{given:?}");
        assert_eq!(given[2], "gr_n");
    }

    proptest! {
        #[test]
        fn all_are_valid_and_different(names in proptest::collection::vec("[a-c./ü]{0,4}|[a-z.]{120,140}", 0..40)) {
            let given = for_the_api(names.iter().map(String::as_str));
            prop_assert_eq!(given.len(), names.len());
            prop_assert!(given.iter().all(|name| is_valid(name)), "{:?}", given);
            let different: HashSet<_> = given.iter().collect();
            prop_assert_eq!(different.len(), given.len());
        }
    }
}
