//! The part of the program that is not for people: `cofer guard`, which stands between Cofer and a child process.

use std::fs;
use std::process::{Command, Stdio};

use cofer_testkit::leaks::Leaks;

/// Heap, stacks and libraries. What the loader relocates of the program's own file comes on top; that grows with the program, is several
/// times as much in a debug build, and is measured of the binary that is shipped (`bench/run`).
const OWN_KIB_MAX: u64 = 256;

fn guard(program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofer"));
    command.arg("guard").arg(std::process::id().to_string()).args(program);
    command
}

#[test]
fn a_guardian_ends_as_its_program_does() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let status = guard(&["sh", "-c", "exit 3"]).status().unwrap();
    assert_eq!(status.code(), Some(3));
    let failed = guard(&["/no/such/program"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(125));
    assert!(failed.stderr.starts_with(b"cofer guard: could not start /no/such/program: "));
}

#[test]
fn a_guardian_is_nothing_for_people() {
    let lonely = Command::new(env!("CARGO_BIN_EXE_cofer")).arg("guard").output().unwrap();
    assert_eq!(lonely.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&lonely.stderr).contains("not for people"));
    let help = Command::new(env!("CARGO_BIN_EXE_cofer")).arg("--help").output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("guard"));
}

#[test]
fn a_guardian_is_small() {
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let mut guardian = guard(&["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The program's echo shows that the guardian has started it.
    std::io::Write::write_all(guardian.stdin.as_mut().unwrap(), b"x").unwrap();
    std::io::Read::read_exact(guardian.stdout.as_mut().unwrap(), &mut [0; 1]).unwrap();
    let usage = fs::read_to_string(format!("/proc/{}/smaps", guardian.id())).unwrap();
    let (relocated, own) = anonymous_kib(&usage);
    drop(guardian.stdin.take());
    assert!(guardian.wait().unwrap().success());
    println!("a guardian has {own} KiB of its own, and {relocated} KiB are relocated");
    assert!(own < OWN_KIB_MAX, "{own} KiB");
}

/// Memory that is shared with nobody: in mappings of the program's file, and in all others.
fn anonymous_kib(smaps: &str) -> (u64, u64) {
    let (mut relocated, mut own, mut is_program) = (0, 0, false);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
            *(if is_program { &mut relocated } else { &mut own }) += kib;
        } else if line.split_whitespace().next().is_some_and(|word| word.contains('-')) {
            is_program = line.ends_with(env!("CARGO_BIN_EXE_cofer"));
        }
    }
    assert!(relocated > 0, "the program's file was not found in {smaps}");
    (relocated, own)
}
