//! Streams to a sandbox that runs already: what a Cofer does that was killed and came back.

use cofer_model::ProviderName;
use cofer_sandbox::{LogStream, Provider as _, SandboxError, SandboxId, Stdio};
use cofer_testkit::until;

use crate::bed::{Bed, Lines as _, Log};

conformance! {
    one_that_runs_is_attached_again_after_its_client_went_away,
    one_without_streams_logs_again,
    one_that_has_ended_or_is_gone_is_not_attached,
}

async fn one_that_runs_is_attached_again_after_its_client_went_away(bed: &Bed) {
    let mut first = bed.run("echo begin >&2; cat").await;
    first.say("one").await;
    assert_eq!(first.line().await, "one");
    if bed.is(ProviderName::Podman) {
        let error = bed.provider.attach(&first.id, Log::default().sink()).await.unwrap_err();
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
        return;
    }
    // The connection is closed without a word, as when the process is killed.
    first.streams = None;
    let provider = bed.second_provider();
    let log = Log::default();
    for line in ["two", "three"] {
        let mut streams = provider.attach(&first.id, log.sink()).await.unwrap();
        streams.say(line).await;
        assert_eq!(streams.line().await, line);
    }
    assert_eq!(log.text(LogStream::Stderr), "", "only what comes after counts");
}

async fn one_without_streams_logs_again(bed: &Bed) {
    let mut spec = bed.spec("while :; do echo tick; sleep 0.05; done");
    spec.stdio = Stdio::LogOnly;
    let sandbox = bed.launch(&spec).await;
    until("a tick", async || sandbox.log.text(LogStream::Stdout).contains("tick")).await;
    let (provider, log) = (bed.second_provider(), Log::default());
    provider.attach(&sandbox.id, log.sink()).await.unwrap();
    until("a tick in the new log", async || log.text(LogStream::Stdout).contains("tick")).await;
}

async fn one_that_has_ended_or_is_gone_is_not_attached(bed: &Bed) {
    let ended = bed.run("exit 0").await;
    bed.exit(&ended.id).await;
    for id in [ended.id.clone(), SandboxId("0123456789ab".repeat(5))] {
        let error = bed.provider.attach(&id, Log::default().sink()).await.unwrap_err();
        assert!(matches!(&error, SandboxError::Gone { .. }), "{error}");
    }
    // Attaching must not have started it anew.
    assert_eq!(bed.exit(&ended.id).await.code, Some(0));
}
