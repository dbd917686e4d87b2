//! The end of what a command prints: never more than 64 KiB are held, whatever it prints, and the last 512 lines of them are told.

use std::collections::VecDeque;

pub const BYTES_KEPT: usize = 64 << 10;
pub const LINES_TOLD: usize = 512;

/// The last bytes of a stream.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    kept: VecDeque<u8>,
    /// All bytes that ever came.
    total: u64,
}

/// What is told of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub text: String,
    /// Whether there was more.
    pub truncated: bool,
}

impl Tail {
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(BYTES_KEPT)..];
        let over = (self.kept.len() + bytes.len()).saturating_sub(BYTES_KEPT);
        self.kept.drain(..over);
        self.kept.extend(bytes);
    }

    pub fn told(&self) -> Told {
        self.last_lines(LINES_TOLD)
    }

    pub fn last_lines(&self, max: usize) -> Told {
        let bytes: Vec<u8> = self.kept.iter().copied().collect();
        let is_cut = self.total > bytes.len() as u64;
        // The first line may have lost its beginning, and a character of it its first bytes.
        let begin = if is_cut { next_line(&bytes).unwrap_or_else(|| next_char(&bytes)) } else { 0 };
        let bytes = &bytes[begin..];
        let from = start_of_last_lines(bytes, max);
        Told { text: String::from_utf8_lossy(&bytes[from..]).into_owned(), truncated: is_cut || from > 0 }
    }

    /// The last line that says something.
    pub fn last_line(&self) -> Option<String> {
        let told = self.last_lines(4);
        told.text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }
}

fn next_line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1).filter(|at| *at < bytes.len())
}

fn next_char(bytes: &[u8]) -> usize {
    const CONTINUED: u8 = 0b1000_0000;
    bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == CONTINUED).count()
}

fn start_of_last_lines(bytes: &[u8], max: usize) -> usize {
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let breaks = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.map(|(at, _)| at + 1).nth(max.saturating_sub(1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(chunks: &[&[u8]]) -> Tail {
        let mut tail = Tail::default();
        for chunk in chunks {
            tail.push(chunk);
        }
        tail
    }

    #[test]
    fn little_is_told_as_it_came() {
        assert_eq!(of(&[b"a\n", b"b"]).told(), Told { text: "a\nb".into(), truncated: false });
    }

    #[test]
    fn of_many_lines_the_last_512_are_told() {
        let all = (1..=1000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let told = of(&[all.as_bytes()]).told();
        assert!(told.truncated);
        assert_eq!(told.text.lines().count(), 512);
        assert_eq!(told.text.lines().next(), Some("489"));
        assert_eq!(told.text.lines().last(), Some("1000"));
    }

    #[test]
    fn one_endless_line_is_told_by_its_end() {
        let line = "é".repeat(100_000);
        let told = of(&[line.as_bytes()]).told();
        assert!(told.truncated && told.text.len() <= BYTES_KEPT && told.text.chars().all(|c| c == 'é'));
    }

    proptest! {
        #[test]
        fn never_more_than_64_kib_are_held_and_the_end_is_right(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9000), 0..40)) {
            let mut tail = Tail::default();
            for chunk in &chunks {
                tail.push(chunk);
                prop_assert!(tail.kept.len() <= BYTES_KEPT);
            }
            let all: Vec<u8> = chunks.concat();
            let end = &all[all.len().saturating_sub(BYTES_KEPT)..];
            prop_assert!(tail.kept.iter().eq(end));
        }
    }
}
