//! Making sandboxes: what they get, one for each owner, and nothing left of a failure.

use cofer_model::ProviderName;
use cofer_sandbox::{ExitCause, LogStream, Provider as _, SandboxError, SandboxState, Stdio};
use cofer_testkit::until;
use secrecy::SecretString;

use crate::bed::Bed;

conformance! {
    what_is_said_to_it_comes_back,
    environment_user_and_workdir_are_its_own,
    stderr_goes_to_the_log_and_not_to_stdout,
    a_sandbox_without_streams_logs_both,
    an_owner_has_one_sandbox_at_a_time,
    only_the_sandboxes_of_the_instance_are_listed,
    an_image_that_is_missing_leaves_nothing,
    a_user_that_is_missing_leaves_nothing,
    a_command_that_is_missing_ends_with_its_code,
    a_launch_that_is_dropped_leaves_nothing_that_is_not_listed,
    what_it_can_do_is_told,
    its_own_pipe_is_written_to_and_not_the_engine,
}

async fn what_is_said_to_it_comes_back(bed: &Bed) {
    let mut sandbox = bed.run("cat").await;
    for line in ["hello", "", "{\"jsonrpc\":\"2.0\"}"] {
        sandbox.say(line).await;
        assert_eq!(sandbox.line().await, line);
    }
    let long = "x".repeat(3 << 20);
    let streams = sandbox.streams.take().unwrap();
    let (mut stdin, mut stdout) = (streams.stdin, streams.stdout);
    let sent = long.clone();
    // Not one after the other: a pipe is much smaller than the line.
    let writing = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut stdin, format!("{sent}\n").as_bytes()).await.unwrap();
        stdin
    });
    let mut read = vec![0; long.len() + 1];
    tokio::io::AsyncReadExt::read_exact(&mut stdout, &mut read).await.unwrap();
    assert!(read == format!("{long}\n").as_bytes(), "the long line came back changed");
    writing.await.unwrap();
}

async fn environment_user_and_workdir_are_its_own(bed: &Bed) {
    let mut spec = bed.spec("echo $GREETING; id -u; pwd");
    spec.environment = vec![("GREETING".into(), SecretString::from("a = b $c"))];
    spec.user = Some("1234".into());
    spec.workdir = Some("/tmp".into());
    assert_eq!(bed.output_of(&spec).await, "a = b $c\n1234\n/tmp\n");
}

async fn stderr_goes_to_the_log_and_not_to_stdout(bed: &Bed) {
    let mut sandbox = bed.run("echo out; echo err >&2; echo out again; echo err again >&2").await;
    assert_eq!(sandbox.rest().await, "out\nout again\n");
    assert_eq!(sandbox.log.text(LogStream::Stderr), "err\nerr again\n");
    assert_eq!(sandbox.log.text(LogStream::Stdout), "");
}

async fn a_sandbox_without_streams_logs_both(bed: &Bed) {
    let mut spec = bed.spec("echo out; echo err >&2; read line; echo end of stdin; sleep 1000");
    spec.stdio = Stdio::LogOnly;
    let sandbox = bed.launch(&spec).await;
    assert!(sandbox.streams.is_none());
    until("both streams in the log", async || {
        sandbox.log.text(LogStream::Stdout) == "out\nend of stdin\n"
            && sandbox.log.text(LogStream::Stderr) == "err\n"
    })
    .await;
}

async fn an_owner_has_one_sandbox_at_a_time(bed: &Bed) {
    let mut spec = bed.spec("cat");
    let first = bed.launch(&spec).await;
    spec.owner.run = 2;
    let mut second = bed.launch(&spec).await;
    assert_ne!(first.id, second.id);
    second.say("still here").await;
    assert_eq!(second.line().await, "still here");
    let listed = bed.provider.list(&bed.instance).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, &listed[0].owner), (&second.id, &spec.owner));
    assert!(matches!(listed[0].state, SandboxState::Running { .. }));
    assert_eq!(bed.provider.look(&first.id).await.unwrap(), None);
}

async fn only_the_sandboxes_of_the_instance_are_listed(bed: &Bed) {
    let running = bed.run("cat").await;
    let ended = bed.run("exit 3").await;
    bed.exit(&ended.id).await;
    let mut listed: Vec<_> =
        bed.provider.list(&bed.instance).await.unwrap().into_iter().map(|sighting| sighting.id).collect();
    let mut expected = vec![running.id, ended.id];
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(bed.provider.list("somebody else").await.unwrap(), vec![]);
}

async fn an_image_that_is_missing_leaves_nothing(bed: &Bed) {
    let mut spec = bed.spec("cat");
    spec.image = "cofer-test/there-is-no-such-image:latest".into();
    spec.volumes = vec![bed.volume("data", "/data")];
    let error = bed.provider.launch(&spec, crate::bed::Log::default().sink()).await.unwrap_err();
    assert!(matches!(&error, SandboxError::ImageMissing { image, .. } if *image == spec.image), "{error}");
    nothing_is_left(bed).await;
}

async fn a_user_that_is_missing_leaves_nothing(bed: &Bed) {
    let mut spec = bed.spec("cat");
    spec.user = Some("nobody-at-all".into());
    spec.volumes = vec![bed.volume("data", "/data")];
    let error = bed.provider.launch(&spec, crate::bed::Log::default().sink()).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Refused { reason, .. } if reason.contains("nobody-at-all")),
        "{error}"
    );
    nothing_is_left(bed).await;
}

async fn nothing_is_left(bed: &Bed) {
    assert_eq!(bed.provider.list(&bed.instance).await.unwrap(), vec![]);
    assert_eq!(bed.provider.volumes(&bed.instance).await.unwrap(), vec![]);
}

/// The init inside starts the command, so that its absence is an end like any other, with the reason in the log.
async fn a_command_that_is_missing_ends_with_its_code(bed: &Bed) {
    let mut spec = bed.spec("");
    spec.cmd = Some(vec!["there-is-no-such-command".into()]);
    let mut sandbox = bed.launch(&spec).await;
    sandbox.rest().await;
    let exit = bed.exit(&sandbox.id).await;
    // Docker's init says 127, Podman's 1.
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert_eq!(exit.cause, ExitCause::Itself);
    let log = sandbox.log.text(LogStream::Stderr);
    assert!(log.contains("No such file"), "{log}");
}

async fn a_launch_that_is_dropped_leaves_nothing_that_is_not_listed(bed: &Bed) {
    for milliseconds in [1, 5, 20, 60, 120, 200] {
        let spec = bed.spec("cat");
        let launch = bed.provider.launch(&spec, crate::bed::Log::default().sink());
        let _ = tokio::time::timeout(std::time::Duration::from_millis(milliseconds), launch).await;
    }
    // `clear` destroys what is listed, and the watch on leaks fails the test on what was not.
}

async fn what_it_can_do_is_told(bed: &Bed) {
    let capabilities = bed.provider.examine().await.unwrap();
    assert!(capabilities.memory_limit && capabilities.cpu_limit && capabilities.pids_limit);
    assert_eq!(capabilities.reattach, !bed.is(ProviderName::Podman));
    let isolation = if bed.is(ProviderName::Gvisor) { "gvisor" } else { "container" };
    assert_eq!(capabilities.isolation.as_str(), isolation);
    assert!(capabilities.description.contains(bed.engine.host()), "{}", capabilities.description);
}

async fn its_own_pipe_is_written_to_and_not_the_engine(bed: &Bed) {
    let before = pipes_written_to();
    let mut sandbox = bed.run("cat").await;
    assert_eq!(pipes_written_to(), before + 1);
    sandbox.say("by the short way").await;
    assert_eq!(sandbox.line().await, "by the short way");
    drop(sandbox.streams.take());
    assert_eq!(pipes_written_to(), before);
}

/// By this process, which is the test's own.
fn pipes_written_to() -> usize {
    let is_pipe = |fd: &std::path::Path| {
        std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
    };
    let is_written = |fd: &std::path::Path| {
        let about = std::fs::read_to_string(fd.to_string_lossy().replace("/fd/", "/fdinfo/"));
        about.is_ok_and(|about| about.lines().any(|line| line.starts_with("flags:") && line.ends_with('1')))
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| fd.path());
    all.filter(|fd| is_pipe(fd) && is_written(fd)).count()
}
