//! What a project's tools and prompts are called to the outside.
//!
//! A server's own names are kept where they can be. Where two servers have the same name, the project's [`Namespacing`] decides; the
//! qualified form `server__name` always leads to the one that is meant. No name is longer than 64 characters, because one that is
//! breaks whole sessions of some clients: what would be longer ends in a mark that depends on nothing but the name itself.

use std::collections::HashMap;

use cofer_model::Namespacing;
use sha2::{Digest, Sha256};

const NAME_CHARS_MAX: usize = 64;
const MARK_CHARS: usize = 8;
const BETWEEN: &str = "__";

/// One name of one server, as it is offered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Which of the servers, and which of its names.
    pub server: usize,
    pub item: usize,
    pub name: String,
    /// The later server that answers to this name; the offer is listed under its qualified name only where people look.
    pub shadowed_by: Option<usize>,
}

/// The names of all servers, in registration order. An item without a name of its own (`None`) is not offered.
pub(crate) fn offers(servers: &[(&str, Vec<Option<&str>>)], mode: Namespacing) -> Vec<Offer> {
    let mut last: HashMap<&str, (usize, usize)> = HashMap::new();
    for (server, (_, names)) in servers.iter().enumerate() {
        for name in names.iter().flatten() {
            let (owner, owners) = last.entry(name).or_insert((server, 0));
            if *owner != server || *owners == 0 {
                *owners += 1;
            }
            *owner = server;
        }
    }
    let taken = taken_by_qualified(servers);
    let mut offers = Vec::new();
    for (server, (server_name, names)) in servers.iter().enumerate() {
        for (item, name) in names.iter().enumerate().filter_map(|(item, name)| Some((item, (*name)?))) {
            let (owner, owners) = last[name];
            let is_shared = owners > 1;
            let (name, shadowed_by) = match mode {
                Namespacing::Always => (qualified(server_name, name), None),
                Namespacing::Conflict if is_shared => (qualified(server_name, name), None),
                // Whoever calls something by another server's qualified name does not get its calls.
                _ if taken.get(name).is_some_and(|by| *by != server) => (qualified(server_name, name), None),
                Namespacing::Off if is_shared && owner != server => {
                    (qualified(server_name, name), Some(owner))
                }
                Namespacing::Off | Namespacing::Conflict => (shortened(name), None),
            };
            offers.push(Offer { server, item, name, shadowed_by });
        }
    }
    offers
}

/// Qualified names, and whose they are; none where no server's own name reads like one.
fn taken_by_qualified(servers: &[(&str, Vec<Option<&str>>)]) -> HashMap<String, usize> {
    let mut taken = HashMap::new();
    if servers.iter().any(|(_, names)| names.iter().flatten().any(|name| name.contains(BETWEEN))) {
        for (server, (server_name, names)) in servers.iter().enumerate() {
            taken.extend(names.iter().flatten().map(|name| (qualified(server_name, name), server)));
        }
    }
    taken
}

/// The form that always leads to this server's own.
pub(crate) fn qualified(server: &str, name: &str) -> String {
    shortened(&format!("{server}{BETWEEN}{name}"))
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS_MAX {
        return name.to_owned();
    }
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(name));
    let mark = format!("{:08x}", u32::from_be_bytes([a, b, c, d]));
    let kept: String = name.chars().take(NAME_CHARS_MAX - MARK_CHARS - 1).collect();
    format!("{kept}_{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offered(mode: Namespacing) -> Vec<String> {
        let servers = [("a", vec![Some("read"), Some("only_a")]), ("b", vec![Some("read"), None])];
        let show = |offer: Offer| match offer.shadowed_by {
            Some(by) => format!("{} shadowed by {by}", offer.name),
            None => offer.name,
        };
        offers(&servers, mode).into_iter().map(show).collect()
    }

    #[test]
    fn the_same_name_twice_is_answered_by_the_later_server_unless_the_project_says_otherwise() {
        assert_eq!(offered(Namespacing::Off), ["a__read shadowed by 1", "only_a", "read"]);
        assert_eq!(offered(Namespacing::Conflict), ["a__read", "only_a", "b__read"]);
        assert_eq!(offered(Namespacing::Always), ["a__read", "a__only_a", "b__read"]);
    }

    #[test]
    fn a_name_that_reads_like_the_qualified_name_of_anothers_leads_to_the_other() {
        let servers = [("a", vec![Some("read")]), ("b", vec![Some("a__read"), Some("b__own"), Some("x__y")])];
        for mode in [Namespacing::Off, Namespacing::Conflict] {
            let names: Vec<_> = offers(&servers, mode).into_iter().map(|offer| offer.name).collect();
            assert_eq!(names, ["read", "b__a__read", "b__own", "x__y"]);
        }
    }

    #[test]
    fn a_server_that_has_one_name_twice_is_in_no_conflict_with_itself() {
        let servers = [("a", vec![Some("x"), Some("x")])];
        let names: Vec<_> = offers(&servers, Namespacing::Conflict).into_iter().map(|o| o.name).collect();
        assert_eq!(names, ["x", "x"]);
    }

    proptest! {
        #[test]
        fn no_name_is_too_long_and_different_names_stay_different(a in "[a-zä.]{1,90}", b in "[a-zä.]{1,90}") {
            let (short_a, short_b) = (qualified("server", &a), qualified("server", &b));
            prop_assert!(short_a.chars().count() <= NAME_CHARS_MAX);
            prop_assert_eq!(a == b, short_a == short_b);
        }
    }
}
