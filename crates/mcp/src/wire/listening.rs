//! Streams of events that an upstream sends: read one by one, and asked for again after a pause that grows.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use cofer_model::Kind;
use reqwest::{RequestBuilder, Response};

use super::events::{Bookmark, Event, Parser};
use super::request::{Door, Media};
use super::trouble::{Executed, Trouble};

/// How long to wait before a stream is asked for again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
    pub jitter: Jitter,
}

/// Whether many who lost the same upstream come back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Between half of the pause and all of it.
    Half,
    /// For tests.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: Duration::from_millis(500), max: Duration::from_secs(30), jitter: Jitter::Half }
    }
}

impl Backoff {
    /// `fruitless` is how often it was asked for since the last event. What the server wishes is honoured, up to our own maximum.
    pub(super) fn pause(&self, fruitless: u32, wished: Option<Duration>) -> Duration {
        let wished = wished.map(|wished| wished.min(self.max));
        if let (0, Some(wished)) = (fruitless, wished) {
            return wished;
        }
        let grown = self.min.saturating_mul(2_u32.saturating_pow(fruitless)).min(self.max);
        let grown = match self.jitter {
            Jitter::Half => grown.mul_f64(0.5 + 0.5 * random_fraction()),
            Jitter::None => grown,
        };
        grown.max(wished.unwrap_or_default())
    }
}

fn random_fraction() -> f64 {
    let random = RandomState::new().hash_one("jitter") >> 32;
    f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(u32::MAX)
}

#[derive(Debug)]
pub(super) struct EventStream {
    response: Response,
    parser: Parser,
    ready: VecDeque<Event>,
}

impl EventStream {
    pub(super) fn new(response: Response, bytes_max: usize, bookmark: Bookmark) -> Self {
        let mut parser = Parser::new(bytes_max);
        parser.bookmark = bookmark;
        Self { response, parser, ready: VecDeque::new() }
    }

    /// Sends this request, whose answer should be a stream of events.
    pub(super) async fn open(
        door: &Door,
        request: RequestBuilder,
        bytes_max: usize,
        bookmark: Bookmark,
        in_session: bool,
    ) -> Result<Self, Trouble> {
        let response = door.send(request).await?;
        if !response.status().is_success() {
            return Err(Trouble::refusal(response, None, in_session).await);
        }
        if Media::of(&response) != Media::Events {
            let message = "the upstream has no event stream at this address";
            return Err(Trouble::new(message, Kind::Upstream, Executed::No));
        }
        Ok(Self::new(response, bytes_max, bookmark))
    }

    /// The next event; none at the end, however the stream came to it.
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let piece = self.response.chunk().await.ok().flatten()?;
            self.parser.take(&piece, |event| self.ready.push_back(event));
        }
    }

    pub(super) fn bookmark(&self) -> &Bookmark {
        &self.parser.bookmark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_maximum_and_honour_what_the_server_wishes() {
        let backoff = Backoff { jitter: Jitter::None, ..Backoff::default() };
        let pauses: Vec<_> = (0..9).map(|fruitless| backoff.pause(fruitless, None).as_secs_f32()).collect();
        assert_eq!(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]);
        let wished =
            |fruitless, seconds| backoff.pause(fruitless, Some(Duration::from_secs(seconds))).as_secs();
        assert_eq!((wished(0, 0), wished(0, 3), wished(1, 3), wished(4, 3)), (0, 3, 3, 8));
        assert_eq!(wished(0, 86_400), 30, "no server keeps us waiting for ever");
    }

    #[test]
    fn jitter_takes_at_most_half() {
        let pause = Backoff::default().pause(1, None);
        assert!((Duration::from_millis(500)..=Duration::from_secs(1)).contains(&pause), "{pause:?}");
    }
}
