//! A stream of server-sent events with names, one at a time.

use reqwest::Response;
use serde_json::Value;

/// Nothing that Cofer sends in one event is longer.
const EVENT_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub struct Events {
    response: Response,
    received: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub name: String,
    pub data: Value,
}

impl Events {
    pub fn of(response: Response) -> Self {
        Self { response, received: Vec::new() }
    }

    /// `None` when the stream has ended. May be dropped in the middle, and asked again.
    pub async fn next(&mut self) -> Result<Option<Event>, reqwest::Error> {
        loop {
            while let Some(end) = end_of_event(&self.received) {
                let block: Vec<u8> = self.received.drain(..end).collect();
                if let Some(event) = read(&String::from_utf8_lossy(&block)) {
                    return Ok(Some(event));
                }
            }
            match self.response.chunk().await? {
                Some(chunk) if self.received.len() < EVENT_BYTES_MAX => {
                    self.received.extend_from_slice(&chunk);
                }
                _ => return Ok(None),
            }
        }
    }
}

fn end_of_event(received: &[u8]) -> Option<usize> {
    received.windows(2).position(|pair| pair == b"\n\n").map(|at| at + 2)
}

/// `None` for what only keeps the connection alive.
fn read(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
    let data = serde_json::from_str(field("data:")?).ok()?;
    Some(Event { name: field("event:")?.to_owned(), data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_read_and_a_comment_passed_over() {
        let event = Event { name: "text".to_owned(), data: json!({"delta": "a\nb"}) };
        assert_eq!(read("event: text\ndata: {\"delta\":\"a\\nb\"}\n\n"), Some(event));
        assert_eq!(read(": keep-alive\n\n"), None);
        assert_eq!(end_of_event(b"data: x\n\nmore"), Some(9));
    }
}
