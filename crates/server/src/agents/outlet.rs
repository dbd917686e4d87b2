//! What a run tells, on its way to whoever listens. The run never waits for them: a listener who falls too far behind is left behind,
//! and finds everything in the record.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cofer_agent::{Asked, Event};
use tokio::sync::mpsc;

use super::Ended;

/// So much may wait for a listener, about.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Beside its contents.
const TOLD_BYTES: usize = 256;

#[derive(Debug)]
pub enum Told {
    Event(Event),
    Approval(Asked),
    Done(Ended),
    /// The last thing that a listener hears who did not keep up.
    LeftBehind,
}

impl Told {
    fn bytes(&self) -> usize {
        TOLD_BYTES
            + match self {
                Self::Event(Event::Text { delta }) => delta.len(),
                Self::Event(Event::ToolCall { input, .. } | Event::Display { input, .. }) => {
                    input.get().len()
                }
                Self::Event(Event::ToolResult { content, .. }) => content.get().len(),
                Self::Approval(asked) => asked.input.get().len(),
                Self::Event(Event::Retry { .. }) | Self::Done(_) | Self::LeftBehind => 0,
            }
    }
}

/// The run's end.
#[derive(Debug)]
pub struct Outlet {
    told: Mutex<Option<mpsc::UnboundedSender<Told>>>,
    waiting: Arc<AtomicUsize>,
}

/// The listener's end.
#[derive(Debug)]
pub struct Listener {
    told: mpsc::UnboundedReceiver<Told>,
    waiting: Arc<AtomicUsize>,
}

pub fn outlet() -> (Outlet, Listener) {
    // Bounded by the bytes that wait, not by their number.
    let (sender, told) = mpsc::unbounded_channel();
    let waiting = Arc::<AtomicUsize>::default();
    (Outlet { told: Mutex::new(Some(sender)), waiting: waiting.clone() }, Listener { told, waiting })
}

impl Outlet {
    pub fn tell(&self, told: Told) {
        let mut sender = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &*sender else { return };
        let bytes = told.bytes();
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // How a run ended is always told.
        let fits = waiting <= WAITING_BYTES_MAX || matches!(told, Told::Done(_));
        // An error says that nobody listens any more.
        if open.send(if fits { told } else { Told::LeftBehind }).is_err() || !fits {
            *sender = None;
        }
    }
}

impl Listener {
    /// `None` when nothing more will be told.
    pub async fn next(&mut self) -> Option<Told> {
        let told = self.told.recv().await?;
        self.waiting.fetch_sub(told.bytes(), Ordering::Relaxed);
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Told {
        Told::Event(Event::Text { delta: "x".repeat(bytes) })
    }

    #[tokio::test]
    async fn a_listener_who_does_not_read_is_left_behind_and_costs_little() {
        let (outlet, mut listener) = outlet();
        for _ in 0..1000 {
            outlet.tell(text(10_000));
        }
        let (mut heard, mut last) = (0, None);
        while let Some(told) = listener.next().await {
            heard += told.bytes();
            last = Some(told);
        }
        assert!((900_000..=WAITING_BYTES_MAX).contains(&heard), "{heard}");
        assert!(matches!(last, Some(Told::LeftBehind)));
    }

    #[tokio::test]
    async fn a_listener_who_reads_hears_everything() {
        let (outlet, mut listener) = outlet();
        for _ in 0..1000 {
            outlet.tell(text(10_000));
            assert!(matches!(listener.next().await, Some(Told::Event(_))));
        }
        drop(listener);
        outlet.tell(text(1));
    }
}
