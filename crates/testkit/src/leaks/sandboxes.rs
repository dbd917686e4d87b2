//! Processes that keep a container which no engine knows any more: gVisor's, Podman's monitors, containerd's shims.
//!
//! They inherit no mark, being children of the engine. What tells them is the id of their container in the command line. Those of
//! containers that are on their way out are no leak, so whoever is found is looked at again before it is told.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use super::processes::{self, Process};
use crate::aside;
use crate::engines::{self, Engine};

const KEEPERS: [&str; 3] = ["runsc", "conmon", "containerd-shim"];
const ID_CHARS: usize = 64;
const LOOKS: usize = 4;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Those that began since this test did, and stay.
pub(super) fn find() -> Vec<Process> {
    let engines = engines::all_present();
    let mut strays = strays(&engines);
    for _ in 1..LOOKS {
        if strays.is_empty() {
            break;
        }
        thread::sleep(LOOK_AGAIN_AFTER);
        let again: BTreeSet<_> = self::strays(&engines).iter().map(Process::identity).collect();
        strays.retain(|stray| again.contains(&stray.identity()));
    }
    strays
}

fn strays(engines: &[Engine]) -> Vec<Process> {
    let folders: Vec<_> = engines.iter().filter_map(run_folder).collect();
    let keepers: Vec<_> = processes::since_this_one_began()
        .into_iter()
        .filter_map(|process| Some((kept_container(process.command(), &folders)?, process)))
        .collect();
    if keepers.is_empty() {
        return Vec::new();
    }
    // Asked after the processes were read: a container is known before it has any.
    let known = aside::run(async {
        let mut known = BTreeSet::new();
        for engine in engines {
            // An engine that cannot be asked is told of elsewhere; here it is given the benefit of the doubt.
            known.extend(engine.all_containers().await.ok()?.into_iter().map(|container| container.id));
        }
        Some(known)
    });
    let Some(known) = known else { return Vec::new() };
    keepers.into_iter().filter(|(id, _)| !known.contains(id)).map(|(_, process)| process).collect()
}

/// Where the engine keeps its run-time files: the folder of its socket.
fn run_folder(engine: &Engine) -> Option<String> {
    let (folder, _) = engine.host().strip_prefix("unix://")?.rsplit_once('/')?;
    Some(folder.to_owned())
}

/// The container that this process keeps, if it keeps one of these engines.
fn kept_container(command: &str, folders: &[String]) -> Option<String> {
    let program = command.split(' ').next()?.rsplit('/').next()?;
    let keeps = KEEPERS.iter().any(|keeper| program.starts_with(keeper));
    let is_here = folders.iter().any(|folder| command.contains(folder.as_str()));
    let id = |word: &&str| word.len() == ID_CHARS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = command.split(|c: char| !c.is_ascii_alphanumeric());
    words.clone().find(id).filter(|_| keeps && is_here).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_known_by_its_program_its_place_and_the_id_it_names() {
        let id = "0123456789abcdef".repeat(4);
        let folders = ["/tmp/bed".to_owned()];
        let sandbox =
            format!("/usr/bin/runsc-sandbox --root=/tmp/bed/docker/runsc boot --bundle=/tmp/bed/{id} {id}");
        assert_eq!(kept_container(&sandbox, &folders), Some(id.clone()));
        let monitor = format!("/usr/bin/conmon -c {id} -b /tmp/bed/podman-run");
        assert_eq!(kept_container(&monitor, &folders), Some(id.clone()));
        let elsewhere = format!("runsc-sandbox --root=/run/docker boot {id}");
        assert_eq!(kept_container(&elsewhere, &folders), None);
        assert_eq!(kept_container(&format!("vi /tmp/bed/{id}"), &folders), None);
        assert_eq!(kept_container("runsc-gofer /tmp/bed", &folders), None);
    }
}
