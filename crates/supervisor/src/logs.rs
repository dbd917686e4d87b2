//! What a server says to its log: the last of it, over all its runs, masked, and bounded in lines and in bytes.
//!
//! A [`Diary`] belongs to one run: it makes lines of chunks and hides that run's secrets. The [`LogBook`] outlives runs.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cofer_model::{Mask, Moment};
use cofer_sandbox::LogStream;
use tokio::sync::broadcast;

/// The rest of a longer line is dropped.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;
/// So much more is masked than is kept, so that a secret at the cut does not escape by being cut.
const MASKED_BEYOND_CUT_BYTES: usize = 8 << 10;
/// What a line costs beside its text.
const LINE_COST_BYTES: usize = 64;
/// A follower that is further behind misses lines, and is told so.
const FOLLOWER_LINES_MAX: usize = 1024;
const TAIL_LINES_MAX: usize = 20;
const TAIL_BYTES_MAX: usize = 4 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub at: Moment,
    pub stream: LogStream,
    pub line: String,
}

#[derive(Debug)]
pub struct LogBook {
    shelf: Mutex<Shelf>,
    lines_max: usize,
    bytes_max: usize,
    /// Made for the first follower: most books have none.
    followers: OnceLock<broadcast::Sender<Arc<LogLine>>>,
}

#[derive(Debug, Default)]
struct Shelf {
    lines: VecDeque<Arc<LogLine>>,
    bytes: usize,
    /// How many lines were ever written.
    written: u64,
}

impl LogBook {
    pub fn new(lines_max: usize, bytes_max: usize) -> Self {
        Self { shelf: Mutex::default(), lines_max, bytes_max, followers: OnceLock::new() }
    }

    /// The last lines, oldest first.
    pub fn tail(&self, lines_max: usize) -> Vec<Arc<LogLine>> {
        self.shelf().tail(lines_max)
    }

    /// The last lines, and whatever comes after them: none is missed and none comes twice. Who reads too slowly hears how many
    /// lines they missed ([`broadcast::error::RecvError::Lagged`]).
    pub fn follow(&self, lines_max: usize) -> (Vec<Arc<LogLine>>, broadcast::Receiver<Arc<LogLine>>) {
        let held = self.shelf();
        let followers = self.followers.get_or_init(|| broadcast::channel(FOLLOWER_LINES_MAX).0);
        (held.tail(lines_max), followers.subscribe())
    }

    fn write(&self, line: LogLine) {
        let line = Arc::new(line);
        let mut held = self.shelf();
        held.written += 1;
        held.bytes += line.line.len() + LINE_COST_BYTES;
        held.lines.push_back(line.clone());
        while held.lines.len() > self.lines_max || held.bytes > self.bytes_max {
            let Some(oldest) = held.lines.pop_front() else { break };
            held.bytes -= oldest.line.len() + LINE_COST_BYTES;
        }
        if let Some(followers) = self.followers.get() {
            // Nobody may be listening any more.
            let _ = followers.send(line);
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn tail(&self, lines_max: usize) -> Vec<Arc<LogLine>> {
        let from = self.lines.len().saturating_sub(lines_max);
        self.lines.range(from..).cloned().collect()
    }
}

/// The log of one run.
#[derive(Debug)]
pub struct Diary {
    book: Arc<LogBook>,
    mask: Arc<Mask>,
    /// How many lines the book had when this run began.
    began: u64,
    halves: Mutex<[HalfLine; 2]>,
}

/// What has come of a line so far.
#[derive(Debug, Default)]
struct HalfLine {
    bytes: Vec<u8>,
}

impl HalfLine {
    fn take(&mut self, bytes: &[u8]) {
        let room = (LOG_LINE_BYTES_MAX + MASKED_BEYOND_CUT_BYTES).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Diary {
    pub fn new(book: Arc<LogBook>, mask: Arc<Mask>) -> Self {
        let began = book.shelf().written;
        Self { book, mask, began, halves: Mutex::default() }
    }

    /// Takes a chunk, wherever its line breaks are.
    pub fn take(&self, stream: LogStream, chunk: &[u8]) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let half = &mut halves[usize::from(stream == LogStream::Stderr)];
        let mut parts = chunk.split(|byte| *byte == b'\n');
        // What comes after the last line break begins the next line.
        let rest = parts.next_back().unwrap_or_default();
        for part in parts {
            half.take(part);
            self.write(stream, &mem::take(&mut half.bytes));
        }
        half.take(rest);
    }

    /// The run is over: what has no line break by now will not get one.
    pub(crate) fn flush(&self) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        for (half, stream) in halves.iter_mut().zip([LogStream::Stdout, LogStream::Stderr]) {
            if !half.bytes.is_empty() {
                self.write(stream, &mem::take(&mut half.bytes));
            }
        }
    }

    fn write(&self, stream: LogStream, bytes: &[u8]) {
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let text = String::from_utf8_lossy(bytes);
        let mut line = self.mask.apply(&text).into_owned();
        line.truncate(line.floor_char_boundary(LOG_LINE_BYTES_MAX));
        self.book.write(LogLine { at: Moment::now(), stream, line });
    }

    /// The last that this run said on stderr.
    pub(crate) fn stderr_tail(&self) -> String {
        let held = self.book.shelf();
        let ours = usize::try_from(held.written - self.began).unwrap_or(usize::MAX);
        let mut lines = Vec::new();
        let mut bytes = 0;
        for line in held.lines.iter().rev().take(ours).filter(|line| line.stream == LogStream::Stderr) {
            bytes += line.line.len() + 1;
            if lines.len() == TAIL_LINES_MAX || (bytes > TAIL_BYTES_MAX && !lines.is_empty()) {
                break;
            }
            let from = line.line.len().saturating_sub(TAIL_BYTES_MAX);
            lines.push(&line.line[line.line.ceil_char_boundary(from)..]);
        }
        lines.reverse();
        lines.join("\n")
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use secrecy::SecretString;

    fn diary(lines_max: usize, bytes_max: usize) -> (Arc<LogBook>, Diary) {
        let mut mask = Mask::default();
        mask.hide(&SecretString::from("hunter2hunter2"));
        let book = Arc::new(LogBook::new(lines_max, bytes_max));
        (book.clone(), Diary::new(book, Arc::new(mask)))
    }

    fn lines(book: &LogBook) -> Vec<String> {
        book.tail(usize::MAX).iter().map(|line| line.line.clone()).collect()
    }

    #[test]
    fn lines_are_made_of_chunks_masked_and_flushed_at_the_end() {
        let (book, diary) = diary(100, 1 << 20);
        for chunk in ["one\ntw", "o hunter2", "hunter2\r\n", "\n", "bad \u{fffd}", " half"] {
            diary.take(LogStream::Stderr, chunk.as_bytes());
        }
        diary.take(LogStream::Stdout, b"\xff out\n");
        assert_eq!(lines(&book), ["one", "two [masked]", "", "\u{fffd} out"]);
        assert_eq!(diary.stderr_tail(), "one\ntwo [masked]\n");
        drop(diary);
        assert_eq!(book.tail(1)[0].line, "bad \u{fffd} half");
    }

    #[test]
    fn a_long_line_is_cut_and_a_secret_at_the_cut_is_hidden() {
        let (book, diary) = diary(100, 1 << 20);
        let long = format!(
            "{}hunter2hunter2{}\nnext\n",
            "é".repeat(LOG_LINE_BYTES_MAX / 2 - 3),
            "x".repeat(100_000)
        );
        diary.take(LogStream::Stderr, long.as_bytes());
        let lines = lines(&book);
        assert!(lines[0].len() <= LOG_LINE_BYTES_MAX && !lines[0].contains("hunter"), "{}", lines[0].len());
        assert_eq!(lines[1], "next");
    }

    #[test]
    fn the_tail_is_of_this_run_alone_and_short() {
        let (book, first) = diary(1000, 1 << 20);
        first.take(LogStream::Stderr, b"of the first\n");
        let second = Diary::new(book, Arc::default());
        assert_eq!(second.stderr_tail(), "");
        for n in 0..100 {
            second.take(LogStream::Stderr, format!("line {n}\n").as_bytes());
        }
        let tail = second.stderr_tail();
        assert_eq!((tail.lines().count(), tail.lines().last()), (TAIL_LINES_MAX, Some("line 99")));
        second.take(LogStream::Stderr, "y".repeat(10_000).as_bytes());
        second.flush();
        assert_eq!(second.stderr_tail().len(), TAIL_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_follower_misses_nothing_unless_it_is_slow_and_then_it_is_told() {
        let (book, diary) = diary(10_000, 1 << 20);
        diary.take(LogStream::Stderr, b"before\n");
        let (before, mut after) = book.follow(10);
        diary.take(LogStream::Stderr, b"after\n");
        assert_eq!((before[0].line.as_str(), after.recv().await.unwrap().line.as_str()), ("before", "after"));
        for _ in 0..FOLLOWER_LINES_MAX + 5 {
            diary.take(LogStream::Stderr, b"flood\n");
        }
        assert!(matches!(after.recv().await, Err(broadcast::error::RecvError::Lagged(5))));
    }

    proptest! {
        #[test]
        fn it_never_holds_more_than_it_may(sizes in proptest::collection::vec(0_usize..3000, 0..200)) {
            let (book, diary) = diary(50, 20_000);
            for size in sizes {
                diary.take(LogStream::Stderr, format!("{}\n", "x".repeat(size)).as_bytes());
            }
            let held = book.tail(usize::MAX);
            prop_assert!(held.len() <= 50);
            prop_assert!(held.iter().map(|line| line.line.len() + LINE_COST_BYTES).sum::<usize>() <= 20_000);
        }

        #[test]
        fn however_the_bytes_arrive_the_lines_are_the_same(text in "[ab\n]{0,40}", at in 0_usize..40) {
            let ((whole_book, whole), (book, halves)) = (diary(100, 1 << 20), diary(100, 1 << 20));
            whole.take(LogStream::Stderr, text.as_bytes());
            let (first, second) = text.as_bytes().split_at(at.min(text.len()));
            halves.take(LogStream::Stderr, first);
            halves.take(LogStream::Stderr, second);
            prop_assert_eq!(lines(&whole_book), lines(&book));
        }
    }
}
