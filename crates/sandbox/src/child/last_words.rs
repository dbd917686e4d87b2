//! Listens to a child's stderr: each line to the log, the last few kept for whoever asks why it ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use crate::{LogSink, LogStream};

/// The rest of a longer line is dropped. More than any log keeps of a line, so that whoever masks it sees beyond their own cut.
const LINE_BYTES_MAX: usize = 32 << 10;
const READ_BYTES: usize = 4 << 10;
const KEPT_LINES_MAX: usize = 20;
/// Of each line that is kept.
const KEPT_BYTES_MAX: usize = 512;

/// What was heard so far, and the task that listens.
#[derive(Debug)]
pub(super) struct LastWords {
    pub heard: Arc<Mutex<VecDeque<String>>>,
    pub listening: JoinHandle<()>,
}

pub(super) fn listen(stderr: ChildStderr, logs: LogSink) -> LastWords {
    let heard = Arc::new(Mutex::new(VecDeque::new()));
    let lines = Lines { line: Vec::new(), logs, heard: heard.clone() };
    LastWords { heard, listening: tokio::spawn(lines.take_all(stderr)) }
}

impl LastWords {
    pub(super) fn lines(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

struct Lines {
    line: Vec<u8>,
    logs: LogSink,
    heard: Arc<Mutex<VecDeque<String>>>,
}

impl Lines {
    async fn take_all(mut self, mut stderr: ChildStderr) {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        while let Ok(1..) = stderr.read_buf(&mut buffer).await {
            self.take(&buffer);
            buffer.clear();
        }
        if !self.line.is_empty() {
            self.tell();
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.tell();
            }
        }
    }

    fn tell(&mut self) {
        if self.line.last() != Some(&b'\n') {
            self.line.push(b'\n');
        }
        (self.logs)(LogStream::Stderr, &self.line);
        let text = String::from_utf8_lossy(&self.line[..self.line.len().min(KEPT_BYTES_MAX)]);
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.len() == KEPT_LINES_MAX {
            heard.pop_front();
        }
        heard.push_back(text.trim_end().to_owned());
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_bounded_however_they_are_cut() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        let logs: LogSink = Arc::new(move |_, line: &[u8]| sink.lock().unwrap().push(line.to_vec()));
        let mut lines = Lines { line: Vec::new(), logs, heard: Arc::default() };
        let long = [vec![b'x'; 3 * LINE_BYTES_MAX], b"\nlast\n".to_vec()].concat();
        lines.take(b"fir");
        lines.take(b"st\nsecond\n");
        long.chunks(1000).for_each(|piece| lines.take(piece));
        let told = told.lock().unwrap();
        assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [6, 7, LINE_BYTES_MAX + 1, 5]);
        assert_eq!(lines.heard.lock().unwrap().back().unwrap(), "last");
    }
}
