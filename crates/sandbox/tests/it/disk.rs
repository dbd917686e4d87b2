//! The disk limit: whoever writes past it is ended, the machine loses no more than the limit and a little, and the neighbour does not
//! notice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cofer_model::{Cpu, ProviderName, Size};
use cofer_sandbox::{ExitCause, Provider as _, SandboxSpec};
use cofer_testkit::until;

use crate::bed::Bed;

conformance! {
    one_file_in_the_root_filesystem_is_limited,
    many_files_in_a_volume_are_limited,
    one_long_write_is_limited,
    files_without_a_name_are_limited,
    one_within_its_limit_is_left_alone,
    a_new_cofer_guards_what_it_finds,
}

const MB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MB;
/// A little less than until a test gives up, so that it can tell more.
const PATIENCE: Duration = Duration::from_secs(28);
/// Of the limit, in percent: how much more the disk may hold for a moment. It is one or two on a machine that has time; tests run
/// beside compilers, on two cores, where the guard itself has to wait for its turn.
const OVERSHOOT_MAX_PERCENT: u64 = 25;

fn limited(bed: &Bed, script: &str) -> SandboxSpec {
    let mut spec = bed.spec(script);
    spec.limits.as_mut().unwrap().disk = Size::from_bytes(LIMIT);
    spec.limits.as_mut().unwrap().cpu = Cpu::from_millis(1000);
    // For the one long write, whose bytes are all in memory first.
    spec.limits.as_mut().unwrap().memory = Size::from_bytes(1 << 30);
    spec.volumes = vec![bed.volume("filled", "/filled")];
    spec
}

/// The largest that the sandbox's files ever were while it lived, sampled without a pause.
struct Peak {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Peak {
    fn of(directories: Vec<PathBuf>) -> Self {
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, told) = (bytes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let now = directories.iter().map(held_by).sum();
                seen.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { bytes, stop, thread: Some(thread) }
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.bytes.load(Ordering::Relaxed)
    }
}

fn held_by(directory: &PathBuf) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let about = entry.metadata().ok()?;
            Some(if about.is_dir() { held_by(&entry.path()) } else { about.blocks() * 512 })
        })
        .sum()
}

async fn directories(bed: &Bed, id: &str) -> Vec<PathBuf> {
    let client = bed.engine.client().await.unwrap();
    let inspected = client.inspect_container(id, None).await.unwrap();
    let layer = inspected.graph_driver.unwrap().data["UpperDir"].clone();
    let mounts = inspected.mounts.unwrap_or_default().into_iter().filter_map(|mount| mount.source);
    std::iter::once(layer).chain(mounts).map(PathBuf::from).collect()
}

/// Lets it fill the disk beside a neighbour, and sees what became of both and of the disk.
async fn fills(bed: &Bed, script: &str) {
    let mut neighbour = bed.launch(&limited_neighbour(bed)).await;
    let mut filler =
        bed.launch(&limited(bed, &format!("read go; {script}; echo it wrote everything; cat"))).await;
    let peak = Peak::of(directories(bed, &filler.id.0).await);
    filler.say("go").await;
    let exit = tokio::time::timeout(PATIENCE, bed.exit(&filler.id)).await;
    let peak = peak.end();
    let Ok(exit) = exit else {
        panic!("it goes on, and held {} MB: {:?}", peak / MB, bed.state(&filler.id).await)
    };
    eprintln!("{} {script}: at most {} MB of {} MB", bed.provider.name(), peak / MB, LIMIT / MB);
    // gVisor writes behind: the writer may think itself done before its bytes are on the disk.
    let told = filler.rest().await;
    assert!(told.is_empty() || bed.is(ProviderName::Gvisor), "it was let, and held {} MB", peak / MB);
    // gVisor keeps what is not yet written in the sandbox's memory, and that may be full first.
    let first_in_memory = bed.is(ProviderName::Gvisor) && exit.cause == ExitCause::OutOfMemory;
    assert!(first_in_memory || exit.cause == ExitCause::DiskLimit, "{exit:?}, at most {} MB", peak / MB);
    assert!(peak <= LIMIT + LIMIT * OVERSHOOT_MAX_PERCENT / 100, "it held {} MB", peak / MB);
    neighbour.say("still here").await;
    assert_eq!(neighbour.line().await, "still here");
}

fn limited_neighbour(bed: &Bed) -> SandboxSpec {
    let mut spec = bed.spec("cat");
    spec.limits.as_mut().unwrap().disk = Size::from_bytes(LIMIT);
    spec
}

/// In a single call of the kernel: one who writes so cannot be held still, only ended.
async fn one_long_write_is_limited(bed: &Bed) {
    fills(bed, "dd if=/dev/zero of=/filled/one bs=200M count=1 iflag=fullblock 2>/dev/null; dd if=/dev/zero of=/filled/two bs=250M count=1 iflag=fullblock 2>/dev/null").await;
}

/// Two files, because the length of one may be limited by the engine.
async fn one_file_in_the_root_filesystem_is_limited(bed: &Bed) {
    fills(bed, "dd if=/dev/zero of=/var/tmp/one bs=1M count=200 2>/dev/null; dd if=/dev/zero of=/var/tmp/two bs=1M count=2000 2>/dev/null").await;
}

async fn many_files_in_a_volume_are_limited(bed: &Bed) {
    fills(bed, "i=0; while [ $i -lt 4000 ]; do dd if=/dev/zero of=/filled/$i bs=512k count=1 2>/dev/null; i=$((i+1)); done").await;
}

async fn files_without_a_name_are_limited(bed: &Bed) {
    // The sampler cannot see it; what the disk has left is told by the end of the writer.
    let script = "exec 7>/var/tmp/one; rm /var/tmp/one; dd if=/dev/zero bs=1M count=230 >&7 2>/dev/null; exec 8>/var/tmp/two; rm /var/tmp/two; dd if=/dev/zero bs=1M count=230 >&8 2>/dev/null; exec 9>/var/tmp/three; rm /var/tmp/three; dd if=/dev/zero bs=1M count=2000 >&9 2>/dev/null";
    fills(bed, script).await;
}

async fn one_within_its_limit_is_left_alone(bed: &Bed) {
    let script = "for i in 1 2 3; do dd if=/dev/zero of=/var/tmp/zeros bs=1M count=240 2>/dev/null; rm /var/tmp/zeros; done; dd if=/dev/zero of=/filled/zeros bs=1M count=250 2>/dev/null; echo all written; cat";
    let mut sandbox = bed.launch(&limited(bed, script)).await;
    assert_eq!(sandbox.line().await, "all written");
    sandbox.say("still here").await;
    assert_eq!(sandbox.line().await, "still here");
    let used = bed.provider.usage(&sandbox.id).await.unwrap().disk_bytes.unwrap();
    assert!((245 * MB..LIMIT).contains(&used), "{used}");
}

async fn a_new_cofer_guards_what_it_finds(bed: &Bed) {
    let mut spec = limited(
        bed,
        "while [ ! -e /filled/go ]; do sleep 0.05; done; cat /dev/zero | head -c 200000000 >/var/tmp/one; cat /dev/zero >/var/tmp/two",
    );
    spec.stdio = cofer_sandbox::Stdio::LogOnly;
    let launching = bed.second_provider();
    let launched = launching.launch(&spec, crate::bed::Log::default().sink()).await.unwrap();
    drop(launching);
    assert_eq!(bed.provider.list(&bed.instance).await.unwrap().len(), 1);
    let volume = directories(bed, &launched.id.0).await.pop().unwrap();
    std::fs::write(volume.join("go"), "").unwrap();
    until("the guard", async || bed.provider.look(&launched.id).await.unwrap().is_some()).await;
    assert_eq!(bed.exit(&launched.id).await.cause, ExitCause::DiskLimit);
}
