//! Lines of a stream, each up to a limit. A longer one is passed over, and only whose answer it was is kept.
//!
//! Reading can be given up at any await and taken up again: nothing that was read is lost.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::spotter::IdSpotter;

/// Room for a read while little is said: there may be a thousand servers, most of them silent.
const READ_BYTES_MIN: usize = 4 << 10;
/// Room for a read while a long line is coming in.
const READ_BYTES_MAX: usize = 64 << 10;
/// What is kept of the room for a line between two lines: one long answer does not hold memory for ever.
const KEPT_BYTES_MAX: usize = READ_BYTES_MAX;

#[derive(Debug)]
pub struct Lines<R> {
    stream: R,
    bytes_max: usize,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line break.
    searched: usize,
    /// While a line over the limit goes by.
    passing: Option<IdSpotter>,
}

#[derive(Debug)]
pub enum Line {
    Whole(BytesMut),
    /// It had more than the limit; it may have been the answer to this request.
    TooLong {
        id: Option<u64>,
    },
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(stream: R, bytes_max: usize) -> Self {
        Self { stream, bytes_max, buffer: BytesMut::new(), searched: 0, passing: None }
    }

    /// The next line; `None` at the end. Half a line at the end is no line.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
                self.buffer = BytesMut::new();
            }
            // As much again as has come in already: a long line takes few reads, a short one little room.
            self.buffer.reserve(self.buffer.len().clamp(READ_BYTES_MIN, READ_BYTES_MAX));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn take_line(&mut self) -> Option<Line> {
        let end = memchr::memchr(b'\n', &self.buffer[self.searched..]).map(|at| self.searched + at);
        match (end, &mut self.passing) {
            (Some(end), Some(spotter)) => {
                spotter.watch(&self.buffer[..end]);
                let id = spotter.id();
                self.passing = None;
                self.forget(end + 1);
                Some(Line::TooLong { id })
            }
            (Some(end), None) if end <= self.bytes_max => {
                let line = self.buffer.split_to(end);
                self.forget(1);
                Some(Line::Whole(line))
            }
            (Some(end), None) => {
                let mut spotter = IdSpotter::default();
                spotter.watch(&self.buffer[..end]);
                self.forget(end + 1);
                Some(Line::TooLong { id: spotter.id() })
            }
            (None, _) => {
                self.searched = self.buffer.len();
                if self.passing.is_some() || self.buffer.len() > self.bytes_max {
                    self.passing.get_or_insert_default().watch(&self.buffer);
                    self.forget(self.buffer.len());
                }
                None
            }
        }
    }

    fn forget(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn read(stream: &[u8], bytes_max: usize) -> Vec<String> {
        let mut lines = Lines::new(stream, bytes_max);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            seen.push(match line {
                Line::Whole(line) => String::from_utf8_lossy(&line).into_owned(),
                Line::TooLong { id } => format!("too long {id:?}"),
            });
        }
        seen
    }

    #[tokio::test]
    async fn lines_come_one_by_one_and_half_a_line_at_the_end_is_none() {
        assert_eq!(read(b"a\n\nbc\nhalf", 10).await, ["a", "", "bc"]);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_passed_over_and_the_next_one_is_read() {
        let long = format!("{{\"result\":\"{}\",\"id\":7}}\nnext\n", "x".repeat(200_000));
        assert_eq!(read(long.as_bytes(), 1000).await, ["too long Some(7)", "next"]);
        assert_eq!(read(b"12345\n123456\n1\n", 5).await, ["12345", "too long None", "1"]);
    }

    #[tokio::test]
    async fn memory_for_one_long_line_is_given_back() {
        let long = [vec![b'x'; 4 << 20], b"\nshort\n".to_vec()].concat();
        let mut lines = Lines::new(long.as_slice(), 8 << 20);
        while lines.next().await.unwrap().is_some() {}
        assert!(lines.buffer.capacity() <= KEPT_BYTES_MAX + READ_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn however_the_bytes_arrive_the_lines_are_the_same(text in "[ab\n]{0,60}", at in 0_usize..60, max in 1_usize..10) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (first, second) = text.as_bytes().split_at(at.min(text.len()));
            runtime.block_on(async {
                let mut halves = Lines::new(AsyncReadExt::chain(first, second), max);
                let mut seen = 0;
                while halves.next().await.unwrap().is_some() { seen += 1; }
                assert_eq!(seen, read(text.as_bytes(), max).await.len());
            });
        }
    }
}
