//! The settings of environments as tools of every project and as something to read of, decided.

use std::path::PathBuf;

use super::Layer;
use super::gateway::{is_loopback, is_this_machine};

/// Who may make environments through the MCP endpoint, and of what.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSettings {
    /// Directories whose repositories may be a source. Without any, there are no tools of environments.
    pub sources: Vec<PathBuf>,
    /// Named, but not offered, because others than this machine could reach them.
    pub held_back: bool,
    /// Whether environments may be read of: nobody but this machine can ask, or the operator said that others may.
    pub shown: bool,
}

/// Who can reach Cofer, as far as its settings tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    ThisMachine,
    Others,
}

impl Reach {
    /// Others come by the address that we listen on. On loopback they still come by a proxy: one that we were told of, or one that must
    /// be there because the world finds us under another name.
    pub(super) fn of(listen: &str, behind_proxy: bool, public_host: Option<&str>) -> Self {
        let is_here = is_loopback(listen) && !behind_proxy && public_host.is_none_or(is_this_machine);
        if is_here { Self::ThisMachine } else { Self::Others }
    }
}

impl EnvironmentSettings {
    /// One rule for both: tools can do more than who reads, so they must not be offered more widely.
    pub(super) fn decide(flags: &Layer, file: &Layer, reach: Reach) -> Self {
        let named = if flags.environment_sources.is_empty() {
            &file.environment_sources
        } else {
            &flags.environment_sources
        };
        let exposed = flags.expose_environments.or(file.expose_environments).unwrap_or(false);
        let shown = exposed || reach == Reach::ThisMachine;
        let held_back = !named.is_empty() && !shown;
        Self { sources: if held_back { Vec::new() } else { named.clone() }, held_back, shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_come_by_the_address_by_a_proxy_or_by_a_public_name() {
        let here = [
            ("127.0.0.1:7070", None),
            ("[::1]:7070", Some("::1")),
            ("localhost:7070", Some("127.0.0.1")),
            ("127.0.0.1:7070", Some("localhost")),
        ];
        for (listen, public_host) in here {
            assert_eq!(Reach::of(listen, false, public_host), Reach::ThisMachine, "{listen} {public_host:?}");
            assert_eq!(Reach::of(listen, true, public_host), Reach::Others, "{listen} {public_host:?}");
        }
        for (listen, public_host) in [
            ("0.0.0.0:7070", None),
            ("[::]:7070", Some("::1")),
            ("127.0.0.1:7070", Some("cofer.example.com")),
        ] {
            assert_eq!(Reach::of(listen, false, public_host), Reach::Others, "{listen} {public_host:?}");
        }
    }

    #[test]
    fn where_others_come_environments_are_neither_offered_nor_shown_unless_they_may_be() {
        let named = Layer { environment_sources: vec!["/srv".into()], ..Layer::default() };
        let decided = |exposed: Option<bool>, reach: Reach| {
            let file = Layer { expose_environments: exposed, ..Layer::default() };
            let decided = EnvironmentSettings::decide(&named, &file, reach);
            (decided.sources.len(), decided.held_back, decided.shown)
        };
        assert_eq!(decided(None, Reach::ThisMachine), (1, false, true));
        assert_eq!(decided(None, Reach::Others), (0, true, false));
        assert_eq!(decided(Some(true), Reach::Others), (1, false, true));
    }
}
