//! What a sandbox uses.

use cofer_model::Size;
use cofer_sandbox::{Provider as _, SandboxError, SandboxId};

use crate::bed::Bed;

conformance! {
    what_it_uses_is_told,
    one_that_is_gone_uses_nothing,
}

async fn what_it_uses_is_told(bed: &Bed) {
    let mut spec = bed.spec("dd if=/dev/zero of=/var/tmp/zeros bs=1M count=8 conv=fsync 2>/dev/null; x=$(yes xxxxxxxxx | head -c 20000000); echo ready; read line; echo $line");
    spec.limits.as_mut().unwrap().memory = Size::from_bytes(256 << 20);
    let mut sandbox = bed.launch(&spec).await;
    assert_eq!(sandbox.line().await, "ready");
    let usage = bed.provider.usage(&sandbox.id).await.unwrap();
    assert_eq!(usage.memory_limit_bytes, 256 << 20);
    assert!((20_000_000..200_000_000).contains(&usage.memory_bytes), "{usage:?}");
    assert!(usage.cpu_nanos > 1_000_000, "{usage:?}");
    assert!(usage.pids >= 2, "{usage:?}");
    let disk = usage.disk_bytes.unwrap();
    assert!(((8 << 20)..(10 << 20)).contains(&disk), "{usage:?}");
}

async fn one_that_is_gone_uses_nothing(bed: &Bed) {
    let error = bed.provider.usage(&SandboxId("0123456789ab".repeat(5))).await.unwrap_err();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
}
