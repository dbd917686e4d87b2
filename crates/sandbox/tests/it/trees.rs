//! The ends of commands in a workshop: whole trees, whoever wants them to end, and whatever they do against it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use cofer_model::ProviderName;
use cofer_sandbox::{CommandSpec, HowCommandEnded, Said};
use cofer_testkit::until;
use tokio::io::AsyncReadExt as _;

use crate::bed::Bed;
use crate::workbench::{Workbench, exited, rest, shell, until_said, within};

conformance! {
    a_command_that_is_asked_to_end_ends_politely,
    whoever_detached_or_is_deaf_ends_with_its_command,
    hanging_up_ends_the_whole_tree,
    a_cofer_that_is_killed_leaves_no_command_behind,
    a_daemon_that_a_command_left_lives_on_and_holds_up_nobody,
    a_daemon_that_says_much_is_not_held_up_either,
    a_command_that_stops_itself_is_ended_all_the_same,
    one_that_kills_all_it_can_does_not_kill_the_workshop,
    a_workshop_that_is_stopped_ends_its_commands,
    what_ends_in_a_workshop_leaves_no_zombies,
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// Everything that this file's commands leave, by the odd times that they sleep.
async fn sleepers(bench: &Workbench) -> String {
    bench.run("ps -o args | grep '^sleep 10[0-9][0-9]'").await.stdout
}

async fn until_none_sleeps(bench: &Workbench) {
    until("the end of the tree", async || sleepers(bench).await.is_empty()).await;
}

async fn a_command_that_is_asked_to_end_ends_politely(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut plain = bench.start(&shell("echo ready; sleep 1001")).await;
    until_said(&mut plain, "ready").await;
    plain.end(LONG).await.unwrap();
    let end = rest(&mut plain).await.end;
    assert_eq!((end.signal, end.how), (Some(15), HowCommandEnded::Terminated));
    // Who is born after all were asked to end is asked as well.
    let tidy = "trap 'setsid sleep 1002 & echo tidied; exit 4' TERM; echo ready; while :; do sleep 1; done";
    let mut tidy = bench.start(&shell(tidy)).await;
    until_said(&mut tidy, "ready").await;
    tidy.end(LONG).await.unwrap();
    let outcome = rest(&mut tidy).await;
    assert_eq!((outcome.stdout.as_str(), outcome.end.code), ("tidied\n", Some(4)));
    assert_eq!(outcome.end.how, HowCommandEnded::Terminated);
    until_none_sleeps(&bench).await;
}

async fn whoever_detached_or_is_deaf_ends_with_its_command(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let script = "sleep 1001 & setsid sleep 1002 & (setsid sh -c 'sleep 1003 & setsid sleep 1004 &' &) \n\
                  (trap '' TERM; setsid sleep 1005 &) \n\
                  trap '' TERM; echo ready; while :; do sleep 1; done";
    let mut command = bench.start(&shell(script)).await;
    until_said(&mut command, "ready").await;
    until("all five", async || sleepers(&bench).await.lines().count() == 5).await;
    let start = Instant::now();
    command.end(SHORT).await.unwrap();
    let end = rest(&mut command).await.end;
    assert_eq!((end.signal, end.how), (Some(9), HowCommandEnded::Killed));
    assert!(start.elapsed() >= SHORT);
    // By then, and not a moment later.
    assert_eq!(sleepers(&bench).await, "");
}

async fn hanging_up_ends_the_whole_tree(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let script = "setsid sleep 1001 & (trap '' TERM; setsid sleep 1002 &); echo ready; sleep 1003";
    let mut command = bench.start(&shell(script)).await;
    until_said(&mut command, "ready").await;
    drop(command);
    until_none_sleeps(&bench).await;
}

async fn a_cofer_that_is_killed_leaves_no_command_behind(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let host = match bed.provider_name() {
        ProviderName::Podman => "podman",
        ProviderName::Docker => "docker",
        _ => "gvisor",
    };
    let mut cofer = tokio::process::Command::new(env!("CARGO_BIN_EXE_cofer-test-stand-in"))
        .args(["work", host, bed.engine.host(), &bench.launched.id.0])
        .arg(bench.place.channel())
        .arg("setsid sleep 1001 & echo ready; sleep 1002")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    within(cofer.stdout.take().unwrap().read_exact(&mut said)).await.unwrap();
    assert_eq!(&said, b"ready");
    cofer.kill().await.unwrap();
    until_none_sleeps(&bench).await;
    assert_eq!(bench.run("echo goes on").await.stdout, "goes on\n");
}

async fn a_daemon_that_a_command_left_lives_on_and_holds_up_nobody(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let start = Instant::now();
    // It has the command's stdout and stderr.
    let outcome =
        bench.run("(setsid sh -c 'echo from the daemon; sleep 1001' &); sleep 0.2; echo done").await;
    assert_eq!(outcome.end, exited(0));
    assert!(outcome.stdout.contains("done\n"), "{outcome:?}");
    assert!(start.elapsed() < LONG);
    assert_eq!(sleepers(&bench).await.lines().count(), 1);
    bench.run("pkill -f 'sleep 1001'; kill $(ps -o pid,args | grep '[s]leep 1001' | cut -c1-6)").await;
    until_none_sleeps(&bench).await;
}

async fn a_daemon_that_says_much_is_not_held_up_either(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let daemon = "sleep 0.1; dd if=/dev/zero bs=64k count=64 2>/dev/null; touch /tmp/said";
    let outcome = bench.run(&format!("(setsid sh -c '{daemon}' &); echo done")).await;
    assert!(outcome.stdout.starts_with("done\n"), "{outcome:?}");
    until("all was said", async || bench.run("test -e /tmp/said").await.end == exited(0)).await;
}

async fn a_command_that_stops_itself_is_ended_all_the_same(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut command = bench.start(&shell("echo ready; kill -STOP $$; sleep 1001")).await;
    until_said(&mut command, "ready").await;
    command.end(LONG).await.unwrap();
    let how = rest(&mut command).await.end.how;
    assert!(matches!(how, HowCommandEnded::Terminated | HowCommandEnded::Killed), "{how:?}");
    until_none_sleeps(&bench).await;
}

async fn one_that_kills_all_it_can_does_not_kill_the_workshop(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut bystander = bench.start(&shell("setsid sleep 1001 & echo ready; sleep 1002")).await;
    until_said(&mut bystander, "ready").await;
    // It waits for a word, because it kills also whoever would tell that it has started.
    let fury = CommandSpec { stdin: true, ..shell("read word; sleep 1003 & kill -9 -1; sleep 1004") };
    let mut fury = bench.start(&fury).await;
    fury.input().write(b"now\n").await.unwrap();
    let end = loop {
        if let Some(Said::Ended(end)) = within(fury.next()).await {
            break end;
        }
    };
    assert_eq!(end.how, HowCommandEnded::Lost);
    assert_eq!(rest(&mut bystander).await.end.how, HowCommandEnded::Lost);
    assert_eq!(bench.run("echo still here").await.stdout, "still here\n");
    drop((fury, bystander));
    if !bed.is(ProviderName::Gvisor) {
        until_none_sleeps(&bench).await;
    }
}

async fn a_workshop_that_is_stopped_ends_its_commands(bed: &Bed) {
    use cofer_sandbox::Provider as _;
    let bench = Workbench::new(bed).await;
    let mut command =
        bench.start(&shell("trap 'echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.1; done")).await;
    until_said(&mut command, "ready").await;
    let start = Instant::now();
    let (stopped, outcome) = tokio::join!(bed.provider.stop(&bench.launched.id, LONG), rest(&mut command));
    stopped.unwrap();
    assert!(start.elapsed() < LONG, "it was killed");
    assert_eq!(bed.exit(&bench.launched.id).await.code, Some(0));
    assert!(outcome.stdout.contains("tidied") || bed.is(ProviderName::Gvisor), "{outcome:?}");
}

async fn what_ends_in_a_workshop_leaves_no_zombies(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    for _ in 0..5 {
        bench.run("(setsid sh -c 'true &' &); (sleep 0 &); true").await;
    }
    until("only the living", async || {
        let states = bench.run("cat /proc/[0-9]*/stat | sed 's/.*) \\(.\\).*/\\1/' | grep -c Z").await;
        states.stdout.trim() == "0"
    })
    .await;
}
