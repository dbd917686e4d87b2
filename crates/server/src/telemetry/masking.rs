//! The last thing between a log line and the terminal: known secrets are taken out of it.

use std::io::{self, Write};
use std::sync::{Arc, PoisonError, RwLock};

use cofer_model::Mask;
use secrecy::SecretString;
use tracing_subscriber::fmt::MakeWriter;

/// The process's mask: whoever gets hold of a clear secret tells it.
#[derive(Clone, Debug, Default)]
pub struct SharedMask(Arc<RwLock<Mask>>);

impl SharedMask {
    pub fn hide(&self, value: &SecretString) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).hide(value);
    }

    pub fn apply(&self, text: &str) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).apply(text).into_owned()
    }
}

/// Standard error behind the mask. `tracing` writes each event in one piece, so no secret is cut in two.
#[derive(Clone, Debug)]
pub(super) struct MaskedStderr(pub(super) SharedMask);

impl Write for MaskedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let masked = self.0.apply(&String::from_utf8_lossy(line));
        io::stderr().write_all(masked.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for MaskedStderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
