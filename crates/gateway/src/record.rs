//! The record of every call: taken down beside the call, written in batches, masked, bounded.
//!
//! A call is not held up by the database: what is to be written waits in a queue. Only when that is full does the next call wait for a
//! place in it, so nothing is lost while the database is slow; if it stays so, calls go on and what could not be taken down is counted.
//! On a clean stop everything in the queue is written. A call of an agent's run is written at once: whoever goes on with the run relies on it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::ToolCallRecord;
use cofer_model::mask::Mask;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

const QUEUE_MAX: usize = 4096;
const BATCH_MAX: usize = 1024;
/// How long records are gathered: one commit costs as much as many records do.
const GATHER: Duration = Duration::from_millis(50);
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_ATTEMPTS: usize = 3;
/// More of an input or output is not kept, only how much it was.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Where records are written to.
#[async_trait]
pub trait Ledger: Send + Sync + std::fmt::Debug + 'static {
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), String>;
}

/// A call as it was, before it is made fit to be kept.
#[derive(Debug)]
pub(crate) struct Taken {
    pub record: ToolCallRecord,
    pub input: Option<Box<RawValue>>,
    pub output: Option<Box<RawValue>>,
    pub mask: Arc<Mask>,
}

#[derive(Debug)]
enum Entry {
    Call(Box<Taken>),
    /// Everything before this has been written.
    Flushed(oneshot::Sender<()>),
}

impl Entry {
    fn is_urgent(&self) -> bool {
        match self {
            Self::Call(taken) => taken.record.run_id.is_some(),
            Self::Flushed(_) => true,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    entries: mpsc::Sender<Entry>,
    /// Told when something is not to wait for more.
    hurry: Arc<Notify>,
}

impl Recorder {
    pub(crate) fn start(ledger: Arc<dyn Ledger>) -> Self {
        let (sender, entries) = mpsc::channel(QUEUE_MAX);
        let hurry = Arc::<Notify>::default();
        tokio::spawn(write_all(ledger, entries, hurry.clone()));
        Self { entries: sender, hurry }
    }

    /// Returns at once, unless the queue is full.
    pub(crate) async fn take(&self, taken: Taken) {
        let is_urgent = taken.record.run_id.is_some();
        let sent = self.entries.try_send(Entry::Call(Box::new(taken)));
        if is_urgent {
            self.hurry.notify_one();
        }
        let Err(mpsc::error::TrySendError::Full(entry)) = sent else {
            return;
        };
        if timeout(PLACE_TIMEOUT, self.entries.send(entry)).await.is_err() {
            tracing::error!(
                "a tool call could not be recorded: the database has not kept up for {PLACE_TIMEOUT:?}"
            );
        }
    }

    /// From where nothing can be waited for: a caller that left.
    pub(crate) fn take_now(&self, taken: Taken) {
        if self.entries.try_send(Entry::Call(Box::new(taken))).is_err() {
            tracing::error!("a cancelled tool call could not be recorded: the database has not kept up");
        }
    }

    /// Waits until everything that was taken down before is written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.hurry.notify_one();
        if self.entries.send(Entry::Flushed(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

async fn write_all(ledger: Arc<dyn Ledger>, mut entries: mpsc::Receiver<Entry>, hurry: Arc<Notify>) {
    let mut waiting = Vec::with_capacity(BATCH_MAX);
    while entries.recv_many(&mut waiting, BATCH_MAX).await > 0 {
        if waiting.len() < BATCH_MAX && !waiting.iter().any(Entry::is_urgent) {
            // Nobody is woken for what comes meanwhile, unless it is urgent.
            let _ = timeout(GATHER, hurry.notified()).await;
            let more = std::iter::from_fn(|| entries.try_recv().ok()).take(BATCH_MAX - waiting.len());
            waiting.extend(more);
        }
        let (mut records, mut flushed) = (Vec::with_capacity(waiting.len()), Vec::new());
        for entry in waiting.drain(..) {
            match entry {
                Entry::Call(taken) => records.push(taken.fit()),
                Entry::Flushed(done) => flushed.push(done),
            }
        }
        if !records.is_empty() {
            write(&*ledger, &records).await;
        }
        for done in flushed {
            let _ = done.send(());
        }
    }
}

async fn write(ledger: &dyn Ledger, records: &[ToolCallRecord]) {
    let mut wait = Duration::from_millis(100);
    for attempt in 1..=WRITE_ATTEMPTS {
        match ledger.write(records).await {
            Ok(()) => return,
            Err(error) if attempt == WRITE_ATTEMPTS => {
                tracing::error!("{} tool calls could not be recorded: {error}", records.len());
            }
            Err(_) => {
                tokio::time::sleep(wait).await;
                wait *= 4;
            }
        }
    }
}

impl Taken {
    fn fit(self) -> ToolCallRecord {
        let Self { mut record, input, output, mask } = self;
        record.input = input.map(|input| kept(&input, &mask));
        record.output = output.map(|output| kept(&output, &mask));
        record
    }
}

/// Masked before it is cut, so that no half of a secret is left.
fn kept(json: &RawValue, mask: &Mask) -> String {
    let text = mask.apply(json.get());
    if text.len() <= TEXT_BYTES_MAX {
        return text.into_owned();
    }
    let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
    serde_json::json!({"truncated": true, "bytes": text.len(), "beginning": &text[..cut]}).to_string()
}
