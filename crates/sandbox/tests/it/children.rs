//! Programs beside Cofer, with their whole trees: real processes that fork twice, begin sessions of their own, ignore SIGTERM.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofer_sandbox::{ChildEnd, ChildError, ChildProcess, ChildSpec, HowEnded, LogSink, Streams, child};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::until;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

const STAND_IN: &str = env!("CARGO_BIN_EXE_cofer-test-stand-in");
const GRACE: Duration = Duration::from_secs(5);
/// There is one for each server, so this is what a server costs besides itself.
const GUARDIAN_KIB_MAX: u64 = 128;

/// Leaves a grandchild in a session of its own, whose parent is gone and which says its number; then reads a line and exits.
const LEAVES_AN_ESCAPEE: &str = "(setsid sh -c 'echo $$; exec sleep 1000' &); read line; exit 7";
const LEAVES_A_STUBBORN_ESCAPEE: &str =
    "(setsid sh -c 'trap \"\" TERM HUP INT; echo $$; exec sleep 1000' &); read line; exit 7";

fn spec(program: &str, args: &[&str]) -> ChildSpec {
    let args = args.iter().map(ToString::to_string).collect();
    ChildSpec { program: program.to_owned(), args, environment: Vec::new(), cwd: None }
}

fn no_logs() -> LogSink {
    Arc::new(|_, _| ())
}

fn spawn(spec: &ChildSpec) -> (ChildProcess, Streams) {
    let child = child::spawn(spec, no_logs()).unwrap();
    let streams = child.streams().unwrap();
    assert!(child.streams().is_none(), "they are taken once");
    (child, streams)
}

fn sh(script: &str) -> (ChildProcess, Streams) {
    spawn(&spec("sh", &["-c", script]))
}

async fn first_line(stdout: impl AsyncRead + Unpin) -> String {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await.unwrap();
    line.trim().to_owned()
}

async fn all_of(mut stdout: impl AsyncRead + Unpin) -> String {
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.unwrap();
    text
}

/// The number that an escapee said of itself.
async fn escapee(streams: &mut Streams) -> u32 {
    let pid = first_line(&mut streams.stdout).await.parse().unwrap();
    assert!(lives(pid));
    pid
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

fn exited(code: i32) -> HowEnded {
    HowEnded::Exited { code }
}

#[tokio::test]
async fn nothing_that_a_program_started_outlives_its_stop() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    for script in [LEAVES_AN_ESCAPEE, LEAVES_A_STUBBORN_ESCAPEE] {
        let (child, mut streams) = sh(script);
        let escapee = escapee(&mut streams).await;
        let end = child.stop(Duration::from_millis(200)).await;
        assert_eq!(end.how, HowEnded::Killed { signal: 15 });
        assert!(!lives(escapee));
        assert_eq!(child.stop(GRACE).await, end, "asking again is harmless");
    }
}

#[tokio::test]
async fn who_is_born_after_all_were_asked_to_end_is_asked_as_well() {
    const LONGER_THAN_ANY_TEST: Duration = Duration::from_hours(1);
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let late = "trap 'setsid sleep 1000 & exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let (child, mut streams) = sh(late);
    assert_eq!(first_line(&mut streams.stdout).await, "ready");
    assert_eq!(child.stop(LONGER_THAN_ANY_TEST).await.how, exited(3));
}

#[tokio::test]
async fn nothing_that_a_program_started_outlives_the_value_that_stands_for_it() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh(LEAVES_AN_ESCAPEE);
    let escapee = escapee(&mut streams).await;
    let guardian = child.pid();
    drop(child);
    until("the end of the tree", async || !lives(escapee) && !lives(guardian)).await;
}

#[tokio::test]
async fn nothing_that_a_program_started_outlives_the_program() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    for script in [LEAVES_AN_ESCAPEE, LEAVES_A_STUBBORN_ESCAPEE] {
        let (child, mut streams) = sh(script);
        let escapee = escapee(&mut streams).await;
        streams.stdin.write_all(b"now\n").await.unwrap();
        assert_eq!(child.ended().await.how, exited(7));
        assert!(!lives(escapee));
    }
}

#[tokio::test]
async fn nothing_that_a_program_started_outlives_a_cofer_that_is_killed() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let mut cofer = tokio::process::Command::new(STAND_IN);
    cofer.args(["keep", "sh", "-c", LEAVES_AN_ESCAPEE]).stdout(Stdio::piped());
    let mut cofer = cofer.spawn().unwrap();
    let escapee: u32 = first_line(cofer.stdout.take().unwrap()).await.parse().unwrap();
    assert!(lives(escapee));
    kill(cofer.id().unwrap());
    cofer.wait().await.unwrap();
    until("the end of the tree", async || !lives(escapee)).await;
}

#[tokio::test]
async fn what_a_killed_guardian_leaves_is_ended_too() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh("sh -c 'echo $$; exec sleep 1000' & wait");
    let grandchild = escapee(&mut streams).await;
    kill(child.pid());
    assert_eq!(child.ended().await.how, HowEnded::Killed { signal: 9 });
    assert!(!lives(grandchild));
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_after_the_grace() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh("trap '' TERM HUP INT; echo $$; while :; do sleep 1; done");
    let stubborn = escapee(&mut streams).await;
    let began = Instant::now();
    let patient = child.stop(Duration::from_secs(50));
    let impatient = child.stop(Duration::from_millis(300));
    let (end, same) = tokio::join!(patient, impatient);
    assert_eq!((end.how, same.how), (HowEnded::Killed { signal: 9 }, HowEnded::Killed { signal: 9 }));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(!lives(stubborn));
}

#[tokio::test]
async fn a_program_that_cleans_up_when_asked_has_the_time_for_it() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) =
        sh("trap 'sleep 0.3; echo cleaned; exit 3' TERM; echo $$; while :; do sleep 0.1; done");
    escapee(&mut streams).await;
    assert_eq!(child.stop(GRACE).await.how, exited(3));
    assert_eq!(all_of(streams.stdout).await, "cleaned\n");
}

#[tokio::test]
async fn its_end_is_told_by_code_or_signal_with_its_last_words() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let logged = Arc::new(Mutex::new(String::new()));
    let sink = logged.clone();
    let logs: LogSink =
        Arc::new(move |_, line: &[u8]| sink.lock().unwrap().push_str(&String::from_utf8_lossy(line)));
    let spec = spec("sh", &["-c", "seq 1 30 >&2; printf 'no break at the end' >&2; exit 42"]);
    let child = child::spawn(&spec, logs).unwrap();
    let end = child.ended().await;
    assert_eq!((end.how, end.last_words.len()), (exited(42), 20));
    assert_eq!(end.to_string(), "exited with code 42; it last said: no break at the end");
    assert_eq!(logged.lock().unwrap().lines().count(), 31);
    for (script, signal) in [("kill -SEGV $$", 11), ("kill -KILL $$", 9), ("kill -USR1 $$", 10)] {
        assert_eq!(sh(script).0.ended().await.how, HowEnded::Killed { signal }, "{script}");
    }
    // Its own 125 is not the guardian's.
    assert_eq!(sh("echo so be it >&2; exit 125").0.ended().await.how, exited(125));
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_told_in_words() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let refused = |spec: &ChildSpec| child::spawn(spec, no_logs()).unwrap_err();
    let missing = refused(&spec("no-such-program-anywhere", &[]));
    assert!(
        missing.to_string().starts_with("command not found: no-such-program-anywhere; looked in /"),
        "{missing}"
    );
    assert!(matches!(refused(&spec("/etc/passwd", &[])), ChildError::NotExecutable { .. }));
    let nowhere = ChildSpec { cwd: Some("/no/such/folder".into()), ..spec("sh", &[]) };
    assert!(matches!(refused(&nowhere), ChildError::NoFolder { .. }));
    assert!(matches!(refused(&spec("sh", &["a\0b"])), ChildError::Start { .. }));

    // Only the system itself can tell that this one will not do.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let ChildEnd { how, last_words } = spawn(&spec(script.to_str().unwrap(), &[])).0.ended().await;
    assert_eq!(how, HowEnded::NotStarted);
    assert!(last_words[0].starts_with("cofer guard: could not start "), "{last_words:?}");
}

#[tokio::test]
async fn a_program_gets_a_clean_environment_its_own_folder_and_no_descriptor_of_ours() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let _open_file = fs::File::open("/etc/passwd").unwrap();
    let mut wanted = spec("sh", &["-c", "env; pwd; ls /proc/self/fd | tr '\\n' ' '"]);
    wanted.environment = vec![("API_KEY".to_owned(), "s3cret".into()), ("TZ".to_owned(), "Mars/Base".into())];
    wanted.cwd = Some("/usr".into());
    let (child, streams) = spawn(&wanted);
    let said = all_of(streams.stdout).await;
    let command_line = fs::read_to_string(format!("/proc/{}/cmdline", child.pid())).unwrap_or_default();
    assert!(!command_line.contains("s3cret"));
    child.ended().await;
    let (names, rest): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.contains('='));
    assert_eq!(rest, ["/usr", "0 1 2 3 "]);
    assert!(names.contains(&"API_KEY=s3cret") && names.contains(&"TZ=Mars/Base"), "{said}");
    let names: BTreeSet<_> = names.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    // The last three are made by the shell itself.
    let allowed = "API_KEY PATH HOME LANG TMPDIR USER TERM TZ PWD OLDPWD SHLVL _";
    let extra: Vec<_> = names.into_iter().filter(|name| !allowed.split(' ').any(|it| it == *name)).collect();
    assert_eq!(extra, [""; 0]);
}

#[tokio::test]
async fn a_hundred_children_at_once_are_served_and_ended() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let mut children: Vec<_> = (0..100).map(|_| spawn(&spec("cat", &[]))).collect();
    for (number, (_, streams)) in children.iter_mut().enumerate() {
        streams.stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
    }
    for (number, (_, streams)) in children.iter_mut().enumerate() {
        assert_eq!(first_line(&mut streams.stdout).await, number.to_string());
    }
    let stops = children.iter().map(|(child, _)| child.stop(GRACE));
    let ends = futures_util::future::join_all(stops).await;
    assert!(ends.iter().all(|end| end.how == HowEnded::Killed { signal: 15 }), "{ends:?}");
}

#[tokio::test]
async fn fifty_megabytes_come_through() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh("head -c 50000000 /dev/zero");
    let read = tokio::io::copy(&mut streams.stdout, &mut tokio::io::sink()).await.unwrap();
    assert_eq!((read, child.ended().await.how), (50_000_000, exited(0)));
}

#[tokio::test]
async fn a_program_that_closes_its_stdout_and_goes_on_is_seen_to_and_can_be_stopped() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh("echo $$; exec >&-; exec sleep 1000");
    let program = escapee(&mut streams).await;
    assert_eq!(all_of(&mut streams.stdout).await, "", "nobody else holds its stdout");
    assert!(lives(program));
    child.stop(GRACE).await;
    assert!(!lives(program));
}

#[tokio::test]
async fn a_guardian_is_small() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let (child, mut streams) = sh("echo ready; read line");
    // It has been started, so the guardian has done all that it does before it waits.
    streams.stdout.read_exact(&mut [0; 6]).await.unwrap();
    let usage = fs::read_to_string(format!("/proc/{}/smaps_rollup", child.pid())).unwrap();
    let own_kib: u64 = usage
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap();
    drop(streams);
    child.ended().await;
    println!("a guardian has {own_kib} KiB of its own");
    assert!(own_kib < GUARDIAN_KIB_MAX, "{own_kib} KiB");
}
