//! Being told to end.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// What a shell makes of a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

pub fn interrupted() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// Comes back when somebody presses Ctrl-C or tells us to end.
pub async fn told_to_end() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        // Without handlers the signals do what they always do.
        _ => std::future::pending().await,
    }
}

/// Does this unless we are told to end first; then it is dropped.
pub async fn unless_told_to_end<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = told_to_end() => None,
    }
}
