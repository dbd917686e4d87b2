//! The record of every call: masked, bounded, on disk before its caller has the answer, and a row of the database soon after.
//!
//! ```text
//! a call ends ──► masked and cut ──► journal ──(calls pause, somebody asks, 5 s, 64 MiB)──► ledger
//! ```
//!
//! A line in the journal costs a fifth of what a row does, and keeps: a Cofer that is killed loses no record, and neither does one whose
//! database is away. Rows are made in batches when there is time for it, or when somebody wants to read them. A call of an agent's run is
//! not left to wait, as others may go on with the run.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::ToolCallRecord;
use cofer_model::mask::Mask;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::journal::{Journal, Kept, Line, Lost, Page, Sheet, Written};

/// When nobody has called for so long, there is time for rows.
const PAUSE: Duration = Duration::from_millis(50);
/// So late they are made in any case.
const LATEST: Duration = Duration::from_secs(5);
const ASKS_MAX: usize = 64;
const WRITE_ATTEMPTS: usize = 3;
/// When the database was away: after this, and twice as long each time, up to `LATEST`.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// More of an input or output is not kept, only how much it was.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Where rows are made.
#[async_trait]
pub trait Ledger: Send + Sync + std::fmt::Debug + 'static {
    /// All of them or none. It may be asked for the same ones again.
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), Unwritten>;
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Unwritten {
    pub reason: String,
    /// It is the ledger that is away; what is to be written waits until it is back.
    pub is_outage: bool,
}

/// How much the journal takes.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// With so much in it, rows are made, even in the middle of a load.
    pub rows_at_bytes: u64,
    /// More is not kept.
    pub bytes_max: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self { rows_at_bytes: 64 << 20, bytes_max: 512 << 20 }
    }
}

/// A call as it was, before it is made fit to be kept.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    pub line: Line<'a>,
    pub input: Option<&'a RawValue>,
    pub output: Option<&'a RawValue>,
    pub mask: &'a Mask,
}

#[derive(Clone, Debug)]
pub struct Recorder(Option<Desk>);

#[derive(Clone, Debug)]
struct Desk {
    shared: Arc<Shared>,
    /// Who wants rows to be made, and to hear of it.
    asks: mpsc::Sender<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    journal: Journal,
    room: Room,
    /// There is something in the journal.
    begun: Notify,
    /// Rows are not to wait for a pause.
    hurry: Notify,
    /// There is room in the journal again.
    turned: Notify,
    /// The ledger is away.
    is_stuck: AtomicBool,
    /// So many calls could not be kept of late.
    lost: AtomicU64,
}

impl Recorder {
    /// Keeps nothing.
    pub fn nowhere() -> Self {
        Self(None)
    }

    /// With its journal in this directory. What an earlier one has left there is made rows of at once.
    pub fn open(dir: &Path, ledger: Arc<dyn Ledger>, room: Room) -> io::Result<Self> {
        let (journal, page) = Journal::open(dir)?;
        let shared = Arc::new(Shared {
            journal,
            room,
            begun: Notify::new(),
            hurry: Notify::new(),
            turned: Notify::new(),
            is_stuck: false.into(),
            lost: 0.into(),
        });
        shared.hurry.notify_one();
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        tokio::spawn(Clerk { shared: shared.clone(), page, ledger, wait: FIRST_WAIT }.work(asked));
        Ok(Self(Some(Desk { shared, asks })))
    }

    /// Returns when there is room for a record, or none is to be had: at once, unless the journal is full.
    pub(crate) async fn room(&self) {
        if let Some(Desk { shared, .. }) = &self.0
            && shared.is_full()
        {
            Box::pin(shared.room_or_not()).await;
        }
    }

    /// Keeps it, if there is room. It is on disk when what is returned is dropped; calls that end together are written together.
    pub(crate) fn take(&self, taken: Taken<'_>) -> Option<Noted<'_>> {
        let shared = &*self.0.as_ref()?.shared;
        shared.note(taken)
    }

    /// How much waits to become rows.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.0.as_ref().map_or(0, |desk| desk.shared.journal.bytes_waiting())
    }

    /// Waits until everything that was taken down before is in the ledger, or cannot be written there now.
    pub(crate) async fn flush(&self) {
        let Some(Desk { asks, .. }) = &self.0 else { return };
        let (done, flushed) = oneshot::channel();
        if asks.send(done).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

impl Shared {
    fn is_full(&self) -> bool {
        self.journal.bytes() >= self.room.bytes_max
    }

    /// Waits a while for the ledger to keep up; not for one that is away.
    async fn room_or_not(&self) {
        let turned = self.turned.notified();
        if self.is_full() && !self.is_stuck.load(Ordering::Relaxed) {
            let _ = timeout(PLACE_TIMEOUT, turned).await;
        }
    }

    fn note(&self, taken: Taken<'_>) -> Option<Noted<'_>> {
        let is_of_run = taken.line.run.is_some();
        let noted = if self.is_full() {
            Err(io::Error::other("the database has not kept up, and the journal is full"))
        } else {
            self.journal.put(&taken.fit()).map_err(io::Error::from)
        };
        match noted {
            Ok(sheet) => Some(Noted { shared: self, sheet, is_of_run }),
            Err(why) => {
                self.lose(1, &why);
                None
            }
        }
    }

    fn lose(&self, calls: u64, why: &io::Error) {
        if self.lost.fetch_add(calls, Ordering::Relaxed) == 0 {
            tracing::error!("tool calls cannot be recorded from now on: {why}");
        }
    }
}

/// A call that is to be in the journal before its caller has the answer: it is when this is dropped.
#[derive(Debug)]
#[must_use = "it is written when this is dropped"]
pub(crate) struct Noted<'a> {
    shared: &'a Shared,
    sheet: Sheet,
    is_of_run: bool,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        let Written { bytes, lost } = shared.journal.write(self.sheet);
        if let Some(Lost { lines, why }) = lost {
            shared.lose(lines, &why);
        }
        if self.is_of_run || bytes.contains(&shared.room.rows_at_bytes) {
            shared.hurry.notify_one();
        } else if bytes.start == 0 && !bytes.is_empty() {
            shared.begun.notify_one();
        }
    }
}

impl<'a> Taken<'a> {
    fn fit(self) -> Line<'a> {
        let Self { line, input, output, mask } = self;
        let kept = |json: Option<&'a RawValue>| json.map(|json| kept(json, mask));
        Line { input: kept(input), output: kept(output), ..line }
    }
}

/// Masked before it is cut, so that no half of a secret is left.
fn kept<'a>(json: &'a RawValue, mask: &Mask) -> Kept<'a> {
    let text = mask.apply(json.get());
    if text.len() > TEXT_BYTES_MAX {
        let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
        let cut = serde_json::json!({"truncated": true, "bytes": text.len(), "beginning": &text[..cut]});
        return Kept::Text(cut.to_string());
    }
    match text {
        Cow::Borrowed(text) if !text.contains('\n') => Kept::Json(json),
        text => Kept::Text(text.into_owned()),
    }
}

/// Makes rows of what is in the journal.
#[derive(Debug)]
struct Clerk {
    shared: Arc<Shared>,
    page: Page,
    ledger: Arc<dyn Ledger>,
    /// Before it is tried again.
    wait: Duration,
}

impl Clerk {
    /// As long as there is a recorder.
    async fn work(mut self, mut asks: mpsc::Receiver<oneshot::Sender<()>>) {
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    Some(ask) => waiting.push(ask),
                    None => return,
                },
                () = self.there_is_time() => {}
            }
            while let Ok(ask) = asks.try_recv() {
                waiting.push(ask);
            }
            self.make_rows().await;
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    async fn there_is_time(&self) {
        let shared = &*self.shared;
        if shared.is_stuck.load(Ordering::Relaxed) {
            return sleep(self.wait).await;
        }
        tokio::select! {
            () = shared.hurry.notified() => return,
            () = shared.begun.notified() => {}
        }
        let (began, mut seen) = (Instant::now(), shared.journal.bytes());
        while timeout(PAUSE, shared.hurry.notified()).await.is_err() {
            let bytes = shared.journal.bytes();
            if bytes == seen || began.elapsed() >= LATEST {
                return;
            }
            seen = bytes;
        }
    }

    /// Until nothing is left that was there when this began, or the ledger is away.
    async fn make_rows(&mut self) {
        // What an earlier attempt has left, and what has come since.
        for _ in 0..2 {
            match self.turn_page().await {
                Ok(true) => {}
                Ok(false) => return self.is_well(),
                Err(stuck) => return self.is_stuck(&stuck),
            }
        }
        self.is_well();
    }

    /// Says whether there was anything on it.
    async fn turn_page(&mut self) -> Result<bool, String> {
        let unread = |error: io::Error| format!("the journal cannot be read: {error}");
        let found = self.shared.journal.turn(&mut self.page).map_err(unread)?;
        self.shared.turned.notify_waiters();
        if !found {
            return Ok(false);
        }
        loop {
            let page = self.page.clone();
            // Aside, because it is a disk that is read.
            let read = tokio::task::spawn_blocking(move || page.read()).await;
            let batch = read.map_err(io::Error::from).flatten().map_err(unread)?;
            if batch.is_end(&self.page) {
                self.shared.journal.clear(&mut self.page).map_err(unread)?;
                return Ok(true);
            }
            self.write(&batch.records).await?;
            self.page.is_written(&batch);
        }
    }

    /// What the ledger refuses for good is given up after a few attempts; what it could not take now is not.
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), String> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            match self.ledger.write(records).await {
                Ok(()) => break,
                Err(error) if attempt < WRITE_ATTEMPTS => {
                    tracing::debug!("records of calls are not written yet: {error}");
                    sleep(wait).await;
                    wait *= 4;
                }
                Err(error) if error.is_outage => return Err(error.reason),
                Err(error) => {
                    tracing::error!("{} tool calls could not be recorded: {error}", records.len());
                    break;
                }
            }
        }
        Ok(())
    }

    fn is_well(&mut self) {
        self.wait = FIRST_WAIT;
        if self.shared.is_stuck.swap(false, Ordering::Relaxed) {
            tracing::info!("the database takes records of calls again");
        }
        match self.shared.lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => tracing::error!("{lost} tool calls could not be recorded; from now on they are again"),
        }
    }

    fn is_stuck(&mut self, why: &str) {
        self.wait = (self.wait * 2).min(LATEST);
        if !self.shared.is_stuck.swap(true, Ordering::Relaxed) {
            tracing::warn!("records of calls wait in the journal until the database takes them: {why}");
        }
    }
}
