//! Server-sent events, made of bytes as they come: any line breaks, cut anywhere, of bounded size.
//!
//! An event over the limit is not kept. Whose answer it was is spotted as it goes by, so that only that call fails.

use std::mem;
use std::time::Duration;

use crate::spotter::IdSpotter;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Names and ids of events are short; what is longer is nobody's.
const FIELD_BYTES_MAX: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Empty where the stream gave none.
    pub name: String,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Whole(Vec<u8>),
    /// It had more than the limit; it may have been the answer to this request.
    TooLong {
        id: Option<u64>,
    },
}

/// Where in a stream we are, for whoever has to take it up again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bookmark {
    pub last_event_id: Option<String>,
    /// How long the server wants us to wait before.
    pub retry: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Parser {
    bytes_max: usize,
    line: Vec<u8>,
    /// While a line over the limit goes by.
    overlong: Option<Overlong>,
    after_carriage_return: bool,
    at_start: bool,
    name: String,
    id: Option<String>,
    data: Option<Vec<u8>>,
    /// While the data of an event over the limit goes by.
    passing: Option<IdSpotter>,
    pub bookmark: Bookmark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overlong {
    Data,
    Other,
}

impl Parser {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            overlong: None,
            after_carriage_return: false,
            at_start: true,
            name: String::new(),
            id: None,
            data: None,
            passing: None,
            bookmark: Bookmark::default(),
        }
    }

    /// Takes what has come, and hands out the events that are complete with it.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut hand_out: impl FnMut(Event)) {
        while !bytes.is_empty() {
            if mem::take(&mut self.after_carriage_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.extend_line(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            self.after_carriage_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if let Some(event) = self.end_line() {
                hand_out(event);
            }
        }
    }

    fn extend_line(&mut self, piece: &[u8]) {
        match self.overlong {
            Some(Overlong::Data) => self.pass(piece),
            Some(Overlong::Other) => {}
            None => {
                self.line.extend_from_slice(piece);
                let kept = self.data.as_ref().map_or(0, Vec::len);
                if kept + self.line.len() > self.bytes_max + FIELD_BYTES_MAX {
                    self.begin_overlong_line();
                }
            }
        }
    }

    /// If it is data, the whole event is too long, and is only watched from here on.
    fn begin_overlong_line(&mut self) {
        let line = mem::take(&mut self.line);
        self.overlong = Some(Overlong::Other);
        if let ("data", value) = field(without_mark(self.at_start, &line)) {
            self.overlong = Some(Overlong::Data);
            self.begin_passing();
            self.pass(value);
        }
    }

    fn begin_passing(&mut self) {
        self.passing.get_or_insert_default();
        if let Some(data) = self.data.take() {
            self.pass(&data);
        }
        // Where a line of data ended, which between two parts of a JSON text is a blank.
        self.pass(b" ");
    }

    fn pass(&mut self, piece: &[u8]) {
        if let Some(spotter) = &mut self.passing {
            spotter.watch(piece);
        }
    }

    fn end_line(&mut self) -> Option<Event> {
        let at_start = mem::take(&mut self.at_start);
        if self.overlong.take().is_some() {
            return None;
        }
        let line = mem::take(&mut self.line);
        let text = without_mark(at_start, &line);
        if text.is_empty() {
            return self.end_event();
        }
        match field(text) {
            ("data", value) => self.add_data(value),
            ("event", value) => self.name = short(value),
            ("id", value) if !value.contains(&0) => self.id = Some(short(value)),
            ("retry", value) => {
                let milliseconds = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.bookmark.retry = milliseconds.map(Duration::from_millis).or(self.bookmark.retry);
            }
            // A comment, or a field that nobody knows.
            _ => {}
        }
        None
    }

    fn add_data(&mut self, value: &[u8]) {
        let kept = self.data.as_ref().map_or(0, |data| data.len() + 1);
        if self.passing.is_some() || kept + value.len() > self.bytes_max {
            self.begin_passing();
            self.pass(value);
        } else if let Some(data) = &mut self.data {
            data.push(b'\n');
            data.extend_from_slice(value);
        } else {
            self.data = Some(value.to_vec());
        }
    }

    fn end_event(&mut self) -> Option<Event> {
        let name = mem::take(&mut self.name);
        if let Some(id) = self.id.take() {
            self.bookmark.last_event_id = Some(id).filter(|id| !id.is_empty());
        }
        let data = self.data.take();
        let body = match self.passing.take() {
            Some(spotter) => Body::TooLong { id: spotter.id() },
            // Without data it is only a place in the stream.
            None => Body::Whole(data.filter(|data| !data.is_empty())?),
        };
        Some(Event { name, body })
    }
}

fn without_mark(at_start: bool, line: &[u8]) -> &[u8] {
    if at_start { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
}

/// Name and value of a line; a comment has an empty name.
fn field(line: &[u8]) -> (&str, &[u8]) {
    let (name, value) = match line.iter().position(|byte| *byte == b':') {
        Some(colon) => (&line[..colon], &line[colon + 1..]),
        None => (line, &line[line.len()..]),
    };
    (std::str::from_utf8(name).unwrap_or_default(), value.strip_prefix(b" ").unwrap_or(value))
}

fn short(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(FIELD_BYTES_MAX)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(event: Event) -> String {
        match event.body {
            Body::Whole(data) => format!("{}|{}", event.name, String::from_utf8_lossy(&data)),
            Body::TooLong { id } => format!("{}|too long {id:?}", event.name),
        }
    }

    fn read(pieces: &[&[u8]], bytes_max: usize) -> (Vec<String>, Bookmark) {
        let mut parser = Parser::new(bytes_max);
        let mut seen = Vec::new();
        for piece in pieces {
            parser.take(piece, |event| seen.push(told(event)));
        }
        (seen, parser.bookmark)
    }

    #[test]
    fn every_shape_of_event_is_read() {
        for (stream, expected) in [
            ("data: a\n\n", vec!["|a"]),
            ("data:a\r\n\r\n", vec!["|a"]),
            ("data: a\r\rdata: b\r\r", vec!["|a", "|b"]),
            ("\u{feff}data: a\n\n", vec!["|a"]),
            ("event: message\ndata: {\"a\":\ndata: 1}\n\n", vec!["message|{\"a\":\n1}"]),
            (": comment\n\ndata: a\n: more\nunknown: x\nnothing\n\n", vec!["|a"]),
            ("data: a: b\n\n", vec!["|a: b"]),
            ("data:  two blanks\n\n", vec!["| two blanks"]),
            ("id: 7\ndata:\n\n", vec![]),
            ("data: never ended\n", vec![]),
            ("event: ping\n\ndata: a\n\n", vec!["|a"]),
        ] {
            assert_eq!(read(&[stream.as_bytes()], 100).0, expected, "{stream:?}");
        }
    }

    #[test]
    fn the_place_in_the_stream_is_known_once_the_event_is_complete() {
        let place = |stream: &str| read(&[stream.as_bytes()], 100).1;
        assert_eq!(place("id: 7\ndata: a\n").last_event_id, None);
        assert_eq!(place("id: 7\ndata: a\n\n").last_event_id.as_deref(), Some("7"));
        assert_eq!(place("id: 7\ndata:\n\ndata: a\n\n").last_event_id.as_deref(), Some("7"));
        assert_eq!(place("id: 7\n\nid\n\n").last_event_id, None);
        assert_eq!(place("retry: 250\nretry: soon\n\n").retry, Some(Duration::from_millis(250)));
    }

    #[test]
    fn an_event_over_the_limit_is_passed_over_and_the_next_one_is_read() {
        let long = "x".repeat(3 * FIELD_BYTES_MAX);
        let in_one_line = format!("data: {{\"id\":7,\"result\":\"{long}\"}}\n\ndata: next\n\n");
        let in_many = format!("data: {{\"id\":7,\ndata: \"result\":\ndata: \"{long}\"}}\n\ndata: next\n\n");
        let at_the_end = format!("data: {{\"result\":\"{long}\"\ndata: ,\"id\":7}}\n\ndata: next\n\n");
        for stream in [in_one_line, in_many, at_the_end] {
            for size in [1, 7, 4096, 1 << 20] {
                let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
                assert_eq!(read(&pieces, 100).0, ["|too long Some(7)", "|next"], "{size}");
            }
        }
    }

    proptest! {
        #[test]
        fn however_the_bytes_arrive_the_events_are_the_same(
            stream in "((data|event|id|retry|x)?(: ?[a{}\"7]{0,6})?(\r\n|\n|\r)){0,20}",
            size in 1_usize..9,
            bytes_max in 1_usize..30,
        ) {
            let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&pieces, bytes_max), read(&[stream.as_bytes()], bytes_max));
        }

        #[test]
        fn a_message_written_as_an_event_is_read_as_it_was(message in "[^\r\n]{1,80}", line_break in "\r\n|\n|\r", size in 1_usize..20) {
            let stream = format!("event: message{line_break}id: 1{line_break}data: {message}{line_break}{line_break}");
            let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&pieces, 1000).0, vec![format!("message|{message}")]);
        }

        #[test]
        fn no_bytes_whatever_break_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Parser::new(50).take(&bytes, |_| ());
        }
    }
}
