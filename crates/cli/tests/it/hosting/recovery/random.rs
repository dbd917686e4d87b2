//! Random operations on a few servers, and SIGKILL at a random moment, again and again.
//!
//! `COFER_TEST_SEED` repeats a run, as far as the machine lets it; `COFER_TEST_SECONDS` makes it longer.
//!
//! What was acknowledged must be so afterwards. What was under way may have happened or not, but not by half: a server is there or
//! not, and runs in exactly one container or in none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Host, MISBEHAVING, SERVERS};

const SECONDS_DEFAULT: u64 = 20;
/// Crashes are part of the game: nobody waits for a crash loop.
const SETTINGS: &str = "[crash_loop]\nthreshold = 100000\n";
const SERVERS_AND_PROVIDERS: [(&str, &str); 4] =
    [("ada", "docker"), ("bob", "gvisor"), ("cyd", "podman"), ("dot", "docker")];
const MOMENT_MS_MAX: u64 = 2500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Absent,
    Running,
    Stopped,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Register,
    Call,
    Crash,
    Stop,
    Start,
    Restart,
    Change,
    Delete,
}

impl Deed {
    /// Something that makes sense for one of this fate.
    fn draw(dice: &mut Dice, fate: Fate) -> Self {
        let choices: &[Self] = match fate {
            Fate::Absent => &[Self::Register],
            Fate::Running => {
                &[Self::Call, Self::Crash, Self::Stop, Self::Restart, Self::Change, Self::Delete, Self::Start]
            }
            Fate::Stopped => &[Self::Start, Self::Restart, Self::Delete, Self::Change, Self::Stop],
        };
        *dice.pick(choices)
    }

    fn leads_to(self, fate: Fate) -> Fate {
        match self {
            Self::Register | Self::Start | Self::Restart => Fate::Running,
            Self::Stop => Fate::Stopped,
            Self::Delete => Fate::Absent,
            Self::Call | Self::Crash | Self::Change => fate,
        }
    }

    fn begin(self, host: &Host, name: &str, provider: &str) -> JoinHandle<u16> {
        let tool = |tool: &str| {
            let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": {"ms": 5000}}});
            host.ask(Method::POST, &format!("/{name}/call"), Some(body))
        };
        let post = |verb: &str| host.ask(Method::POST, &format!("/{name}/{verb}"), None);
        match self {
            Self::Register => {
                let flags = ["--sigterm-delay-ms", "300", "--ignore-eof"];
                let body = json!({"name": name, "image": MISBEHAVING, "provider": provider, "cmd": flags});
                host.ask(Method::POST, "", Some(body))
            }
            Self::Call => tool("late"),
            Self::Crash => tool("crash"),
            Self::Stop => post("stop"),
            Self::Start => post("start"),
            Self::Restart => post("restart"),
            Self::Change => {
                let body = json!({"environment": {"CHANGED_AT": format!("{:?}", Instant::now())}});
                host.ask(Method::PATCH, &format!("/{name}"), Some(body))
            }
            Self::Delete => host.ask(Method::DELETE, &format!("/{name}"), None),
        }
    }
}

/// Splitmix: a seed is all there is to it.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let place = self.below(choices.len().try_into().unwrap());
        &choices[usize::try_from(place).unwrap()]
    }
}

#[tokio::test]
async fn whenever_it_is_killed_what_was_acknowledged_is_so_and_nothing_is_there_twice() {
    let Some(mut host) = Host::configured("docker", SETTINGS).await else { return };
    if cofer_testkit::engines::podman().is_none() {
        return;
    }
    let by_the_clock = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let seed = crate::told("COFER_TEST_SEED").unwrap_or(by_the_clock.into());
    let end =
        Instant::now() + Duration::from_secs(crate::told("COFER_TEST_SECONDS").unwrap_or(SECONDS_DEFAULT));
    println!("COFER_TEST_SEED={seed}");
    let mut dice = Dice(seed);
    let mut fates: BTreeMap<&str, Fate> =
        SERVERS_AND_PROVIDERS.map(|(name, _)| (name, Fate::Absent)).into_iter().collect();
    let mut round = 0;
    while round < 2 || Instant::now() < end {
        round += 1;
        let mut begun = Vec::new();
        for (name, provider) in SERVERS_AND_PROVIDERS {
            let deed = Deed::draw(&mut dice, fates[name]);
            begun.push((name, deed, deed.begin(&host, name, provider)));
        }
        let moment = Duration::from_millis(dice.below(MOMENT_MS_MAX));
        // Not a wait for anything: this is the random moment.
        tokio::time::sleep(moment).await;
        let log = host.app.log();
        host = host.killed_and_started_again().await;
        let mut told = format!("seed {seed}, round {round}, killed after {moment:?}:");
        let mut possible = BTreeMap::new();
        for (name, deed, answer) in begun {
            let (status, before) = (answer.await.unwrap(), fates[name]);
            write!(told, " {name} was {before:?}, {deed:?} {status};").unwrap();
            let after = deed.leads_to(before);
            possible
                .insert(name, if (200..300).contains(&status) { vec![after] } else { vec![before, after] });
        }
        println!("{told}");
        fates = settle(&host, &possible, &format!("{told}; log of the life before: {log}")).await;
    }
    println!("{round} rounds");
    for (name, _) in fates.iter().filter(|(_, fate)| **fate != Fate::Absent) {
        host.remove(name).await;
    }
    host.until_only(&[]).await;
    host.stop().await;
}

/// Waits until each server is as it may be; then each that runs does so in one container, and answers.
async fn settle<'a>(
    host: &Host,
    possible: &BTreeMap<&'a str, Vec<Fate>>,
    told: &str,
) -> BTreeMap<&'a str, Fate> {
    let listed = host.app.get(SERVERS).await.json();
    let registered: BTreeSet<_> =
        listed.as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect();
    let mut fates = BTreeMap::new();
    for (name, possible) in possible {
        let fate = if registered.contains(*name) {
            let settled =
                host.until(name, told, |s| s["status"] == "ready" || s["status"] == "stopped").await;
            if settled["status"] == "ready" { Fate::Running } else { Fate::Stopped }
        } else {
            Fate::Absent
        };
        assert!(possible.contains(&fate), "{name} is {fate:?}, not {possible:?}; {told}");
        fates.insert(*name, fate);
    }
    let running: Vec<_> =
        fates.iter().filter(|(_, fate)| **fate == Fate::Running).map(|(name, _)| *name).collect();
    host.until_only(&running).await;
    fates
}
