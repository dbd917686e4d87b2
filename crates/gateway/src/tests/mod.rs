//! The room's own tests, with a clock that stands still and servers that are made up.

mod alone;
mod catalogue;
mod desk;
mod lists;
mod questions;
mod recorder;
mod repeats;
mod session;
mod slot;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofer_mcp::{Ear, Face, Handshake, Limits, Pump};
use cofer_model::Kind;
use tokio::io::{DuplexStream, duplex, split};

use crate::dial::{Dial, DialError, Dialled};

/// What becomes of an attempt.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    Connects,
    Fails,
    /// For a reason that is none of the server's.
    CannotBegin,
    Hangs,
}

/// A server that does as it is told; connects when it was told nothing.
#[derive(Debug, Default)]
struct MadeUp {
    dialled: AtomicUsize,
    next: Mutex<VecDeque<Attempt>>,
    /// The other ends of what is connected.
    lines: Mutex<Vec<DuplexStream>>,
}

impl MadeUp {
    fn that(attempts: impl IntoIterator<Item = Attempt>) -> Arc<Self> {
        let made_up = Self::default();
        made_up.will(attempts);
        Arc::new(made_up)
    }

    fn will(&self, attempts: impl IntoIterator<Item = Attempt>) {
        self.next.lock().unwrap().extend(attempts);
    }

    fn dialled(&self) -> usize {
        self.dialled.load(Ordering::Relaxed)
    }

    /// Every connection breaks off.
    fn hangs_up(&self) {
        self.lines.lock().unwrap().clear();
    }
}

#[async_trait]
impl Dial for MadeUp {
    async fn dial(&self, _: &Face, ear: Arc<dyn Ear>) -> Result<Dialled, DialError> {
        self.dialled.fetch_add(1, Ordering::Relaxed);
        let attempt = self.next.lock().unwrap().pop_front().unwrap_or(Attempt::Connects);
        match attempt {
            Attempt::Fails => return Err(DialError::of_server(Kind::Unavailable, "nobody is there")),
            Attempt::CannotBegin => {
                return Err(DialError::of_ours(Kind::PreconditionFailed, "a secret is missing"));
            }
            Attempt::Hangs => std::future::pending().await,
            Attempt::Connects => {}
        }
        let (ours, theirs) = duplex(1 << 10);
        self.lines.lock().unwrap().push(theirs);
        let (stdout, stdin) = split(ours);
        let pump = Pump::start(stdin, stdout, Limits::default());
        pump.listen(ear);
        Ok(Dialled { pump, hands: Handshake::default(), mask: Arc::default(), held: Arc::new(()) })
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn first_wait(&self) -> Duration {
        Duration::ZERO
    }
}
