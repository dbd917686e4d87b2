//! Background commands: containers of their own, whose output is kept and bounded.

use cofer_model::{PortMapping, ProviderName};
use cofer_sandbox::{CommandSpec, Provider as _, SandboxState};
use cofer_testkit::{until, until_seen};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::Bed;
use crate::workbench::{Workbench, shell};

conformance! {
    what_it_said_is_kept_after_its_end_with_its_code,
    a_gigabyte_of_output_is_bounded_and_its_end_is_kept,
    it_is_reached_by_its_port_and_commands_run_beside_it,
    it_is_stopped_politely,
    one_that_is_not_there_ends_at_once_and_the_log_says_why,
    it_runs_as_whom_it_should,
}

async fn what_it_said_is_kept_after_its_end_with_its_code(bed: &Bed) {
    let bench = Workbench::background(bed, "pwd; echo err >&2; echo out; exit 3", |_| ()).await;
    assert_eq!(bed.exit(&bench.launched.id).await.code, Some(3));
    assert_eq!(String::from_utf8_lossy(&bench.workshop.log().unwrap()), "/workdir\nerr\nout\n");
    bed.provider.destroy(&bench.launched.id).await.unwrap();
    assert_eq!(bench.workshop.log().unwrap().len(), "/workdir\nerr\nout\n".len());
}

async fn a_gigabyte_of_output_is_bounded_and_its_end_is_kept(bed: &Bed) {
    let megabytes = if bed.is(ProviderName::Gvisor) { 64 } else { 1024 };
    let script = format!("dd if=/dev/zero bs=1M count={megabytes} 2>/dev/null; echo the end");
    let bench = Workbench::background(bed, &script, |_| ()).await;
    assert_eq!(bed.exit(&bench.launched.id).await.code, Some(0));
    let log = bench.workshop.log().unwrap();
    assert!(log.ends_with(b"the end\n"));
    assert!((64 << 10..=128 << 10).contains(&log.len()), "{}", log.len());
}

async fn it_is_reached_by_its_port_and_commands_run_beside_it(bed: &Bed) {
    let script = "echo hello >index.html; echo serving; httpd -f -p 8080 -h .";
    let port = PortMapping { container_port: 8080, host_port: 0 };
    let bench = Workbench::background(bed, script, |spec| spec.ports = vec![port]).await;
    let host_port = bench.launched.endpoints[0].host_port;
    until("the page", async || page(host_port).await.is_some_and(|page| page.contains("hello"))).await;
    // As from outside, until it is there: on a busy machine gVisor now and then loses a connection that is just being made.
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 127.0.0.1 8080 | tail -n 1";
    until_seen("the page from inside", async || match bench.run(ask).await {
        inside if inside.stdout == "hello\n" => Ok(()),
        inside => Err(format!("{inside:?}")),
    })
    .await;
    assert_eq!(bench.workshop.log().unwrap(), b"serving\n");
}

async fn page(port: u16) -> Option<String> {
    let page = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        (!text.is_empty()).then_some(text)
    };
    tokio::time::timeout(Duration::from_secs(2), page).await.ok().flatten()
}

async fn it_is_stopped_politely(bed: &Bed) {
    let script = "trap 'echo tidied; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let bench = Workbench::background(bed, script, |_| ()).await;
    until("its beginning", async || bench.workshop.log().unwrap() == b"ready\n").await;
    bed.provider.stop(&bench.launched.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(bed.exit(&bench.launched.id).await.code, Some(9));
    assert!(bench.workshop.log().unwrap().ends_with(b"tidied\n"));
}

async fn one_that_is_not_there_ends_at_once_and_the_log_says_why(bed: &Bed) {
    let missing = CommandSpec { argv: vec!["no-such-program".into()], ..shell("") };
    let bench = Workbench::background_command(bed, &missing, |_| ()).await;
    assert_eq!(bed.exit(&bench.launched.id).await.code, Some(127));
    let log = String::from_utf8_lossy(&bench.workshop.log().unwrap()).into_owned();
    assert!(log.contains("could not start no-such-program"), "{log}");
    let seen = bed.provider.look(&bench.launched.id).await.unwrap().unwrap();
    assert!(matches!(seen.state, SandboxState::Ended(_)));
}

async fn it_runs_as_whom_it_should(bed: &Bed) {
    let bench = Workbench::background(bed, "id -u; id -g", |spec| spec.user = Some("1234:2345".into())).await;
    bed.exit(&bench.launched.id).await;
    assert_eq!(bench.workshop.log().unwrap(), b"1234\n2345\n");
}
