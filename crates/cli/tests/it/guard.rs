//! The part of the program that is not for people: `cofer guard`, which stands between Cofer and a child process.

use std::fs;
use std::process::{Command, Stdio};

use cofer_testkit::leaks::Leaks;

/// Most of it is what the loader relocates, which is more in a debug build.
const PRIVATE_KIB_MAX: u64 = 2048;

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
    let usage = fs::read_to_string(format!("/proc/{}/smaps_rollup", guardian.id())).unwrap();
    let private: u64 = usage
        .lines()
        // All else is the program's file, which Cofer has in memory as well.
        .filter(|line| line.starts_with("Anonymous:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    drop(guardian.stdin.take());
    assert!(guardian.wait().unwrap().success());
    println!("a guardian has {private} KiB of its own");
    assert!(private < PRIVATE_KIB_MAX, "{private} KiB");
}
