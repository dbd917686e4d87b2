//! `cofer env …`, as a person types it: make, look, run, configure, destroy, clean up.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofer_testkit::app::Ran;
use cofer_testkit::{until, until_seen};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Child;

use super::{Place, on_each_engine};

on_each_engine!(
    an_environment_from_create_to_destroy,
    a_command_is_heard_at_once_and_its_exit_code_is_ours,
    ctrl_c_ends_a_command_with_all_that_it_started,
    a_reader_who_has_seen_enough_ends_the_command,
    background_commands_are_listed_read_and_stopped,
    what_is_configured_by_hand_is_what_environments_are_made_of,
    what_a_killed_create_left_is_shown_and_pruned,
    a_create_that_is_interrupted_leaves_nothing,
    watch_tells_what_others_do,
    refusals_have_their_exit_codes_and_say_what_to_do,
);

impl Place {
    /// `cofer env …` in this repository.
    pub(crate) async fn env(&self, arguments: &[&str]) -> Ran {
        self.start.cofer(&self.words(arguments)).await
    }

    /// The same, for a test to talk to.
    pub(crate) fn env_started(&self, arguments: &[&str]) -> Child {
        self.start.command(&self.words(arguments)).stdin(Stdio::null()).spawn().unwrap()
    }

    fn words<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let (verb, rest) = arguments.split_first().unwrap();
        let mut words = vec!["env", verb, "--source", self.source()];
        words.extend(rest);
        words
    }

    /// A new environment of this id.
    pub(crate) async fn made(&self, id: &str) {
        self.env(&["create", &format!("the work of {id}"), "--id", id]).await.succeeded();
    }

    /// Runs a text in an environment, which must succeed.
    pub(crate) async fn run_in(&self, id: &str, text: &str) -> String {
        self.env(&["run", id, text]).await.succeeded().to_owned()
    }

    /// Destroys all, after which nothing may be left.
    pub(crate) async fn cleared(&self) {
        self.env(&["destroy", "--all"]).await.succeeded();
        assert_eq!(self.traces(), Vec::<String>::new());
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

pub(crate) async fn ended(child: Child) -> Ran {
    let ended = tokio::time::timeout(Duration::from_mins(1), child.wait_with_output()).await;
    ended.unwrap_or_else(|_| panic!("it goes on")).unwrap().into()
}

async fn an_environment_from_create_to_destroy(place: Place) {
    assert!(
        place.env(&["list"]).await.succeeded().contains("cofer env create"),
        "an empty list says what to do"
    );
    assert_eq!(place.env(&["list", "--json"]).await.json(), serde_json::json!([]));
    let made = place.env(&["create", "Mend the \u{1b}[31mdoor", "--id", "door", "--json"]).await.json();
    assert_eq!((&made["id"], &made["remote_ref"]), (&"door".into(), &"cofer/door".into()));
    place.made("window").await;
    let ran = place.env(&["run", "door", "echo four >> README.md; echo new > new.txt"]).await;
    ran.succeeded();
    place
        .env(&["run", "door", "--message", "Break it", "--", "sh", "-c", "echo five >> README.md; exit 3"])
        .await
        .failed_with(3);

    assert_eq!(place.env(&["ls", "-q"]).await.succeeded(), "door\nwindow");
    let listed = place.env(&["list"]).await.stdout;
    assert!(!listed.contains('\u{1b}'), "a title cannot colour the terminal: {listed}");
    let row = listed.lines().find(|line| line.starts_with("door")).unwrap();
    assert!(row.contains("yes      2        2      sh -c 'echo five") && row.ends_with("  3"), "{listed}");
    let summaries = place.env(&["list", "--json"]).await.json();
    assert_eq!(
        (&summaries[0]["commits"], &summaries[0]["last_command"]["exit_code"]),
        (&2.into(), &3.into())
    );
    let shown = place.env(&["show", "door", "--json"]).await.json();
    assert_eq!((&shown["running"], &shown["changed_files"]), (&true.into(), &2.into()));
    assert!(place.env(&["show", "door"]).await.succeeded().contains("remote_ref     cofer/door"));

    let log = place.env(&["log", "door"]).await;
    for part in ["Break it", "$ echo four >> README.md", "exit 3", "Create environment door"] {
        assert!(log.succeeded().contains(part), "{part}: {log:?}");
    }
    assert!(!log.stdout.contains("+four"), "{log:?}");
    assert!(place.env(&["log", "door", "-p"]).await.succeeded().contains("+four"));
    let diff = place.env(&["diff", "door"]).await;
    assert!(diff.succeeded().contains("+five") && diff.stdout.contains("new.txt"), "{diff:?}");
    assert_eq!(place.env(&["diff", "window"]).await.succeeded(), "");

    // The user's own files are as they were.
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.env(&["destroy", "door"]).await.succeeded(), "environment door destroyed");
    place.env(&["show", "door"]).await.failed_with(3);
    place.cleared().await;
}

async fn a_command_is_heard_at_once_and_its_exit_code_is_ours(place: Place) {
    place.made("here").await;
    let mut running = place.env_started(&[
        "run",
        "here",
        "echo first; until [ -e go ]; do sleep 0.05; done; echo last; echo aside >&2",
    ]);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(Duration::from_mins(1), lines.next_line()).await.unwrap().unwrap();
    assert_eq!(first.as_deref(), Some("first"));
    // The worktree is the container's folder: what is written here is there.
    std::fs::write(place.path.join(".cofer/worktrees/here/go"), "").unwrap();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("last"));
    let ran = ended(running).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "aside\n"));

    place.env(&["run", "here", "--", "sh", "-c", "exit 42"]).await.failed_with(42);
    place.env(&["run", "here", "--", "kill -9 $$"]).await.failed_with(137);
    assert_eq!(
        place.env(&["run", "here", "--", "printf", "%s|", "a b", "it's", "$HOME", "*"]).await.succeeded(),
        "a b|it's|$HOME|*|"
    );
    let told = place.env(&["run", "here", "--json", "--", "echo out; echo err >&2; exit 5"]).await;
    assert_eq!(told.code, Some(5));
    let told = told.json();
    assert_eq!(
        (&told["exit_code"], &told["stdout"], &told["stderr"]),
        (&5.into(), &"out\n".into(), &"err\n".into())
    );
    let place = place.with("COHERRA_TIMEOUT_RUN", "400");
    let late = place.env(&["run", "here", "echo begun; sleep 1000"]).await;
    assert_eq!(late.stdout, "begun\n");
    assert!(late.failed_with(6).contains("COFER_TIMEOUT_RUN"), "{late:?}");
    place.cleared().await;
}

async fn ctrl_c_ends_a_command_with_all_that_it_started(place: Place) {
    place.made("here").await;
    let mut running =
        place.env_started(&["run", "here", "(trap '' INT TERM; sleep 31337) & echo started; sleep 31337"]);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    signal(&running, Signal::INT);
    assert_eq!(ended(running).await.code, Some(130));
    until_seen("nothing of it runs inside", async || {
        let processes = place.run_in("here", "ps -o args").await;
        if processes.contains("sleep 31337") { Err(processes) } else { Ok(()) }
    })
    .await;
    place.cleared().await;
}

async fn a_reader_who_has_seen_enough_ends_the_command(place: Place) {
    place.made("here").await;
    let mut running = place.env_started(&["run", "here", "yes"]);
    let mut stdout = running.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 2]).await.unwrap();
    drop(stdout);
    assert_eq!(ended(running).await.code, Some(0));
    until_seen("it has ended inside", async || {
        let processes = place.run_in("here", "ps -o args").await;
        if processes.lines().any(|line| line.trim() == "yes") { Err(processes) } else { Ok(()) }
    })
    .await;
    place.cleared().await;
}

async fn background_commands_are_listed_read_and_stopped(place: Place) {
    place.made("here").await;
    let serve =
        "echo serving; mkdir -p /tmp/w; echo hello > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w";
    let started = place.env(&["run", "here", "--background", "--port", "8080", "--json", "--", serve]).await;
    started.succeeded();
    let started = started.json();
    let id = started["background_id"].as_str().unwrap();
    let here = started["endpoints"][0]["here"].as_str().unwrap().replace("tcp://", "http://");
    until_seen("it answers", async || {
        let answer = reqwest::get(&here).await.map_err(|error| error.to_string())?;
        answer
            .text()
            .await
            .map_err(|error| error.to_string())
            .and_then(|text| if text == "hello\n" { Ok(()) } else { Err(text) })
    })
    .await;
    let inside = started["endpoints"][0]["inside"].as_str().unwrap().replace("tcp://", "http://");
    assert_eq!(place.run_in("here", &format!("wget -qO- {inside}")).await, "hello");
    let listed = place.env(&["background", "here", "ls"]).await;
    assert!(listed.succeeded().contains("running") && listed.stdout.contains("->8080"), "{listed:?}");
    assert_eq!(place.env(&["background", "here", "logs", id]).await.succeeded(), "serving");
    let clash = place.env(&["run", "here", "--background", "--port", "8080", "--", serve]).await;
    assert!(clash.failed_with(4).contains(&format!("served by {id}")), "{clash:?}");
    assert!(clash.stderr.contains("cofer env background ID stop"), "{clash:?}");
    assert_eq!(place.env(&["background", "here", "stop", id]).await.succeeded(), format!("{id} stopped"));
    place.env(&["background", "here", "logs", id]).await.failed_with(3);
    assert_eq!(place.env(&["background", "here", "ls", "--json"]).await.json(), serde_json::json!([]));
    let died = place.env(&["run", "here", "--background", "--", "echo no such door; exit 9"]).await;
    assert!(died.failed_with(1).contains("no such door"), "{died:?}");
    place.cleared().await;
}

async fn what_is_configured_by_hand_is_what_environments_are_made_of(place: Place) {
    let place = place.with("OF_THE_HOST", "hunter2-hunter2");
    let config = async |arguments: &[&str]| place.env(&[&["config"], arguments].concat()).await;
    assert_eq!(config(&["base-image", "get"]).await.succeeded(), super::IMAGE);
    config(&["base-image", "set", &format!("{}:latest", super::IMAGE)]).await.succeeded();
    config(&["env", "set", "COLOUR", "green = blue"]).await.succeeded();
    config(&["env", "set", "GONE", "x"]).await.succeeded();
    config(&["env", "unset", "GONE"]).await.succeeded();
    config(&["env", "unset", "GONE"]).await.failed_with(3);
    config(&["secret", "set", "TOKEN", "env://OF_THE_HOST"]).await.succeeded();
    config(&["secret", "set", "PLAIN", "hunter2"]).await.failed_with(2);
    config(&["setup-command", "add", "echo \"was $(pwd)\" > /tmp/set-up"]).await.succeeded();
    config(&["install-command", "add", "false"]).await.succeeded();
    config(&["install-command", "remove", "false"]).await.succeeded();
    config(&["cache", "add", "/cache"]).await.succeeded();
    config(&["cache", "clear"]).await.succeeded();
    let file = place.path.join(".cofer/environment.json");
    let mut written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    written["of_another_tool"] = 7.into();
    std::fs::write(&file, written.to_string()).unwrap();
    config(&["env", "set", "COLOUR", "green"]).await.succeeded();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["of_another_tool"], 7, "what is not ours stays");
    assert_eq!(written["env"], serde_json::json!(["COLOUR=green"]));
    assert_eq!(config(&["env", "list"]).await.succeeded(), "COLOUR=green");
    assert_eq!(
        config(&["show", "--json"]).await.json()["secrets"],
        serde_json::json!(["TOKEN=env://OF_THE_HOST"])
    );

    place.made("here").await;
    assert_eq!(place.run_in("here", "cat /tmp/set-up; echo $COLOUR; test $TOKEN = hunter2-hunter2 && echo right; echo $TOKEN > /tmp/x").await, "was /workdir\ngreen\nright");
    place.run_in("here", "echo the token is $TOKEN").await;
    let log = place.env(&["log", "here"]).await;
    assert!(!log.succeeded().contains("hunter2"), "{log:?}");
    config(&["setup-command", "clear"]).await.succeeded();
    config(&["import", "here"]).await.succeeded();
    assert_eq!(config(&["setup-command", "list"]).await.succeeded(), "echo \"was $(pwd)\" > /tmp/set-up");
    std::fs::write(&file, "{").unwrap();
    assert!(config(&["show"]).await.failed_with(2).contains("environment.json"));
    place.cleared().await;
}

/// A `create` that is in the middle of setting up, and never comes to an end.
async fn creating(place: &Place) -> Child {
    place.env(&["config", "setup-command", "add", "touch begun; sleep 1000"]).await.succeeded();
    let creating = place.env_started(&["create", "never made", "--id", "half"]);
    let begun = place.path.join(".cofer/worktrees/half/begun");
    until("it is being set up", async || begun.exists()).await;
    creating
}

async fn what_a_killed_create_left_is_shown_and_pruned(place: Place) {
    let mut killed = creating(&place).await;
    // While somebody is at work on it, it is nobody's waste.
    assert_eq!(place.env(&["prune", "--dry-run"]).await.succeeded(), "there is nothing to remove");
    killed.kill().await.unwrap();
    assert_eq!(place.env(&["list", "-q"]).await.succeeded(), "");
    let found = place.env(&["prune", "--dry-run", "--json"]).await.json();
    assert_eq!((&found["found"][0]["environment"], &found["removed"]), (&"half".into(), &0.into()));
    let asked = place.env(&["prune"]).await;
    assert!(asked.failed_with(2).contains("--yes") && asked.stdout.contains("never finished"), "{asked:?}");
    assert!(!place.traces().is_empty());
    place.env(&["prune", "--yes"]).await.succeeded();
    assert_eq!(place.traces(), Vec::<String>::new());
    place.env(&["config", "setup-command", "clear"]).await.succeeded();
    place.made("old").await;
    assert_eq!(
        place.env(&["prune", "--before", "1w", "--yes"]).await.succeeded(),
        "there is nothing to remove"
    );
    let pruned = place.env(&["prune", "--before", "0s", "--yes"]).await;
    assert!(pruned.succeeded().ends_with("1 removed"), "{pruned:?}");
    place.cleared().await;
}

async fn a_create_that_is_interrupted_leaves_nothing(place: Place) {
    let interrupted = creating(&place).await;
    signal(&interrupted, Signal::INT);
    assert_eq!(ended(interrupted).await.code, Some(130));
    assert_eq!(place.traces(), Vec::<String>::new());
}

async fn watch_tells_what_others_do(place: Place) {
    place.made("before").await;
    let mut watching = place.env_started(&["watch"]);
    let heard = Arc::new(Mutex::new(Vec::<String>::new()));
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let hearing = tokio::spawn({
        let heard = heard.clone();
        async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                heard.lock().unwrap().push(line);
            }
        }
    });
    let tells = async |news: &str| {
        until_seen(news, async || {
            let heard = heard.lock().unwrap().clone();
            if heard.iter().any(|line| line.contains(news)) { Ok(()) } else { Err(format!("{heard:#?}")) }
        })
        .await;
    };
    // What is there when it begins is no news, so something is done until that is heard.
    until("it watches", async || {
        place.run_in("before", "date").await;
        !heard.lock().unwrap().is_empty()
    })
    .await;
    tells("  before  $ date  (exit 0)").await;
    place.made("here").await;
    tells("  here  created: the work of here").await;
    place
        .env(&["run", "here", "--message", "Say more", "echo more >> README.md; exit 3"])
        .await
        .failed_with(3);
    tells("  here  $ echo more >> README.md; exit 3  (exit 3)").await;
    tells(" Say more").await;
    place.env(&["destroy", "here"]).await.succeeded();
    tells("  here  destroyed").await;
    signal(&watching, Signal::INT);
    assert_eq!(ended(watching).await.code, Some(0));
    hearing.await.unwrap();
    place.cleared().await;
}

async fn refusals_have_their_exit_codes_and_say_what_to_do(place: Place) {
    place.made("here").await;
    let elsewhere = place.start.path().to_str().unwrap();
    for (arguments, code, said) in [
        (&["run", "nobody", "true"][..], 3, "cofer env list"),
        (&["create", "x", "--id", "here"], 4, "--replace"),
        (&["create", "x", "--id", "../x"], 2, "is no id"),
        (&["create", "x", "--from", "no-such-branch"], 2, "no-such-branch"),
        (&["create", "x", "--image", "cofer-test/there-is-no-such-image"], 1, "base_image"),
        (&["run", "here", "--shell", "fish", "true"], 2, "unsupported shell"),
        (&["run", "here", "--port", "80", "true"], 2, "--background"),
        (&["run", "here"], 2, "COMMAND"),
        (&["destroy"], 2, "ID"),
        (&["destroy", "nobody"], 3, "not found"),
        (&["merge", "nobody"], 3, "not found"),
        (&["checkout", "here", "-b", "a..b"], 2, "no name of a branch"),
        (&["checkout", "here", "-b", "--x"], 2, "--x"),
        (&["terminal", "here"], 2, "cofer env run"),
        (&["prune", "--before", "soon"], 2, "--before"),
        (&["background", "here", "stop", "nobody"], 3, "cofer env background ID ls"),
    ] {
        let refused = place.env(arguments).await;
        assert!(refused.failed_with(code).contains(said), "{arguments:?}: {refused:?}");
    }
    let outside = place.start.cofer(&["env", "list", "-C", elsewhere]).await;
    assert!(outside.failed_with(2).contains("git repository"), "{outside:?}");
    let nowhere = place.start.cofer(&["env", "list", "-C", "/no/such/folder"]).await;
    nowhere.failed_with(3);
    let error: Value = serde_json::from_str(&place.env(&["show", "nobody", "--json"]).await.stderr).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    let place = place.with("COFER_MAX_ENVIRONMENTS", "1");
    assert!(place.env(&["create", "one more"]).await.failed_with(6).contains("cofer env destroy"));
    place.env(&["create", "instead", "--id", "here", "--replace"]).await.succeeded();
    assert_eq!(place.env(&["show", "here", "--json"]).await.json()["title"], "instead");
    place.cleared().await;
}
