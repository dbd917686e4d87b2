//! The connection to Cofer: what was heard and is not read yet, what is said and not gone yet. Nothing here waits but
//! [`Host::request`] and [`Host::finish`], and those not for long.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use cofer_inside::{Deed, FRAME_BYTES_MAX, Garbled, HEADER_BYTES, Word, header, parse_header};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Whoever connects has something to say.
const REQUEST_MAX: Duration = Duration::from_secs(10);
const LAST_WORD_MAX: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 << 10;

pub struct Host {
    pub input: OwnedFd,
    pub output: OwnedFd,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is gone.
    gone: usize,
}

/// What a look at the connection brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Open,
    HungUp,
}

impl Host {
    /// Standard input and output are the connection. They are taken away from there, so that no child gets them and it ends when this does.
    pub fn take_over() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        Ok(Self { input, output, incoming: Vec::new(), outgoing: Vec::new(), gone: 0 })
    }

    /// The first thing that is said.
    pub fn request(&mut self) -> Result<Deed, Garbled> {
        let deadline = Instant::now() + REQUEST_MAX;
        loop {
            if let Some((kind, payload)) = self.take_frame(Expected::Request)? {
                return Deed::parse(kind, &payload);
            }
            let in_time = wait_for(&self.input, PollFlags::IN, deadline);
            if !in_time || self.read() == Line::HungUp {
                return Err(Garbled);
            }
        }
    }

    /// Takes what has come.
    pub fn read(&mut self) -> Line {
        let filled = self.incoming.len();
        self.incoming.resize(filled + READ_BYTES, 0);
        let read = rustix::io::read(&self.input, &mut self.incoming[filled..]);
        self.incoming.truncate(filled + read.unwrap_or(0));
        match read {
            Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => Line::Open,
            Ok(0) | Err(_) => Line::HungUp,
        }
    }

    /// The next frame, if all of it has come.
    pub fn take_frame(&mut self, expected: Expected) -> Result<Option<(u8, Vec<u8>)>, Garbled> {
        let head = parse_header(&self.incoming, expected == Expected::Request)?;
        let Some((kind, length)) = head.filter(|(_, length)| self.incoming.len() >= HEADER_BYTES + length)
        else {
            return Ok(None);
        };
        let payload = self.incoming[HEADER_BYTES..HEADER_BYTES + length].to_vec();
        self.incoming.drain(..HEADER_BYTES + length);
        Ok(Some((kind, payload)))
    }

    pub fn say(&mut self, word: &Word<'_>) {
        self.outgoing.extend(word.frame());
    }

    /// Reads output of a command straight into a frame. At most so many bytes; tells how many there were.
    pub fn relay(&mut self, kind: u8, from: &OwnedFd, bytes_max: usize) -> rustix::io::Result<usize> {
        let start = self.outgoing.len();
        let payload = start + HEADER_BYTES;
        self.outgoing.resize(payload + bytes_max.min(FRAME_BYTES_MAX), 0);
        let read = rustix::io::read(from, &mut self.outgoing[payload..]);
        let length = read.unwrap_or(0);
        self.outgoing[start..payload].copy_from_slice(&header(kind, length));
        self.outgoing.truncate(if length == 0 { start } else { payload + length });
        read
    }

    pub fn has_something_to_say(&self) -> bool {
        self.gone < self.outgoing.len()
    }

    /// Says what can be said without waiting.
    pub fn flush(&mut self) -> Line {
        while self.has_something_to_say() {
            match rustix::io::write(&self.output, &self.outgoing[self.gone..]) {
                Ok(written) => self.gone += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Line::Open,
                Err(_) => return Line::HungUp,
            }
        }
        self.outgoing.clear();
        self.gone = 0;
        Line::Open
    }

    /// Says all that is left to say, unless nobody listens.
    pub fn finish(mut self) {
        let deadline = Instant::now() + LAST_WORD_MAX;
        while self.flush() == Line::Open && self.has_something_to_say() {
            if !wait_for(&self.output, PollFlags::OUT, deadline) {
                return;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Request,
    Order,
}

/// Whether something happened there in time.
fn wait_for(fd: &OwnedFd, flags: PollFlags, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match rustix::event::poll(&mut [PollFd::new(fd, flags)], timeout.as_ref()) {
            Err(Errno::INTR) => {}
            outcome => return outcome.is_ok_and(|ready| ready > 0),
        }
    }
}
