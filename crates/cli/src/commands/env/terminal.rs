//! `cofer env terminal`: a person's own shell in an environment.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use cofer_environments::{RunningCommand, Said};
use cofer_model::Kind;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::tty::Tty;
use super::{Place, Which, failure, warn};
use crate::exit::Failure;
use crate::output::{print_line, with_spinner};

const GRACE: Duration = Duration::from_secs(2);
const ENDED_BY_SIGNAL: i32 = 128;

/// Open a shell in an environment; what it changes is committed when it ends
#[derive(Debug, Args)]
pub struct Terminal {
    #[command(flatten)]
    which: Which,
}

/// How it ended.
struct End {
    code: Option<i32>,
    signal: Option<i32>,
}

/// What else may happen to a terminal.
struct Signals {
    resized: Signal,
    continued: Signal,
    hung_up: Signal,
    terminated: Signal,
    interrupted: Signal,
    quit: Signal,
}

impl Terminal {
    pub async fn run(self, place: &Place) -> Result<ExitCode, Failure> {
        let Some(tty) = Tty::open().map_err(Failure::internal)? else {
            let message =
                "a terminal needs a terminal\nrun single commands with `cofer env run ID -- COMMAND`";
            return Err(Failure::new(Kind::Invalid, message));
        };
        let mut environment = self.which.open(place).await?;
        // Before anything is taken over: one that comes meanwhile is heard afterwards.
        let mut signals = Signals::listen().map_err(Failure::internal)?;
        let starting = environment.start_terminal(tty.size(), std::env::var("TERM").ok());
        let mut running = with_spinner("opening a terminal", starting).await.map_err(failure)?;
        let ended = {
            let _taken = tty.take().map_err(Failure::internal)?;
            converse(&tty, &mut running, &mut signals).await
        };
        drop(running);
        let end = ended.unwrap_or(End { code: None, signal: None });
        let keeping = environment.keep_terminal(end.code);
        let commit = with_spinner("committing", keeping).await.map_err(failure)?;
        warn(&commit.warnings);
        if let Some(name) = commit.name {
            let short: String = name.chars().take(10).collect();
            print_line(&format!("what was changed is commit {short} of cofer/{}", environment.id()))?;
        }
        let code = end.code.or(end.signal.map(|signal| ENDED_BY_SIGNAL + signal));
        Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        const SIGCONT: i32 = rustix::process::Signal::CONT.as_raw();
        Ok(Self {
            resized: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(SIGCONT))?,
            hung_up: signal(SignalKind::hangup())?,
            terminated: signal(SignalKind::terminate())?,
            interrupted: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }
}

/// Carries what is typed in and what is said out, until the shell ends or has to. `None` if nobody knows how it ended.
async fn converse(tty: &Tty, running: &mut RunningCommand, signals: &mut Signals) -> Option<End> {
    let input = running.input();
    let typed = async {
        let mut buffer = [0; 4096];
        loop {
            match tty.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                // One that has ended is told of by what it says last.
                Ok(length) => _ = input.write(&buffer[..length]).await,
            }
        }
    };
    let Signals { resized, continued, hung_up, terminated, interrupted, quit } = signals;
    let sized = async {
        loop {
            tokio::select! {
                _ = resized.recv() => {}
                // The shell that had the terminal meanwhile has set it to its own liking.
                _ = continued.recv() => drop(tty.make_raw()),
            }
            let _ = input.resize(tty.size()).await;
        }
    };
    let left = async {
        tokio::select! {
            _ = hung_up.recv() => {}
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
            _ = quit.recv() => {}
        }
    };
    tokio::select! {
        end = said(tty, running) => return end,
        () = typed => {}
        () = sized => {}
        () = left => {}
    }
    // Whoever typed has gone: the shell and all that it started end as well.
    let _ = running.end(GRACE).await;
    loop {
        match running.next().await {
            Some(Said::Ended(end)) => return Some(End { code: end.code, signal: end.signal }),
            Some(_) => {}
            None => return None,
        }
    }
}

async fn said(tty: &Tty, running: &mut RunningCommand) -> Option<End> {
    loop {
        match running.next().await {
            // Nobody reads any more: that is told by what is typed, or by a signal.
            Some(Said::Stdout(bytes) | Said::Stderr(bytes)) => _ = tty.write_all(&bytes).await,
            Some(Said::Ended(end)) => return Some(End { code: end.code, signal: end.signal }),
            None => return None,
        }
    }
}
