//! Commands in a workshop: what they say, what they are told, how they end.

use std::time::Duration;

use cofer_model::ProviderName;
use cofer_sandbox::{
    CommandSpec, HowCommandEnded, Provider as _, Said, SandboxError, TerminalSize, Workshop,
};
use cofer_testkit::until;
use secrecy::SecretString;

use crate::bed::Bed;
use crate::workbench::{Outcome, Workbench, exited, rest, shell, until_said, within};

conformance! {
    a_command_tells_both_streams_and_its_code,
    a_command_that_a_signal_ended_tells_the_signal,
    what_a_command_gets_is_added_to_what_the_container_has,
    a_command_that_is_not_there_says_so_and_others_go_on,
    what_is_written_to_a_command_it_reads,
    a_terminal_is_one_and_can_be_resized,
    a_gigabyte_flows_and_nobody_keeps_it,
    fifty_commands_at_once_each_get_their_own,
    a_workshop_is_found_again_by_another_process,
    files_that_a_command_makes_are_on_this_machine,
}

async fn a_command_tells_both_streams_and_its_code(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let outcome = bench.run("echo out; echo err >&2; exit 7").await;
    let expected = Outcome { stdout: "out\n".into(), stderr: "err\n".into(), end: exited(7) };
    assert_eq!(outcome, expected);
    let nothing = bench.run("true").await;
    assert_eq!(nothing, Outcome { stdout: String::new(), stderr: String::new(), end: exited(0) });
}

async fn a_command_that_a_signal_ended_tells_the_signal(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let end = bench.run("kill -9 $$").await.end;
    assert_eq!((end.code, end.signal, end.how), (None, Some(9), HowCommandEnded::Exited));
}

async fn what_a_command_gets_is_added_to_what_the_container_has(bed: &Bed) {
    let bench = Workbench::with(bed, |spec| {
        spec.environment =
            vec![("ONE".into(), SecretString::from("1")), ("TWO".into(), SecretString::from("2"))];
    })
    .await;
    let mut command = shell("echo $ONE $TWO $THREE; pwd; test -n \"$PATH\" && echo path");
    command.environment =
        vec![("TWO".into(), SecretString::from("zwei")), ("THREE".into(), SecretString::from("a = b\n$c"))];
    command.workdir = Some("/tmp".into());
    let outcome = rest(&mut bench.start(&command).await).await;
    assert_eq!(outcome.stdout, "1 zwei a = b $c\n/tmp\npath\n");
    assert_eq!(bench.run("pwd").await.stdout, "/workdir\n");
}

async fn a_command_that_is_not_there_says_so_and_others_go_on(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut missing = shell("");
    missing.argv = vec!["there-is-no-such-command".into()];
    let error = bench.workshop.start(&missing).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::NotStarted { reason } if reason.contains("there-is-no-such-command")),
        "{error}"
    );
    let mut nowhere = shell("true");
    nowhere.workdir = Some("/no/such/directory".into());
    let error = bench.workshop.start(&nowhere).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/directory is not there"), "{error}");
    let mut no_program = shell("");
    no_program.argv = vec!["/etc".into()];
    assert!(matches!(bench.workshop.start(&no_program).await, Err(SandboxError::NotStarted { .. })));
    let mut empty = shell("");
    empty.argv = Vec::new();
    assert!(bench.workshop.start(&empty).await.is_err());
    assert_eq!(bench.run("echo still here").await.stdout, "still here\n");
}

async fn what_is_written_to_a_command_it_reads(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut command = CommandSpec { stdin: true, ..shell("wc -c; echo done") };
    let mut counting = bench.start(&command).await;
    let input = counting.input();
    let writing = tokio::spawn(async move {
        for _ in 0..50 {
            input.write(&vec![b'x'; 100_000]).await.unwrap();
        }
        input.close_stdin().await.unwrap();
    });
    assert_eq!(rest(&mut counting).await.stdout, "5000000\ndone\n");
    writing.await.unwrap();
    // One that never reads: what fits is on its way, it is ended all the same, and whoever waits to write waits no longer.
    command.argv[2] = "echo started; sleep 1000".into();
    let mut deaf = bench.start(&command).await;
    until_said(&mut deaf, "started").await;
    let input = deaf.input();
    let writing = tokio::spawn(async move { input.write(&vec![b'x'; 1 << 20]).await });
    deaf.end(Duration::from_secs(5)).await.unwrap();
    assert_eq!(rest(&mut deaf).await.end.how, HowCommandEnded::Terminated);
    drop(deaf);
    // What was still to be written is refused, or was dropped with all else that the command did not read: that is a race, and neither is wrong.
    let _ = within(writing).await.unwrap();
    assert_eq!(bench.run("cat; echo at its end").await.stdout, "at its end\n");
}

async fn a_terminal_is_one_and_can_be_resized(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut command = shell("tty -s && stty size; read line; stty size; echo got $line; exit 3");
    command.terminal = Some(TerminalSize { rows: 33, columns: 101 });
    let mut typed = bench.start(&command).await;
    until_said(&mut typed, "33 101").await;
    typed.input().resize(TerminalSize { rows: 40, columns: 120 }).await.unwrap();
    typed.input().write(b"hello\r").await.unwrap();
    let outcome = rest(&mut typed).await;
    assert!(
        outcome.stdout.contains("40 120\r\n") && outcome.stdout.ends_with("got hello\r\n"),
        "{outcome:?}"
    );
    assert_eq!(outcome.end, exited(3));
    if bed.is(ProviderName::Gvisor) {
        return; // Its terminals know no keys.
    }
    // A person's Ctrl-C and Ctrl-D.
    command.argv[2] = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 1; done".into();
    let mut interrupted = bench.start(&command).await;
    until_said(&mut interrupted, "ready").await;
    interrupted.input().write(&[3]).await.unwrap();
    let outcome = rest(&mut interrupted).await;
    assert!(outcome.stdout.contains("interrupted"), "{outcome:?}");
    assert_eq!(outcome.end, exited(5));
    command.argv[2] = "echo ready; cat; echo end".into();
    let mut closed = bench.start(&command).await;
    until_said(&mut closed, "ready").await;
    closed.input().close_stdin().await.unwrap();
    let outcome = rest(&mut closed).await;
    assert!(outcome.stdout.ends_with("end\r\n"), "{outcome:?}");
}

async fn a_gigabyte_flows_and_nobody_keeps_it(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let mut command =
        bench.start(&shell("dd if=/dev/zero bs=1M count=1024 2>/dev/null; grep VmHWM /proc/$PPID/status >&2; echo -n end >&2")).await;
    let before = resident_bytes();
    let (mut total, mut most, mut stderr) = (0, 0, Vec::new());
    let end = loop {
        match within(command.next()).await.unwrap() {
            Said::Stdout(bytes) => {
                total += bytes.len();
                most = most.max(resident_bytes_now_and_then(total));
            }
            Said::Stderr(bytes) => stderr.extend(bytes),
            Said::Ended(end) => break end,
        }
    };
    assert_eq!((total, end), (1 << 30, exited(0)));
    assert!(most < before + (24 << 20), "memory grew from {before} to {most}");
    // gVisor does not tell.
    let inside = String::from_utf8_lossy(&stderr);
    let peak_kib = inside.split_ascii_whitespace().find_map(|word| word.parse::<u64>().ok());
    assert!(inside.ends_with("end") && peak_kib.is_none_or(|peak| peak < 4096), "{inside}");
}

fn resident_bytes_now_and_then(total: usize) -> u64 {
    if total % (16 << 20) < (64 << 10) { resident_bytes() } else { 0 }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn fifty_commands_at_once_each_get_their_own(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let runs = (0..50).map(|number| {
        let bench = &bench;
        async move { (number, bench.run(&format!("echo {number}; cat /dev/null; exit {number}")).await) }
    });
    for (number, outcome) in futures_util::future::join_all(runs).await {
        assert_eq!((outcome.stdout, outcome.end), (format!("{number}\n"), exited(number)));
    }
}

async fn a_workshop_is_found_again_by_another_process(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let other = Workshop::at(
        std::sync::Arc::new(bed.second_provider()),
        bench.launched.id.clone(),
        &bench.place.channel(),
    );
    let mut command = within(other.start(&shell("echo hello"))).await.unwrap();
    assert_eq!(rest(&mut command).await.stdout, "hello\n");
    bed.provider.destroy(&bench.launched.id).await.unwrap();
    let error = within(other.start(&shell("true"))).await.unwrap_err();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
}

async fn files_that_a_command_makes_are_on_this_machine(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    bench.run("echo hello >a; mkdir b; ln -s a c").await;
    until("the file", async || bench.place.workdir().join("c").exists()).await;
    assert_eq!(std::fs::read_to_string(bench.place.workdir().join("a")).unwrap(), "hello\n");
    std::fs::write(bench.place.workdir().join("b/d"), "from outside").unwrap();
    assert_eq!(bench.run("cat b/d").await.stdout, "from outside");
}
