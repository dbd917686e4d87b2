//! The person's terminal while a shell inside has it: what is typed goes in as it is typed, and whatever happens it is given back as
//! it was found.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, PoisonError};

use cofer_environments::TerminalSize;
use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::unix::AsyncFd;

/// How the terminal was found, for whoever has to give it back.
static FOUND: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// A terminal of our own opening: what is set on it stays ours alone, but for its modes, which are given back.
pub struct Tty {
    file: AsyncFd<File>,
}

impl Tty {
    /// `None` where input and output are not a person's.
    pub fn open() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        // Opened anew, so that others who have it open are not made non-blocking.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/proc/self/fd/0")?;
        #[expect(
            deprecated,
            reason = "a file of our own keeps its descriptor, which is all that its unsafe successor asks for"
        )]
        let file = AsyncFd::new(file)?;
        Ok(Some(Self { file }))
    }

    pub fn size(&self) -> TerminalSize {
        match tcgetwinsize(self.file.get_ref()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                TerminalSize { rows: size.ws_row, columns: size.ws_col }
            }
            _ => TerminalSize { rows: 24, columns: 80 },
        }
    }

    /// Takes it over until the guard is dropped, or something panics.
    pub fn take(&self) -> io::Result<Taken> {
        let found = tcgetattr(self.file.get_ref())?;
        let ours = rustix::io::fcntl_dupfd_cloexec(self.file.get_ref(), 0)?;
        *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some((ours, found));
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let taken = Taken(());
        self.make_raw()?;
        Ok(taken)
    }

    /// Again, after a shell had it back for a while.
    pub fn make_raw(&self) -> io::Result<()> {
        let mut modes = tcgetattr(self.file.get_ref())?;
        modes.make_raw();
        Ok(tcsetattr(self.file.get_ref(), OptionalActions::Now, &modes)?)
    }

    /// What is typed next; nothing at the end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.file.readable().await?;
            match ready.try_io(|file| file.get_ref().read(buffer)) {
                // A terminal that has gone says so with an error.
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(0);
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(outcome) => return outcome,
                Err(_) => {}
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.file.writable().await?;
            match ready.try_io(|file| file.get_ref().write(bytes)) {
                Ok(Ok(written)) => bytes = &bytes[written..],
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Dropped, the terminal is as it was found.
#[must_use]
pub struct Taken(());

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((terminal, modes)) = found {
        // One that has gone needs nothing back.
        let _ = tcsetattr(&terminal, OptionalActions::Drain, &modes);
    }
}
