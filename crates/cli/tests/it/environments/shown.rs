//! Environments to be read of: `/api/v1/environments`. Most of it needs no engine: what is known of an environment is in its repository, so
//! a test can write it there.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofer_testkit::app::{App, Start};
use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::engines;
use serde_json::{Value, json};

use super::{IMAGE, Place, git, on_each_engine};

on_each_engine!(
    what_is_done_in_an_environment_is_shown_as_it_is_done,
    a_secret_that_stands_in_a_command_is_shown_to_nobody,
);

const ALL: &str = "/api/v1/environments";
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Longer than the five seconds that engines have, and shorter than twice that.
const LIST_MAX: Duration = Duration::from_secs(9);

/// A git repository below the test's own directory, in which `cofer init` was run.
pub(crate) async fn repository(start: &Start, name: &str) -> PathBuf {
    let path = start.path().join(name);
    std::fs::create_dir(&path).unwrap();
    let path = path.canonicalize().unwrap();
    git(&path, &["init", "--quiet", "--initial-branch=main", "."]);
    git(&path, &["config", "user.name", "A Person"]);
    git(&path, &["config", "user.email", "person@example.org"]);
    git(&path, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    start.cofer(&["init", "-C", path.to_str().unwrap()]).await.succeeded();
    path
}

/// An environment whose container is gone, with this file in its one commit.
pub(crate) fn left_behind(repository: &Path, id: &str, contents: &[u8]) {
    let base = git(repository, &["rev-parse", "main"]);
    git(repository, &["checkout", "--quiet", "--detach", "main"]);
    std::fs::write(repository.join("made"), contents).unwrap();
    git(repository, &["add", "made"]);
    git(repository, &["commit", "--quiet", "--message", &format!("the work of {id}")]);
    git(repository, &["update-ref", &format!("refs/remotes/cofer/{id}"), "HEAD"]);
    git(repository, &["checkout", "--quiet", "main"]);
    write_state(repository, id, &state(id, &base));
}

fn state(id: &str, base: &str) -> Value {
    let at = "2026-01-02T03:04:05Z";
    json!({
        "id": id, "title": format!("<b>{id}</b>"), "created_at": at, "updated_at": at, "stage": "ready", "base": base,
        "identity": ["A Person", "person@example.org"], "config": {"base_image": IMAGE}, "provider": "podman",
        "container": null, "run": 1,
    })
}

fn write_state(repository: &Path, id: &str, state: &Value) {
    let home = home(repository, id);
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("state.json"), state.to_string()).unwrap();
}

fn home(repository: &Path, id: &str) -> PathBuf {
    repository.join(".cofer/environments").join(id)
}

/// The query that names a repository.
fn within(repository: &Path) -> String {
    let named = [("repository", repository.to_str().unwrap())];
    let url = reqwest::Url::parse_with_params("http://localhost/", named).unwrap();
    format!("?{}", url.query().unwrap())
}

async fn ids(app: &App) -> Vec<String> {
    let all = app.get(ALL).await;
    assert_eq!(all.status, 200, "{all:?}");
    let mut ids: Vec<String> =
        all.json().as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn environments_of_all_repositories_are_listed_and_read() {
    let start = crate::start();
    let (one, other) = (repository(&start, "one").await, repository(&start, "the other & more").await);
    left_behind(&one, "door", b"<script>\n");
    left_behind(&one, "window", b"w\n");
    left_behind(&other, "door", b"d\n");
    std::fs::write(home(&one, "door").join("log"), "$ make door\nexit 0\n\n").unwrap();
    let app = start.serve().await;

    assert_eq!(ids(&app).await, ["door", "door", "window"]);
    let window = app.get(&format!("{ALL}/window")).await.json();
    assert_eq!(window["repository"], one.to_str().unwrap());
    assert_eq!((&window["state"], &window["image"]), (&json!("stopped"), &json!(IMAGE)), "{window}");
    assert_eq!((&window["title"], &window["remote_ref"]), (&json!("<b>window</b>"), &json!("cofer/window")));
    for verb in ["checkout", "merge", "apply", "log", "diff"] {
        assert_eq!(window[format!("{verb}_command")], format!("cofer env {verb} window"));
    }

    for part in ["", "/log", "/diff"] {
        let unclear = app.get(&format!("{ALL}/door{part}")).await;
        assert_eq!(unclear.refusal(), "409 conflict", "{part}");
        assert!(unclear.text.contains("the other & more") && unclear.text.contains("/one"), "{unclear:?}");
        for nobody in [format!("{ALL}/nobody{part}"), format!("{ALL}/door{part}?repository=/etc")] {
            assert_eq!(app.get(&nobody).await.refusal(), "404 not_found", "{nobody}");
        }
        assert_eq!(app.get(&format!("{ALL}/..%2f..{part}")).await.refusal(), "404 not_found");
    }
    let diff = app.get(&format!("{ALL}/door/diff{}", within(&one))).await.json();
    assert!(diff["diff"].as_str().unwrap().ends_with("@@ -0,0 +1 @@\n+<script>\n"), "{diff}");
    assert_eq!(diff["bytes_left_out"], 0);
    let log = app.get(&format!("{ALL}/door/log{}", within(&one))).await.json();
    let text = log["log"].as_str().unwrap();
    assert!(text.starts_with("$ make door\nexit 0\n\n") && text.contains("the work of door"), "{log}");
    let pending = std::fs::read_to_string(home(&one, "door").join("log")).unwrap();
    assert_eq!(pending, "$ make door\nexit 0\n\n", "who reads changes nothing");
    assert_eq!(git(&one, &["for-each-ref", "refs/notes"]), "");
    let unknown = app.get(&format!("{ALL}/window?colour=red")).await;
    assert_eq!(unknown.refusal(), "422 validation_error");

    std::fs::remove_dir_all(&other).unwrap();
    assert_eq!(ids(&app).await, ["door", "window"], "a repository that is gone hides no other");
    app.stop().await;
}

#[tokio::test]
async fn a_repository_is_known_by_the_tree_of_its_init_whichever_worktree_is_used() {
    let start = crate::start();
    let path = repository(&start, "main tree").await;
    left_behind(&path, "door", b"d\n");
    let linked = path.with_file_name("linked");
    git(&path, &["worktree", "add", "--quiet", "--detach", linked.to_str().unwrap()]);
    start.cofer(&["env", "list", "--source", linked.to_str().unwrap()]).await.succeeded();
    let app = start.serve().await;
    let repository = async || app.get(&format!("{ALL}/door")).await.json()["repository"].clone();
    assert_eq!(repository().await, path.to_str().unwrap());
    git(&path, &["worktree", "remove", linked.to_str().unwrap()]);
    assert_eq!(repository().await, path.to_str().unwrap(), "it does not go with a worktree");
    app.stop().await;
}

/// Whoever reads this repository's configuration waits for a writer who never comes.
#[tokio::test]
async fn a_repository_that_does_not_answer_hides_no_other() {
    let start = crate::start().variable("COFER_TIMEOUT_GIT", "3000");
    left_behind(&repository(&start, "one").await, "door", b"d\n");
    let stuck = repository(&start, "stuck").await;
    left_behind(&stuck, "window", b"w\n");
    let config = stuck.join(".git/config");
    std::fs::remove_file(&config).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &config, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let app = start.serve().await;
    assert_eq!(ids(&app).await, ["door"]);
    let told = app.logged("are not listed").await;
    assert!(told.contains("stuck") && told.contains("took longer than"), "{told}");
    app.stop().await;
}

#[tokio::test]
async fn an_engine_that_does_not_answer_holds_a_list_up_once_and_not_for_each_environment() {
    let Some(podman) = engines::podman() else { return };
    let proxy = ChaosProxy::in_front_of(podman.host()).unwrap();
    let host = format!("tcp://{}", proxy.address());
    let start = crate::start().variable("COFER_PODMAN_HOST", host);
    let path = repository(&start, "many").await;
    let base = git(&path, &["rev-parse", "main"]);
    let mut state = state("resting", &base);
    write_state(&path, "resting", &state);
    state["container"] = json!("nobody");
    for number in 0..20 {
        state["id"] = json!(format!("busy-{number}"));
        write_state(&path, &format!("busy-{number}"), &state);
    }
    let app = start.serve().await;
    let counted = async || {
        let all = app.get(ALL).await.json();
        let states = all.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap().to_owned());
        let (unknown, stopped): (Vec<_>, Vec<_>) = states.partition(|state| state == "unknown");
        (unknown.len(), stopped.len())
    };
    assert_eq!(counted().await, (0, 21), "the engine says that there are no such containers");
    proxy.freeze().await;
    let counted = tokio::time::timeout(LIST_MAX, counted()).await;
    assert_eq!(counted.expect("one deadline for all"), (20, 1));
    proxy.restore().await;
    app.stop().await;
}

#[tokio::test]
async fn of_a_long_diff_the_beginning_is_told_and_how_much_is_left_out() {
    let start = crate::start();
    let path = repository(&start, "large").await;
    left_behind(&path, "large", &b"all work and no play\n".repeat(200_000));
    let whole = git(&path, &["diff", "main..refs/remotes/cofer/large"]).len() + 1;
    let app = start.serve().await;
    let diff = app.get(&format!("{ALL}/large/diff")).await.json();
    let (text, left_out) = (diff["diff"].as_str().unwrap(), diff["bytes_left_out"].as_u64().unwrap());
    assert!(text.len() <= KEPT_BYTES_MAX && text.ends_with("play\n"), "{} bytes", text.len());
    assert_eq!(text.len() + usize::try_from(left_out).unwrap(), whole);
    app.stop().await;
}

/// Git obeys what a repository configures, and Cofer serves people who did not configure it.
#[tokio::test]
async fn nothing_that_a_repository_configures_is_run() {
    let start = crate::start();
    let path = repository(&start, "evil").await;
    std::fs::write(path.join(".gitattributes"), "* diff=x filter=x\n").unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "--quiet", "--message", "attributes"]);
    left_behind(&path, "here", b"one\n");
    left_behind(&path, "torn", b"something that is missing\n");
    let missing = git(&path, &["rev-parse", "refs/remotes/cofer/torn:made"]);
    std::fs::remove_file(path.join(".git/objects").join(&missing[..2]).join(&missing[2..])).unwrap();
    let (mark, program) = (start.path().join("it-ran"), start.path().join("program"));
    std::fs::write(&program, format!("#!/bin/sh\ntouch '{}'\ncat\n", mark.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = program.to_str().unwrap();
    for (name, value) in [
        ("diff.external", run),
        ("diff.x.textconv", run),
        ("diff.x.command", run),
        ("filter.x.clean", run),
        ("filter.x.smudge", run),
        ("core.fsmonitor", run),
        ("core.pager", run),
        ("pager.diff", run),
        ("pager.log", run),
        ("core.sshCommand", run),
        ("gpg.program", run),
        ("log.showSignature", "true"),
        ("core.hooksPath", start.path().to_str().unwrap()),
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.promisor", "true"),
        ("remote.evil.url", &format!("ext::{run}")),
        ("protocol.ext.allow", "always"),
    ] {
        git(&path, &["config", name, value]);
    }
    let app = start.serve().await;
    assert_eq!(ids(&app).await, ["here", "torn"]);
    let diff = app.get(&format!("{ALL}/here/diff")).await.json();
    assert!(diff["diff"].as_str().unwrap().contains("+one\n"), "{diff}");
    assert_eq!(app.get(&format!("{ALL}/here/log")).await.status, 200);
    let torn = app.get(&format!("{ALL}/torn/diff")).await;
    assert_eq!(torn.refusal(), "500 internal_error");
    assert!(!torn.text.contains(&missing), "what git said is for the log: {torn:?}");
    assert!(!mark.exists(), "something that the repository configures was run");
    app.stop().await;
}

/// A repository may come with files in `.cofer`: they are somebody else's word, and so may their places be.
#[tokio::test]
async fn what_a_repository_brings_with_it_is_not_believed() {
    let start = crate::start();
    let path = repository(&start, "gift").await;
    left_behind(&path, "good", b"good\n");
    let secret = start.path().join("secret");
    std::fs::write(&secret, "the-secret-of-the-machine").unwrap();
    symlink(&secret, home(&path, "good").join("log")).unwrap();
    symlink(&secret, home(&path, "good").join("last-command.json")).unwrap();
    let out = start.path().join("written");
    let base = format!("--output={}", out.display());
    write_state(&path, "writes", &state("writes", &base));
    write_state(&path, "other", &state("good", &git(&path, &["rev-parse", "main"])));
    write_state(&path, "empty", &json!({}));
    std::fs::create_dir(home(&path, "endless")).unwrap();
    symlink("/dev/zero", home(&path, "endless").join("state.json")).unwrap();
    let pipe = home(&path, "pipe");
    std::fs::create_dir(&pipe).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, pipe.join("state.json"), rustix::fs::Mode::from_raw_mode(0o600))
        .unwrap();
    let app = start.serve().await;
    assert_eq!(ids(&app).await, ["good"]);
    assert_eq!(app.get(&format!("{ALL}/writes/diff")).await.refusal(), "404 not_found");
    assert!(
        !std::fs::read_dir(app.data_dir().parent().unwrap())
            .unwrap()
            .flatten()
            .any(|entry| { entry.file_name().to_string_lossy().starts_with("written") })
    );
    let log = app.get(&format!("{ALL}/good/log")).await;
    assert_eq!(log.status, 200);
    assert!(!log.text.contains("the-secret"), "{log:?}");
    app.signal(rustix::process::Signal::TERM);
    let (_start, ran) = app.wait().await;
    for id in ["writes", "other", "empty", "endless", "pipe"] {
        let warned = ran.stderr.matches(&format!("environment {id} is left out of the list")).count();
        assert_eq!(warned, 1, "{id}: a list may be asked for every second, and one warning says it all");
    }
}

#[tokio::test]
async fn a_token_of_one_project_sees_no_environments_of_the_machine() {
    let app = crate::serving().await;
    let scopes = json!(["admin:read"]);
    let bound = json!({"name": "bound", "scopes": scopes, "project": "default"});
    let bound = app.post("/api/v1/tokens", &bound).await.json();
    for path in [ALL.to_owned(), format!("{ALL}/x"), format!("{ALL}/x/log"), format!("{ALL}/x/diff")] {
        let answer = app.call(reqwest::Method::GET, &path, bound["token"].as_str().unwrap(), None).await;
        assert_eq!(answer.refusal(), "403 forbidden", "{path}");
    }
    assert_eq!(app.get(ALL).await.json(), json!([]));
    app.stop().await;
}

#[tokio::test]
async fn where_others_can_reach_cofer_environments_are_shown_only_when_that_was_asked_for() {
    let start = crate::start().listen("0.0.0.0:0").variable("COFER_BEHIND_PROXY", "true");
    left_behind(&repository(&start, "one").await, "door", b"d\n");
    let app = start.serve().await;
    let held_back = app.get(ALL).await;
    assert_eq!(held_back.refusal(), "403 forbidden");
    assert!(held_back.text.contains("expose_environments"), "{held_back:?}");
    let start = app.stop().await.variable("COFER_EXPOSE_ENVIRONMENTS", "true");
    let app = start.serve().await;
    assert_eq!(ids(&app).await, ["door"]);
    app.stop().await;
}

/// It listens on loopback, and others come all the same.
#[tokio::test]
async fn behind_a_proxy_environments_are_neither_shown_nor_offered_unasked() {
    for (name, value) in
        [("COFER_BEHIND_PROXY", "true"), ("COFER_PUBLIC_URL", "https://cofer.example.com/behind")]
    {
        let start = crate::start().variable(name, value);
        let path = repository(&start, "one").await;
        left_behind(&path, "door", b"d\n");
        let start = start.variable("COFER_ENVIRONMENT_SOURCES", path.to_str().unwrap());
        let app = start.serve().await;
        for held_back in [ALL, "/api/v1/environments/door", "/api/v1/environments/door/diff"] {
            assert_eq!(app.get(held_back).await.refusal(), "403 forbidden", "{name} {held_back}");
        }
        let tools = app.get("/api/v1/projects/default/tools").await;
        assert!(!tools.text.contains("environment_create"), "{name}: {tools:?}");
        let app = app.stop().await.variable("COFER_EXPOSE_ENVIRONMENTS", "true").serve().await;
        assert_eq!(ids(&app).await, ["door"], "{name}");
        let tools = app.get("/api/v1/projects/default/tools").await;
        assert!(tools.text.contains("environment_create"), "{name}: {tools:?}");
        app.stop().await;
    }
    let app = crate::start().variable("COFER_PUBLIC_URL", "http://localhost:7070").serve().await;
    assert_eq!(app.get(ALL).await.status, 200, "a name of this machine leads nobody else here");
    app.stop().await;
}

/// A repository that the operator named is known, whoever works in it.
#[tokio::test]
async fn a_repository_that_the_operator_named_is_known() {
    let elsewhere = crate::start();
    let path = repository(&elsewhere, "named").await;
    left_behind(&path, "door", b"d\n");
    let app = crate::serving().await;
    assert_eq!(ids(&app).await, Vec::<String>::new());
    let start = app.stop().await.variable("COFER_ENVIRONMENT_SOURCES", path.to_str().unwrap());
    let app = start.serve().await;
    assert_eq!(ids(&app).await, ["door"]);
    assert_eq!(app.get(&format!("{ALL}/door/diff")).await.status, 200);
    let app = app.stop().await.without_variable("COFER_ENVIRONMENT_SOURCES").serve().await;
    assert_eq!(ids(&app).await, Vec::<String>::new(), "who reads notes nothing");
    app.stop().await;
}

async fn what_is_done_in_an_environment_is_shown_as_it_is_done(place: Place) {
    let source = place.source().to_owned();
    let app = place.start.serve().await;
    let env = async |verb: &str, arguments: &[&str]| {
        let words: Vec<&str> =
            ["env", verb, "--source", &source].into_iter().chain(arguments.iter().copied()).collect();
        app.cofer(&words).await.succeeded().to_owned()
    };
    env("create", &["Mend the door", "--id", "door"]).await;
    let made = app.get(&format!("{ALL}/door")).await.json();
    assert_eq!((&made["state"], &made["title"]), (&json!("running"), &json!("Mend the door")), "{made}");
    assert_eq!(made["last_command"], Value::Null);
    env("run", &["door", "echo four >> README.md; echo done"]).await;
    let ran = app.get(&format!("{ALL}/door")).await.json();
    assert_ne!(ran["updated_at"], made["updated_at"]);
    assert_eq!(ran["last_command"]["exit_code"], 0, "{ran}");
    let diff = app.get(&format!("{ALL}/door/diff")).await.json();
    assert!(diff["diff"].as_str().unwrap().contains("\n three\n+four\n"), "{diff}");
    let log = app.get(&format!("{ALL}/door/log")).await.json();
    assert!(log["log"].as_str().unwrap().contains("$ echo four >> README.md; echo done"), "{log}");
    assert!(log["log"].as_str().unwrap().contains("Create environment door"), "{log}");
    env("destroy", &["--all"]).await;
    assert_eq!(app.get(&format!("{ALL}/door")).await.refusal(), "404 not_found");
    assert_eq!(app.get(ALL).await.json(), json!([]));
    app.stop().await;
}

async fn a_secret_that_stands_in_a_command_is_shown_to_nobody(place: Place) {
    const SECRET: &str = "typed-by-mistake-1618";
    let place = place.with("MY_SECRET", SECRET);
    let file = json!({"secrets": ["TOKEN=env://MY_SECRET"]});
    std::fs::write(place.path.join(".cofer/environment.json"), file.to_string()).unwrap();
    let (path, source) = (place.path.clone(), place.source().to_owned());
    let app = place.start.serve().await;
    let env = async |verb: &str, rest: &[&str]| {
        let words: Vec<&str> = [&["env", verb, "--source", &source], rest].concat();
        app.cofer(&words).await.succeeded().to_owned()
    };
    env("create", &["Mend the door", "--id", "door"]).await;
    let (command, message) = (format!("echo {SECRET} | wc -c > size"), format!("Measure {SECRET}"));
    env("run", &["-m", &message, "door", &command]).await;
    let kept = std::fs::read_to_string(home(&path, "door").join("last-command.json")).unwrap();
    let [all, one, log] = [ALL, "/api/v1/environments/door", "/api/v1/environments/door/log"];
    let shown = [kept, app.get(all).await.text, app.get(one).await.text, app.get(log).await.text];
    for text in shown {
        assert!(text.contains("echo [masked] | wc -c"), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    }
    env("destroy", &["--all"]).await;
    app.stop().await;
}
