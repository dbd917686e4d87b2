//! The walls, seen from inside.

use cofer_model::{ProviderName, Size};
use cofer_sandbox::{Provider as _, SandboxState};
use cofer_testkit::until;

use crate::bed::Bed;

conformance! {
    it_has_no_capabilities_and_can_get_none,
    system_calls_are_filtered,
    it_cannot_fork_without_end,
    its_orphans_are_reaped,
    it_sees_no_socket_and_no_device_of_the_machine,
    it_is_not_started_again_by_the_engine,
}

async fn it_has_no_capabilities_and_can_get_none(bed: &Bed) {
    let status = bed.output("cat /proc/self/status").await;
    let value = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(value(set).trim_start_matches('0'), "", "{set} in {status}");
    }
    // gVisor's own kernel shows no such line, and is told the same.
    if !bed.is(ProviderName::Gvisor) {
        assert_eq!(value("NoNewPrivs:"), "1", "{status}");
    }
}

async fn system_calls_are_filtered(bed: &Bed) {
    let status = bed.output("grep ^Seccomp: /proc/self/status; mount -t tmpfs none /mnt && echo mounted; unshare -r true && echo unshared; true").await;
    if !bed.is(ProviderName::Gvisor) {
        assert!(status.contains("Seccomp:\t2"), "{status}");
        assert!(!status.contains("unshared"), "{status}");
    }
    assert!(!status.contains("mounted"), "{status}");
}

async fn it_cannot_fork_without_end(bed: &Bed) {
    let mut spec =
        bed.spec("i=0; while [ $i -lt 400 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; echo $i");
    spec.limits.as_mut().unwrap().pids = 20;
    spec.limits.as_mut().unwrap().cpu = cofer_model::Cpu::from_millis(2000);
    let mut sandbox = bed.launch(&spec).await;
    // The shell gives up, or goes on failing, or the whole sandbox ends: it never has more than it may.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(10), sandbox.rest()).await;
    if matches!(bed.state(&sandbox.id).await, SandboxState::Running { .. }) {
        match bed.provider.usage(&sandbox.id).await {
            Ok(usage) => assert!(usage.pids <= 20 + 128, "{usage:?}"),
            // It is about to end: an engine may say for a while that it still runs.
            Err(_not_there) => {
                bed.exit(&sandbox.id).await;
            }
        }
    }
}

async fn its_orphans_are_reaped(bed: &Bed) {
    // Each inner shell ends at once and leaves its child to whoever is the first process.
    let mut sandbox = bed
        .run("for i in 1 2 3 4 5; do sh -c 'sleep 0.01 & exit'; done; while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null || ps | grep -q ':[0-9]* sleep'; do :; done; echo reaped; cat")
        .await;
    assert_eq!(sandbox.line().await, "reaped");
}

async fn it_sees_no_socket_and_no_device_of_the_machine(bed: &Bed) {
    let found = bed.output("ls /run/docker.sock /var/run/docker.sock /run/podman /dev/kvm /dev/vda /dev/mem /dev/kmsg 2>/dev/null; grep -v -e ' /proc' -e ' /sys' -e ' /dev' /proc/mounts | cut -d' ' -f2").await;
    let expected = [
        "/",
        "/etc/resolv.conf",
        "/etc/hostname",
        "/etc/hosts",
        "/run/.containerenv",
        "/run/podman-init",
        "/sbin/docker-init",
        "/usr/sbin/docker-init",
        "/run/secrets",
        "/tmp",
    ];
    for path in found.lines() {
        assert!(expected.contains(&path), "{path} in {found}");
    }
}

async fn it_is_not_started_again_by_the_engine(bed: &Bed) {
    let mut spec = bed.spec("exit 1");
    spec.limits.as_mut().unwrap().memory = Size::from_bytes(64 << 20);
    let sandbox = bed.launch(&spec).await;
    let first = bed.exit(&sandbox.id).await;
    until("the same end", async || bed.exit(&sandbox.id).await == first).await;
}
