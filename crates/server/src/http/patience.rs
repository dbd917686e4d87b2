//! Whose turn is it? One clock for each connection, which runs only while its client keeps us waiting.
//!
//! ```text
//!   nothing asked           the head is here          something to send
//!   ─────────────► theirs ──────────────────► ours ◄─────────────────────► theirs (to read it)
//!                     ▲                        nothing to send yet            │
//!                     └────────────────── the whole answer is sent ───────────┘
//! ```
//!
//! So one rule serves for clients who say nothing, who say it slowly, who stay without asking, and who ask and do not
//! read: when it is their turn they have to move within the limit. To ask is a move, and so is to read. While any request
//! of the connection waits for us the clock stands still, so a stream of events may be silent for as long as it likes.
//! How fast a request's body comes is for `extract` to say.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// To read as much as this is a move. Less may be nothing but pings, which HTTP/2 sends and answers for ever.
const MOVE_BYTES_MIN: usize = 1 << 10;

/// Who has asked for something has this many times the limit: what an honest but slow reader has read is told by its kernel
/// only now and then, and that can take many seconds.
const LIMITS_TO_READ: u32 = 3;

/// The clock of one connection. Its clones are the same clock.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    limit: Duration,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// Requests that wait for us. With none, we wait for the client.
    for_us: usize,
    /// When the client last moved, or was given its turn.
    since: Instant,
    /// What it has read since.
    bytes: usize,
    /// Whether it has asked for something that it may not have read yet.
    has_asked: bool,
}

impl Waiting {
    fn moved(&mut self) {
        self.since = Instant::now();
        self.bytes = 0;
    }
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        let waiting = Waiting { for_us: 0, since: Instant::now(), bytes: 0, has_asked: false };
        Self { limit, waiting: Arc::new(Mutex::new(waiting)) }
    }

    /// So little that waiting for it is not worth a word.
    pub(super) fn moment(&self) -> Duration {
        self.limit / 10
    }

    /// A request has come.
    pub(super) fn our_turn(&self) -> Turn {
        let mut turn = Turn { patience: self.clone(), ours: false };
        turn.take();
        turn
    }

    /// Everything that was asked for is sent, and the next request is waited for.
    pub(super) fn nothing_to_read(&self) {
        let mut waiting = self.lock();
        waiting.has_asked = false;
        waiting.moved();
    }

    /// Another chance, from now on.
    pub(super) fn begin_anew(&self) {
        self.lock().moved();
    }

    /// Returns when the client has kept us waiting for too long.
    pub(super) async fn ended(&self) {
        while let Some(left) = self.left(Instant::now()) {
            // Nobody needs to wake this: what happens in the meantime gives the client more time, or at least this much.
            tokio::time::sleep(left.min(self.limit)).await;
        }
    }

    /// How long the client has at least.
    fn left(&self, now: Instant) -> Option<Duration> {
        let waiting = self.lock();
        let since = if waiting.for_us > 0 { now } else { waiting.since };
        let limit = if waiting.has_asked { self.limit * LIMITS_TO_READ } else { self.limit };
        limit.checked_sub(now.duration_since(since)).filter(|left| !left.is_zero())
    }

    fn read_by_client(&self, bytes: usize) {
        let mut waiting = self.lock();
        waiting.bytes += bytes;
        if waiting.bytes >= MOVE_BYTES_MIN {
            waiting.moved();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's part in it: ours while we work, the client's while it reads. Gone with the request.
#[derive(Debug)]
pub(super) struct Turn {
    patience: Patience,
    ours: bool,
}

impl Turn {
    fn take(&mut self) {
        if !self.ours {
            self.ours = true;
            let mut waiting = self.patience.lock();
            waiting.for_us += 1;
            waiting.has_asked = true;
        }
    }

    fn give(&mut self) {
        if self.ours {
            self.ours = false;
            let mut waiting = self.patience.lock();
            waiting.for_us -= 1;
            waiting.moved();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.give();
    }
}

/// An answer's body: ours when it is asked for more and has nothing yet, the client's otherwise.
#[derive(Debug)]
pub(super) struct Answer {
    body: axum::body::Body,
    turn: Turn,
}

impl Answer {
    pub(super) fn new(body: axum::body::Body, mut turn: Turn) -> Self {
        turn.give();
        Self { body, turn }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.turn.take();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.turn.give();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connection itself, which sees how much of what we write the client takes.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    patience: Patience,
    /// Received already, and to be read first.
    pub(super) unread: Bytes,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        Self { stream, patience, unread: Bytes::new() }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.patience.read_by_client(bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let bytes = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::task::Waker;

    use super::*;
    use futures_util::{StreamExt, stream};

    const LIMIT: Duration = Duration::from_secs(10);

    fn seconds_left(patience: &Patience, after: u64) -> Option<u64> {
        let since = patience.lock().since;
        patience.left(since + Duration::from_secs(after)).map(|left| left.as_secs())
    }

    #[test]
    fn the_clock_runs_before_a_request_and_after_it_and_stands_still_meanwhile() {
        let patience = Patience::new(LIMIT);
        assert_eq!(seconds_left(&patience, 4), Some(6));
        assert_eq!(seconds_left(&patience, 10), None);
        let (one, other) = (patience.our_turn(), patience.our_turn());
        assert_eq!(seconds_left(&patience, 1_000), Some(30));
        drop(one);
        assert_eq!(seconds_left(&patience, 1_000), Some(30), "the other one still waits for us");
        drop(other);
        assert_eq!((seconds_left(&patience, 29), seconds_left(&patience, 30)), (Some(1), None));
    }

    #[test]
    fn a_stream_that_has_nothing_to_say_is_ours_and_what_it_said_is_the_clients_to_read() {
        let patience = Patience::new(LIMIT);
        let event = stream::once(future::ready(Ok::<_, axum::Error>("event")));
        let body = axum::body::Body::from_stream(event.chain(stream::pending()));
        let mut answer = Answer::new(body, patience.our_turn());
        let mut poll =
            || Pin::new(&mut answer).poll_frame(&mut Context::from_waker(Waker::noop())).is_ready();
        assert_eq!(patience.lock().for_us, 0, "nobody has asked for the first event");
        assert!(poll());
        assert_eq!(patience.lock().for_us, 0, "it has an event to read");
        assert!(!poll());
        assert_eq!(patience.lock().for_us, 1, "it waits for the next one");
        drop(answer);
        assert_eq!(patience.lock().for_us, 0);
    }

    #[test]
    fn to_read_on_is_a_move_and_a_ping_is_none() {
        let patience = Patience::new(LIMIT);
        let begun = patience.lock().since;
        patience.read_by_client(MOVE_BYTES_MIN - 1);
        assert_eq!(patience.lock().since, begun);
        patience.read_by_client(1);
        assert!(patience.lock().since > begun && patience.lock().bytes == 0);
    }
}
