//! What the server remembers while it runs, shared by the reader and the threads of its calls.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::flags::Flags;
use crate::wire::{self, RpcError};
use crate::{end, tools};

pub(crate) struct Server {
    pub(crate) flags: Flags,
    pub(crate) seen: Mutex<Seen>,
    /// How many tool calls were answered; `later_answer` waits for that to grow.
    answered: Mutex<u64>,
    answered_grew: Condvar,
    /// Questions of ours that the client has not answered yet, by the JSON of their id.
    pub(crate) questions: Mutex<HashMap<String, SyncSender<Value>>>,
    questions_asked: AtomicU64,
    /// Fillers added while running, besides those of the flags.
    pub(crate) fillers_added: AtomicU64,
    pub(crate) reading: Mutex<Reading>,
    /// Memory that is held and never given back.
    pub(crate) hoard: Mutex<Vec<Vec<u8>>>,
    journal: Option<Mutex<File>>,
}

/// What came in, for tests to ask about.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) calls: BTreeMap<String, u64>,
    pub(crate) cancelled: Vec<Value>,
    pub(crate) initialize: bool,
    pub(crate) initialized: bool,
}

/// Whether the reader goes on to the next line.
#[derive(Clone, Copy)]
pub(crate) enum Reading {
    On,
    StopFor(Duration),
    StopForEver,
}

impl Server {
    pub(crate) fn new(flags: Flags) -> Arc<Self> {
        let journal = flags.journal.as_ref().and_then(|path| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .inspect_err(|error| {
                    wire::complain(&format!("could not open the journal {}: {error}", path.display()));
                })
                .ok()
                .map(Mutex::new)
        });
        Arc::new(Self {
            flags,
            seen: Mutex::default(),
            answered: Mutex::default(),
            answered_grew: Condvar::new(),
            questions: Mutex::default(),
            questions_asked: AtomicU64::new(0),
            fillers_added: AtomicU64::new(0),
            reading: Mutex::new(Reading::On),
            hoard: Mutex::default(),
            journal,
        })
    }

    /// Writes down what arrived, before anything is done about it.
    pub(crate) fn note(&self, message: &Value) {
        if let Some(journal) = &self.journal {
            let entry = json!({
                "method": message.get("method"),
                "tool": message.pointer("/params/name"),
                "id": message.get("id"),
            });
            drop(lock(journal).write_all(&wire::line(&entry)));
        }
    }

    /// Writes the answer to a request, unless this server has fallen silent.
    pub(crate) fn answer(&self, id: &Value, reply: Result<Value, RpcError>) {
        let bytes = match reply {
            Ok(result) => wire::result_line(id, &result),
            Err(error) => wire::error_line(id, error),
        };
        self.say(&bytes);
    }

    pub(crate) fn say(&self, bytes: &[u8]) {
        if !self.muted() {
            wire::send(bytes);
        }
    }

    /// Whether this server has fallen silent for good.
    pub(crate) fn muted(&self) -> bool {
        self.flags.silent || self.flags.mute_after_calls.is_some_and(|calls| self.answered() >= calls)
    }

    /// One more tool call was answered, by whatever bytes.
    pub(crate) fn count_answer(&self) {
        let mut answered = lock(&self.answered);
        *answered += 1;
        self.answered_grew.notify_all();
        if self.flags.crash_after_calls == Some(*answered) {
            end::exit(self.flags.exit_code);
        }
    }

    pub(crate) fn answered(&self) -> u64 {
        *lock(&self.answered)
    }

    /// Waits until more than `before` calls were answered, or for `patience`; says whether they were.
    pub(crate) fn later_answer(&self, before: u64, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut answered = lock(&self.answered);
        while *answered <= before {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            answered =
                self.answered_grew.wait_timeout(answered, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn next_question_id(&self) -> Value {
        json!(format!("question-{}", self.questions_asked.fetch_add(1, Ordering::Relaxed)))
    }

    /// The names of the filler tools, in the order they are listed.
    pub(crate) fn fillers(&self) -> Vec<String> {
        let count = self.flags.tools + self.fillers_added.load(Ordering::Relaxed);
        let numbered = (1..=count).map(tools::filler_name);
        self.flags.tool_names.iter().cloned().chain(numbered).collect()
    }
}

/// A thread that panicked while holding this has said so on stderr; the others go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
