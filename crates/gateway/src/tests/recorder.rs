//! The record: nothing is lost on a clean stop, nothing secret is kept, nothing grows without bound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::mask::Mask;
use cofer_model::{CallId, CallStatus, Moment, ProjectId, ToolCallRecord};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::record::{Ledger, Recorder, Taken};

/// A database that writes when it is let.
#[derive(Debug)]
struct Book {
    written: Mutex<Vec<ToolCallRecord>>,
    may_write: Semaphore,
    failures_left: AtomicUsize,
}

impl Book {
    fn new(may_write: usize, failures: usize) -> Arc<Self> {
        let written = Mutex::default();
        Arc::new(Self {
            written,
            may_write: Semaphore::new(may_write),
            failures_left: AtomicUsize::new(failures),
        })
    }

    fn count(&self) -> usize {
        self.written.lock().unwrap().len()
    }
}

#[async_trait]
impl Ledger for Book {
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), String> {
        self.may_write.acquire().await.unwrap().forget();
        let fails = |left: usize| left.checked_sub(1);
        if self.failures_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok() {
            return Err("the database is away".to_owned());
        }
        self.written.lock().unwrap().extend_from_slice(records);
        Ok(())
    }
}

fn taken(output: &str, mask: &Arc<Mask>) -> Taken {
    let record = ToolCallRecord {
        id: CallId::generate(),
        project_id: ProjectId(uuid::Uuid::new_v4()),
        run_id: None,
        tool_name: "tool".to_owned(),
        server: "server".to_owned(),
        input: None,
        output: None,
        status: CallStatus::Completed,
        duration_ms: None,
        step_number: None,
        caller: None,
        trace_id: None,
        created_at: Moment::now(),
    };
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    Taken { record, input: raw(output), output: raw(output), mask: mask.clone() }
}

#[tokio::test(start_paused = true)]
async fn a_flush_returns_when_everything_before_it_is_written() {
    let book = Book::new(1000, 0);
    let recorder = Recorder::start(book.clone());
    for _ in 0..3000 {
        recorder.take(taken("{}", &Arc::default())).await;
    }
    recorder.take_now(taken("{}", &Arc::default()));
    recorder.flush().await;
    assert_eq!(book.count(), 3001);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_fails_for_a_moment_loses_nothing() {
    let book = Book::new(1000, 2);
    let recorder = Recorder::start(book.clone());
    recorder.take(taken("{}", &Arc::default())).await;
    recorder.flush().await;
    assert_eq!(book.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_hangs_holds_nobody_up_for_long() {
    let book = Book::new(0, 0);
    let recorder = Recorder::start(book.clone());
    recorder.take(taken("{}", &Arc::default())).await;
    // The writer takes that one out of the queue, and hangs with it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    for _ in 0..4096 {
        recorder.take(taken("{}", &Arc::default())).await;
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "there is room for so many");
    recorder.take_now(taken("{}", &Arc::default()));
    let began = Instant::now();
    recorder.take(taken("{}", &Arc::default())).await;
    assert_eq!(began.elapsed(), Duration::from_secs(5), "one more waits for its place, but not for ever");
    book.may_write.add_permits(1000);
    recorder.flush().await;
    assert_eq!(book.count(), 4097, "what had its place is written");
}

#[tokio::test]
async fn secrets_are_masked_before_what_is_long_is_cut() {
    let mut mask = Mask::default();
    mask.hide(&"s3cret-value".to_owned().into());
    let mask = Arc::new(mask);
    let book = Book::new(10, 0);
    let recorder = Recorder::start(book.clone());
    recorder.take(taken(r#"{"key":"s3cret-value"}"#, &mask)).await;
    let long = format!(r#"{{"text":"{}s3cret-value{}"}}"#, "x".repeat((64 << 10) - 15), "y".repeat(1000));
    recorder.take(taken(&long, &mask)).await;
    recorder.flush().await;
    let written = book.written.lock().unwrap();
    for record in written.iter() {
        for text in [&record.input, &record.output] {
            let text = text.as_deref().unwrap();
            assert!(!text.contains("s3cr"), "half a secret is left");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "what is kept is JSON");
        }
    }
    let cut: serde_json::Value = serde_json::from_str(written[1].output.as_deref().unwrap()).unwrap();
    assert_eq!(cut["truncated"], true);
    assert!(cut["bytes"].as_u64() > Some(64 << 10), "{cut}");
}
