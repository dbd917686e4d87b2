//! The leak checks fail on a planted leak, name it, and remove it; and they leave alone what bears no mark.
//!
//! Those about processes plant a shell; `crates/misbehaving` has the same with a server's whole process tree.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a helper of a test fails as a test does")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bollard::models::{ContainerCreateBody, NetworkCreateRequest, VolumeCreateRequest};
use bollard::query_parameters::{CreateImageOptionsBuilder, RemoveImageOptions};
use bollard::{Docker, body_full};
use cofer_testkit::engines::{self, Engine};
use cofer_testkit::leaks::{Descriptors, Leaks};
use futures_util::TryStreamExt as _;

fn quick(leaks: Leaks) -> Leaks {
    leaks.settle_for(Duration::from_millis(100))
}

/// What the check complains of, or nothing.
fn report(check: impl FnOnce()) -> String {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(()) => String::new(),
        Err(panic) => panic.downcast_ref::<String>().expect("the panic has a message").clone(),
    }
}

fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
    shell
}

/// The number that a script prints as its first line.
fn pid_from(child: &mut Child) -> i32 {
    use std::io::{BufRead as _, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_clean_test_passes_at_once() {
    let time_to_settle = Duration::from_mins(10);
    let leaks = Leaks::watch().settle_for(time_to_settle);
    let start = Instant::now();
    assert!(Command::new("true").envs([leaks.mark()]).status().unwrap().success());
    leaks.assert_none();
    assert!(start.elapsed() < time_to_settle, "it waited for nothing");
}

#[test]
fn a_process_on_its_way_out_is_no_leak() {
    let leaks = Leaks::watch();
    let mut child = shell("sleep 0.3").envs([leaks.mark()]).spawn().unwrap();
    leaks.assert_none();
    child.wait().unwrap();
}

/// A process that was forked is its parent's twin until it has become another program.
fn wait_until_it_is(pid: i32, program: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().starts_with(program) {
        assert!(Instant::now() < deadline, "process {pid} never became {program}");
        std::thread::yield_now();
    }
}

#[test]
fn a_child_left_running_is_named_and_killed() {
    let leaks = quick(Leaks::watch());
    let mut child = shell("sleep 301 & echo $!; wait").envs([leaks.mark()]).spawn().unwrap();
    let sleeper = pid_from(&mut child);
    wait_until_it_is(sleeper, "sleep");
    let report = report(|| leaks.assert_none());
    assert!(report.starts_with("the test left 2 behind:"), "{report}");
    assert!(report.contains("echo $!; wait (killed)"), "{report}");
    assert!(report.contains("sleep 301 (killed)"), "{report}");
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_detached_orphan_in_a_session_of_its_own_is_found_by_its_mark() {
    let leaks = quick(Leaks::watch());
    let script = "setsid sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 302' & read unused";
    let mut parent = shell(script).envs([leaks.mark()]).spawn().unwrap();
    let orphan = pid_from(&mut parent);
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(is_alive(orphan));
    let report = report(|| leaks.assert_none());
    assert!(report.contains(&format!("process {orphan} ")) && report.contains("(killed)"), "{report}");
    assert!(!is_alive(orphan));
}

#[test]
fn dropping_the_watch_is_a_check_too() {
    let leaks = quick(Leaks::watch());
    let mut child = shell("exec sleep 303").envs([leaks.mark()]).spawn().unwrap();
    assert!(report(|| drop(leaks)).contains("sleep 303 (killed)"));
    child.wait().unwrap();
}

#[test]
fn what_bears_another_mark_is_neither_reported_nor_killed() {
    let mut bystander = shell("exec sleep 304").envs([("COFER_TEST_RUN", "somebody-else")]).spawn().unwrap();
    quick(Leaks::watch()).assert_none();
    assert!(is_alive(bystander.id().cast_signed()));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn a_child_without_the_mark_is_reported_where_it_must_be_this_test_s_but_never_killed() {
    let leaks = quick(Leaks::watch());
    let mut child = shell("exec sleep 305").spawn().unwrap();
    let report = report(|| leaks.assert_none());
    if std::env::var_os("NEXTEST").is_some() {
        assert!(report.contains("sleep 305 (left alone: it bears no mark)"), "{report}");
    }
    assert!(is_alive(child.id().cast_signed()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_adopted_orphan_is_found_although_its_environment_was_cleaned() {
    if std::env::var_os("NEXTEST").is_none() {
        eprintln!("skipped: this test needs a process of its own: run `make test`");
        return;
    }
    let leaks = quick(Leaks::watch().adopt_orphans());
    let mut parent = shell("env -i setsid sh -c 'echo $$; exec sleep 306' & read unused")
        .envs([leaks.mark()])
        .spawn()
        .unwrap();
    let orphan = pid_from(&mut parent);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let report = report(|| leaks.assert_none());
    assert!(report.contains(&format!("process {orphan} (child of {})", std::process::id())), "{report}");
    assert!(is_alive(orphan), "it bears no mark");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(orphan).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn an_added_worktree_is_named_and_removed_and_an_older_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let repository = folder.join("repository");
    fs::create_dir(&repository).unwrap();
    git(&repository, "init --quiet --initial-branch main");
    git(&repository, "-c user.name=t -c user.email=t@example.org commit --quiet --allow-empty -m first");
    git(&repository, "worktree add --quiet ../older");

    let leaks = quick(Leaks::watch().repository(&repository));
    git(&repository, "worktree add --quiet ../newer");
    git(&repository, "worktree lock ../newer");
    fs::write(folder.join("newer/unsaved"), "work").unwrap();
    let report = report(|| leaks.assert_none());
    assert!(report.contains(&format!("worktree {}", folder.join("newer").display())), "{report}");
    assert!(report.contains("(removed)") && !report.contains("older"), "{report}");
    assert!(!folder.join("newer").exists() && folder.join("older").exists());
    Leaks::watch().repository(&repository).assert_none();
}

fn git(repository: &Path, arguments: &str) {
    let git = Command::new("git").arg("-C").arg(repository).args(arguments.split(' ')).status();
    assert!(git.unwrap().success(), "git {arguments}");
}

#[test]
fn descriptors_that_stay_open_are_counted_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept-open");
    fs::write(&path, "").unwrap();
    let descriptors = Descriptors::of(std::process::id()).settle_for(Duration::from_millis(100));
    let kept = [File::open(&path).unwrap(), File::open(&path).unwrap()];
    descriptors.assert_grown_by_at_most(2);
    let report = report(|| descriptors.assert_grown_by_at_most(1));
    assert!(report.contains(&format!("2 × {}", path.display())), "{report}");
    drop(kept);
    descriptors.assert_grown_by_at_most(0);
}

#[tokio::test]
async fn what_is_left_in_docker_is_named_and_removed() {
    let Some(docker) = engines::docker() else { return };
    everything_labelled_is_found_and_removed(&docker).await;
}

#[tokio::test]
async fn what_is_left_in_podman_is_named_and_removed() {
    let Some(podman) = engines::podman() else { return };
    everything_labelled_is_found_and_removed(&podman).await;
}

async fn everything_labelled_is_found_and_removed(engine: &Engine) {
    let leaks = quick(Leaks::watch());
    let (label, run) = leaks.engine_label();
    let labels = Some(HashMap::from([(label.to_owned(), run.to_owned())]));
    let name = format!("leak-{run}");
    let client = engine.client().await.unwrap();
    import_empty_image(&client, &name).await;
    let container = ContainerCreateBody {
        image: Some(format!("{name}:latest")),
        cmd: Some(vec!["/none".to_owned()]),
        labels: labels.clone(),
        ..Default::default()
    };
    client.create_container(None, container).await.unwrap();
    let volume =
        VolumeCreateRequest { name: Some(name.clone()), labels: labels.clone(), ..Default::default() };
    client.create_volume(volume).await.unwrap();
    let network = NetworkCreateRequest { name: name.clone(), labels, ..Default::default() };
    client.create_network(network).await.unwrap();

    let label = format!("{label}={run}");
    let report = report(|| leaks.assert_none());
    let engine = engine.name();
    assert!(report.starts_with("the test left 3 behind:"), "{report}");
    assert!(report.contains(&format!("{engine} container ")), "{report}");
    assert!(report.contains(&format!("{engine} volume {name} (removed)")), "{report}");
    assert!(report.contains(&format!("{engine} network {name} ")), "{report}");
    Leaks::watch().label(label).assert_none();
    client.remove_image(&name, None::<RemoveImageOptions>, None).await.unwrap();
}

/// An image with nothing in it: enough for a container that is created and never started.
async fn import_empty_image(client: &Docker, name: &str) {
    const EMPTY_TAR: &[u8] = &[0; 1024];
    let options = CreateImageOptionsBuilder::new().from_src("-").repo(name).tag("latest").build();
    let import = client.create_image(Some(options), Some(body_full(EMPTY_TAR.into())), None);
    import.try_collect::<Vec<_>>().await.unwrap();
}
