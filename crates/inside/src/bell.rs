//! Signals, as something that can be waited for: a child's end, and the wish that everything ends.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

pub struct Bell {
    /// Readable after each signal.
    pub rings: UnixStream,
    end_was_asked: Arc<AtomicBool>,
}

impl Bell {
    pub fn listen() -> io::Result<Self> {
        let (rings, rope) = UnixStream::pair()?;
        rings.set_nonblocking(true)?;
        let end_was_asked = Arc::<AtomicBool>::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&end_was_asked))?;
        }
        for signal in [SIGTERM, SIGINT, SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, rope.try_clone()?)?;
        }
        Ok(Self { rings, end_was_asked })
    }

    /// Whether somebody asked since the last time.
    pub fn end_was_asked(&self) -> bool {
        self.end_was_asked.swap(false, Ordering::Relaxed)
    }

    pub fn silence(&mut self) {
        while let Ok(1..) = self.rings.read(&mut [0; 64]) {}
    }
}
