//! The record: nothing is lost when Cofer or its database ends, nothing secret is kept, nothing grows without bound.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::mask::Mask;
use cofer_model::{CallId, CallStatus, Moment, ProjectId, RunId, ToolCallRecord};
use rustix::process::{Resource, Rlimit};
use serde_json::value::RawValue;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::journal::Line;
use crate::record::{Ledger, Noted, Recorder, Room, Taken, Unwritten};

/// A database that writes when it is let.
#[derive(Debug)]
struct Book {
    written: Mutex<Vec<ToolCallRecord>>,
    may_write: Semaphore,
    failures_left: AtomicUsize,
    is_away: AtomicBool,
}

impl Book {
    fn new(may_write: usize, failures: usize) -> Arc<Self> {
        Arc::new(Self {
            written: Mutex::default(),
            may_write: Semaphore::new(may_write),
            failures_left: failures.into(),
            is_away: false.into(),
        })
    }

    fn count(&self) -> usize {
        self.written.lock().unwrap().len()
    }

    fn tools(&self) -> Vec<String> {
        self.written.lock().unwrap().iter().map(|record| record.tool_name.clone()).collect()
    }
}

#[async_trait]
impl Ledger for Book {
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), Unwritten> {
        self.may_write.acquire().await.unwrap().forget();
        let fails = |left: usize| left.checked_sub(1);
        let is_outage = self.is_away.load(Ordering::Relaxed);
        if is_outage || self.failures_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok() {
            return Err(Unwritten { reason: "the database is away".to_owned(), is_outage });
        }
        self.written.lock().unwrap().extend_from_slice(records);
        Ok(())
    }
}

fn opened(dir: &TempDir, book: &Arc<Book>) -> Recorder {
    Recorder::open(dir.path(), book.clone(), Room::default()).unwrap()
}

fn line(tool: &str) -> Line<'_> {
    Line {
        id: CallId::generate(),
        project: ProjectId(uuid::Uuid::new_v4()),
        run: None,
        step: None,
        tool: tool.into(),
        server: "server".into(),
        input: None,
        output: None,
        status: CallStatus::Completed,
        took_ms: 7,
        caller: "somebody".into(),
        trace: "trace".into(),
        ended_unix_ms: 1_800_000_000_123,
    }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn note<'a>(recorder: &'a Recorder, line: Line<'_>) -> Option<Noted<'a>> {
    recorder.take(Taken { line, input: None, output: None, mask: &Mask::default() })
}

async fn take(recorder: &Recorder, tool: &str) {
    recorder.room().await;
    drop(note(recorder, line(tool)));
}

#[tokio::test(start_paused = true)]
async fn a_flush_returns_when_everything_before_it_is_written() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let recorder = opened(&dir, &book);
    for _ in 0..3000 {
        take(&recorder, "tool").await;
    }
    recorder.flush().await;
    assert_eq!(book.count(), 3000);
}

#[tokio::test(start_paused = true)]
async fn calls_that_end_together_are_written_together_and_each_before_it_is_answered() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let recorder = opened(&dir, &book);
    recorder.flush().await;
    let journal = || std::fs::read_to_string(dir.path().join("calls.1.jsonl")).unwrap();
    let (one, other) = (note(&recorder, line("one")), note(&recorder, line("other")));
    assert_eq!(journal(), "", "nobody was answered yet");
    drop(other);
    let both = journal();
    assert!(both.contains("\"one\"") && both.contains("\"other\""), "{both}");
    let later = note(&recorder, line("later"));
    drop(one);
    assert_eq!(journal(), both, "it was written with the other one");
    drop(later);
    assert!(journal().len() > both.len());
    recorder.flush().await;
    assert_eq!(book.tools(), ["one", "other", "later"]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_nothing_holds_nobody_up() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    for name in ["calls.1.jsonl", "calls.2.jsonl"] {
        std::os::unix::fs::symlink("/dev/full", dir.path().join(name)).unwrap();
    }
    let full = opened(&dir, &book);
    let (one, other) = (note(&full, line("one")), note(&full, line("other")));
    drop((one, other));
    full.flush().await;
    assert_eq!((book.count(), full.bytes_waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_a_part_holds_up_nothing_that_comes_later() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let recorder = opened(&dir, &book);
    recorder.flush().await;
    // Nobody else in this process writes files meanwhile: each test has one of its own.
    let limit = |bytes| {
        let maximum = rustix::process::getrlimit(Resource::Fsize).maximum;
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
    };
    let (whole, cut) = (note(&recorder, line("whole")), note(&recorder, line(&"cut".repeat(1000))));
    limit(Some(1000));
    drop((whole, cut));
    limit(None);
    drop(note(&recorder, line("later")));
    let began = Instant::now();
    while book.count() < 2 {
        sleep(Duration::from_millis(10)).await;
        assert!(began.elapsed() < Duration::from_secs(30), "nobody was told that there is something");
    }
    assert_eq!(book.tools(), ["whole", "later"]);
}

#[tokio::test]
async fn what_is_taken_down_becomes_a_row_to_the_letter() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1, 0));
    let recorder = opened(&dir, &book);
    let (input, output) =
        (raw("{ \"a\":\n 1e400, \"b\": \"\\u0000\\n\u{2028}ß\" }"), raw("[ 1e400, \"ß\" ]"));
    let run = RunId::generate();
    let asked = Line { run: Some(run), step: Some(3), ..line("a \"tool\"\n") };
    let (id, project_id) = (asked.id, asked.project);
    let mask = Mask::default();
    drop(recorder.take(Taken { line: asked, input: Some(&input), output: Some(&output), mask: &mask }));
    recorder.flush().await;
    let expected = ToolCallRecord {
        id,
        project_id,
        run_id: Some(run),
        tool_name: "a \"tool\"\n".to_owned(),
        server: "server".to_owned(),
        input: Some(input.get().to_owned()),
        output: Some(output.get().to_owned()),
        status: CallStatus::Completed,
        duration_ms: Some(7),
        step_number: Some(3),
        caller: Some("somebody".to_owned()),
        trace_id: Some("trace".to_owned()),
        created_at: Moment::from_unix_ms(1_800_000_000_123),
    };
    assert_eq!(*book.written.lock().unwrap(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn rows_are_made_when_calls_pause_and_at_the_latest_after_five_seconds() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let recorder = opened(&dir, &book);
    recorder.flush().await;
    take(&recorder, "alone").await;
    assert_eq!(book.count(), 0, "it is in the journal");
    sleep(Duration::from_millis(150)).await;
    assert_eq!(book.count(), 1, "nobody called any more");
    let began = Instant::now();
    while book.count() == 1 {
        take(&recorder, "of many").await;
        sleep(Duration::from_millis(20)).await;
    }
    let after = began.elapsed();
    assert!(after > Duration::from_secs(4) && after < Duration::from_secs(6), "after {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_run_does_not_wait_for_a_pause() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let recorder = opened(&dir, &book);
    recorder.flush().await;
    let (run, began) = (Some(RunId::generate()), Instant::now());
    drop(note(&recorder, Line { run, ..line("of a run") }));
    while book.count() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_one_has_left_is_made_rows_of_by_the_next() {
    let (dir, away) = (TempDir::new().unwrap(), Book::new(1000, 0));
    away.is_away.store(true, Ordering::Relaxed);
    let killed = opened(&dir, &away);
    take(&killed, "before the page was turned").await;
    killed.flush().await;
    take(&killed, "after").await;
    let book = Book::new(1000, 0);
    let next = opened(&dir, &book);
    take(&next, "by the next").await;
    next.flush().await;
    let mut tools = book.tools();
    tools.sort();
    assert_eq!(tools, ["after", "before the page was turned", "by the next"]);
    for file in std::fs::read_dir(dir.path()).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().len(), 0, "what is written is not kept twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_was_cut_off_spoils_no_other() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 0));
    let killed = opened(&dir, &Book::new(0, 0));
    take(&killed, "whole").await;
    let file = dir.path().join("calls.1.jsonl");
    let whole = std::fs::read(&file).unwrap();
    let mut journal = OpenOptions::new().append(true).open(&file).unwrap();
    journal.write_all(&whole[..whole.len() / 2]).unwrap();
    let next = opened(&dir, &book);
    take(&next, "behind it").await;
    journal.write_all(b"\xff\0 no line of ours \n[]\n{}\n").unwrap();
    journal.write_all(&vec![b'x'; 5 << 20]).unwrap();
    take(&next, "last").await;
    next.flush().await;
    assert_eq!(book.tools(), ["whole", "behind it", "last"]);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_fails_for_a_moment_loses_nothing() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 2));
    let recorder = opened(&dir, &book);
    take(&recorder, "tool").await;
    recorder.flush().await;
    assert_eq!(book.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_for_a_day_loses_nothing_and_holds_nobody_up() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1 << 20, 0));
    book.is_away.store(true, Ordering::Relaxed);
    let recorder = opened(&dir, &book);
    for _ in 0..24 {
        take(&recorder, "tool").await;
        timeout(Duration::from_secs(2), recorder.flush()).await.expect("a flush does not wait for it");
        sleep(Duration::from_hours(1)).await;
    }
    assert_eq!(book.count(), 0);
    assert!(recorder.bytes_waiting() > 24 * 100, "all of them wait");
    book.is_away.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(10)).await;
    assert_eq!((book.count(), recorder.bytes_waiting()), (24, 0), "it is found again by itself");
}

#[tokio::test(start_paused = true)]
async fn what_a_database_refuses_for_good_holds_up_nothing_behind_it() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(1000, 3));
    let recorder = opened(&dir, &book);
    take(&recorder, "refused").await;
    recorder.flush().await;
    take(&recorder, "fine").await;
    recorder.flush().await;
    assert_eq!(book.tools(), ["fine"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_journal_holds_nobody_up_for_long() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(0, 0));
    let room = Room { rows_at_bytes: 1000, bytes_max: 2000 };
    let recorder = Recorder::open(dir.path(), book.clone(), room).unwrap();
    take(&recorder, "on the page").await;
    // The clerk turns the page, and hangs with it.
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let mut taken = 0;
    while began.elapsed() == Duration::ZERO {
        take(&recorder, "in the journal").await;
        taken += 1;
    }
    assert_eq!(began.elapsed(), Duration::from_secs(5), "one more waits for a place, but not for ever");
    book.may_write.add_permits(1000);
    recorder.flush().await;
    assert_eq!(book.count(), taken, "all but the last, and the one on the page");
    take(&recorder, "there is room again").await;
    recorder.flush().await;
    assert_eq!(book.count(), taken + 1);
}

#[tokio::test]
async fn secrets_are_masked_before_what_is_long_is_cut() {
    let (dir, book) = (TempDir::new().unwrap(), Book::new(10, 0));
    let mask = Mask::of([&"s3cret-value".to_owned().into()]);
    // Nothing of it becomes a row, so that what is in the journal can be seen.
    let recorder = opened(&dir, &Book::new(0, 0));
    let long = format!(r#"{{"text":"{}s3cret-value{}"}}"#, "x".repeat((64 << 10) - 15), "y".repeat(1000));
    for text in [r#"{"key":"s3cret-value"}"#, &long] {
        let (text, line) = (raw(text), line("tool"));
        drop(recorder.take(Taken { line, input: Some(&text), output: Some(&text), mask: &mask }));
    }
    let journal = std::fs::read_to_string(dir.path().join("calls.1.jsonl")).unwrap();
    assert!(journal.contains("[masked]") && !journal.contains("s3cr"), "a secret is on the disk");
    let next = opened(&dir, &book);
    next.flush().await;
    let written = book.written.lock().unwrap();
    assert_eq!(written.len(), 2);
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
