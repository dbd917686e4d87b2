//! What is said in a run, on its way into the store: in order, in batches, masked. One task for each run, which ends with it.

use std::time::Duration;

use async_trait::async_trait;
use cofer_agent::{Blocks, Journal, Said};
use cofer_model::mask::Mask;
use cofer_model::{MessageId, Moment, RunId, RunMessage, Speaker};
use cofer_store::{RunProgress, Store};
use tokio::sync::{mpsc, oneshot};

use crate::http::error::chain;

const BATCH_MAX: usize = 64;
const WRITE_ATTEMPTS: usize = 3;
const FIRST_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum Entry {
    Said(Said, Moment),
    /// Everything before this is kept.
    Settled(oneshot::Sender<Result<(), String>>),
}

#[derive(Debug)]
pub(super) struct StoredJournal(mpsc::UnboundedSender<Entry>);

/// Where a run stands when its journal is opened.
#[derive(Debug)]
pub(super) struct Place {
    pub run: RunId,
    pub position: i64,
    pub progress: RunProgress,
}

impl StoredJournal {
    pub(super) fn open(store: Store, place: Place, mask: Mask) -> Self {
        // A turn waits for its journal after each answer, so never more than one answer's results wait here.
        let (entries, inbox) = mpsc::unbounded_channel();
        tokio::spawn(Writer { store, place, mask, failed: None }.write_all(inbox));
        Self(entries)
    }
}

#[async_trait]
impl Journal for StoredJournal {
    fn note(&self, said: Said) {
        // The writer ends with this.
        let _ = self.0.send(Entry::Said(said, Moment::now()));
    }

    async fn settled(&self) -> Result<(), String> {
        let (done, settled) = oneshot::channel();
        let _ = self.0.send(Entry::Settled(done));
        settled.await.unwrap_or_else(|_| Err("the journal has ended".to_owned()))
    }
}

struct Writer {
    store: Store,
    place: Place,
    mask: Mask,
    /// What could not be written makes a hole that nothing may be written behind.
    failed: Option<String>,
}

impl Writer {
    async fn write_all(mut self, mut inbox: mpsc::UnboundedReceiver<Entry>) {
        let mut entries = Vec::new();
        while inbox.recv_many(&mut entries, BATCH_MAX).await > 0 {
            let (mut messages, mut waiting) = (Vec::new(), Vec::new());
            for entry in entries.drain(..) {
                match entry {
                    Entry::Said(said, at) => messages.push(self.message(&said, at)),
                    Entry::Settled(done) => waiting.push(done),
                }
            }
            if !messages.is_empty() && self.failed.is_none() {
                self.failed = self.write(&messages).await.err();
            }
            for done in waiting {
                let _ = done.send(self.failed.clone().map_or(Ok(()), Err));
            }
        }
    }

    fn message(&mut self, said: &Said, created_at: Moment) -> RunMessage {
        let content = said.content.iter().map(|block| block.get()).collect::<Vec<_>>().join(",");
        let content = format!("[{content}]");
        let position = self.place.position;
        self.place.position += 1;
        if said.speaker == Speaker::Assistant {
            self.place.progress.steps += 1;
            self.place.progress.usage = self.place.progress.usage.and(said.usage);
        }
        RunMessage {
            id: MessageId::generate(),
            run_id: self.place.run,
            position,
            step_number: said.step,
            role: said.speaker,
            content: self.mask.apply(&content).into_owned(),
            created_at,
        }
    }

    async fn write(&self, messages: &[RunMessage]) -> Result<(), String> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let Place { run, progress, .. } = self.place;
            match self.store.append_messages(run, messages, progress, Moment::now()).await {
                Ok(()) => break,
                Err(error) if attempt == WRITE_ATTEMPTS => return Err(chain(&error)),
                Err(_) => tokio::time::sleep(wait).await,
            }
            wait *= 4;
        }
        Ok(())
    }
}

/// The blocks of a message that was kept.
pub(super) fn blocks(content: &str) -> Blocks {
    serde_json::from_str(content).unwrap_or_default()
}
