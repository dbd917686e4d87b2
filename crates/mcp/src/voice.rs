//! How much a server has said, and whoever waits for it to say more.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How much the server has said. Counting costs nothing that a caller would notice; only listeners pay for being told.
#[derive(Debug, Default)]
pub(crate) struct Voice {
    lines: AtomicU64,
    listeners: AtomicUsize,
    spoke: Notify,
}

impl Voice {
    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::SeqCst)
    }

    /// Waits until more lines than these have been heard.
    pub(crate) async fn hears_more_than(&self, lines: u64) {
        let _listening = Listening::to(self);
        loop {
            let spoke = self.spoke.notified();
            tokio::pin!(spoke);
            // From here on no word is missed: whoever counts after this look also tells.
            spoke.as_mut().enable();
            if self.lines() > lines {
                return;
            }
            spoke.await;
        }
    }

    pub(crate) fn heard_a_line(&self) {
        self.lines.fetch_add(1, Ordering::SeqCst);
        if self.listeners.load(Ordering::SeqCst) > 0 {
            self.spoke.notify_waiters();
        }
    }
}

/// Counts as a listener while it lives.
struct Listening<'a>(&'a Voice);

impl<'a> Listening<'a> {
    fn to(voice: &'a Voice) -> Self {
        voice.listeners.fetch_add(1, Ordering::SeqCst);
        Self(voice)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}
