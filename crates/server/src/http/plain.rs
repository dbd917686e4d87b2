//! Plain requests: the calls that come by the thousand, read and answered without a general HTTP server.
//!
//! ```text
//!   read ─► whole and plain, and on the express lane? ──yes──► answer ─► write ─┐
//!    ▲             │ no, or not here within a moment                            │
//!    │             ▼                                                            │
//!    │        hyper, with what was read so far, for the rest of the connection  │
//!    └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A request is plain if it is a POST of HTTP/1.1 that says its length once and nothing about how the connection is to be used. Whatever
//! else comes, and whatever is wrong with it, is for hyper to judge: nothing is refused here. A general server is a tenth of what a
//! call costs. So is taking a head apart; but clients say the same head again and again, so it is done once.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::HttpBody;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::poll_fn;
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout_at};
use tokio_util::io::poll_read_buf;

use super::express::{Answered, CallAnswer, JSON, Lane, Posted, Said};
use super::extract::Given;
use super::listen::Peer;
use super::observe::REQUEST_ID;
use super::patience::{Answer, Patience, Watched};
use crate::app::App;
use crate::routes::mcp;

/// Those of MCP, which would be made anew each time, as HTTP does not know them.
static USUAL_NAMES: [HeaderName; 2] = [mcp::SESSION_ID, mcp::PROTOCOL_VERSION];
const HEADERS_MAX: usize = 32;
const HEAD_BYTES_MAX: usize = 8 << 10;
const BODY_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 4 << 10;
/// So much of an answer is put behind its head, to be sent with it.
const COPIED_BYTES_MAX: usize = 16 << 10;
const AHEAD_BYTES: usize = 512;
/// So much of the next requests is read while one is answered.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// One connection, as long as its requests are plain.
pub(super) struct Plain<'a, S> {
    app: &'a App,
    peer: Peer,
    patience: &'a Patience,
    /// It is to end when nothing is in flight.
    leaving: &'a AtomicBool,
    stream: Watched<S>,
    received: BytesMut,
    /// What the last request began with.
    head: Option<Head>,
    written: Vec<u8>,
    date: Date,
}

/// What has been received so far.
enum Received {
    Whole(Lane, Posted),
    /// Of something that may be plain.
    Part,
    /// All but some of its body.
    Head,
    /// Hyper's.
    Other,
}

/// The client left, or has to.
struct Gone;

/// A connection that is hyper's from here on.
pub(super) struct Rest<S> {
    pub stream: Watched<S>,
    /// Then it is one of HTTP/1.1, and stays one.
    pub has_answered: bool,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Plain<'a, S> {
    pub(super) fn new(
        app: &'a App,
        peer: Peer,
        patience: &'a Patience,
        leaving: &'a AtomicBool,
        stream: Watched<S>,
    ) -> Self {
        let (received, head, written, date) = (BytesMut::new(), None, Vec::new(), Date::default());
        Self { app, peer, patience, leaving, stream, received, head, written, date }
    }

    /// Until something comes that is hyper's, which is given back with the connection, or until its end.
    pub(super) async fn serve(mut self) -> Option<Rest<S>> {
        let mut has_answered = false;
        while let Ok(next) = self.next_request().await {
            let Some((lane, posted)) = next else {
                self.stream.unread = self.received.freeze();
                return Some(Rest { stream: self.stream, has_answered });
            };
            if self.answer(lane, posted).await.is_err() || self.leaving.load(Ordering::Relaxed) {
                break;
            }
            has_answered = true;
        }
        // Who left hears nothing.
        let _ = self.stream.shutdown().await;
        None
    }

    /// `None` if it is hyper's.
    async fn next_request(&mut self) -> Result<Option<(Lane, Posted)>, Gone> {
        let (mut until, mut turn) = (None, None);
        loop {
            match read(&mut self.received, &mut self.head, self.peer) {
                Received::Whole(lane, posted) => return Ok(Some((lane, posted))),
                Received::Other => return Ok(None),
                Received::Part => {}
                // It has asked: its time to do so is not running any more.
                Received::Head => _ = turn.get_or_insert_with(|| self.patience.our_turn()),
            }
            if self.received.is_empty() {
                self.first_bytes().await?;
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.patience.moment());
            let more = timeout_at(until, poll_fn(|cx| self.poll_receive(cx))).await;
            // Its end in the middle is hyper's as well.
            if !matches!(more, Ok(Ok(bytes)) if bytes > 0) {
                return Ok(None);
            }
        }
    }

    /// For as long as the client has patience with us, and we with it.
    async fn first_bytes(&mut self) -> Result<(), Gone> {
        let leaving = self.leaving;
        let first = poll_fn(|cx| {
            if leaving.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(0));
            }
            self.poll_receive(cx)
        });
        match first.await {
            Ok(bytes) if bytes > 0 => Ok(()),
            _ => Err(Gone),
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.reserve(READ_BYTES);
        poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.received)
    }

    async fn answer(&mut self, lane: Lane, mut posted: Posted) -> Result<(), Gone> {
        let (app, turn) = (self.app, self.patience.our_turn());
        let answered = {
            let answer = pin!(lane.answer(app, &mut posted));
            self.unless_gone(answer).await?
        };
        let sent = match answered {
            Answered { answer: CallAnswer::Json(status, message), request_id } => {
                drop(turn);
                self.send_json(status, request_id, &message).await
            }
            answered => self.send(answered.into_response().map(|body| Answer::new(body, turn))).await,
        };
        sent.map_err(|_broken| Gone)?;
        self.patience.nothing_to_read();
        Ok(())
    }

    /// What this comes to, unless the client leaves before.
    async fn unless_gone<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> Result<T, Gone> {
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = Pin::new(&mut work).poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            self.poll_gone(cx).map(Err)
        })
        .await
    }

    /// Beside what was received, which is still in use.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        let mut ahead = [MaybeUninit::uninit(); AHEAD_BYTES];
        while self.received.len() < AHEAD_BYTES_MAX {
            let mut ahead = ReadBuf::uninit(&mut ahead);
            match Pin::new(&mut self.stream).poll_read(cx, &mut ahead) {
                Poll::Ready(Ok(())) if !ahead.filled().is_empty() => {
                    self.received.extend_from_slice(ahead.filled());
                }
                // Nothing more will come; what has come is still answered.
                Poll::Ready(Ok(())) if !self.received.is_empty() => break,
                Poll::Ready(_) => return Poll::Ready(Gone),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    async fn send_json(
        &mut self,
        status: StatusCode,
        request_id: Option<HeaderValue>,
        message: &[u8],
    ) -> io::Result<()> {
        let fields = [(header::CONTENT_TYPE, Some(JSON)), (REQUEST_ID, request_id)];
        let fields = fields.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        self.begin(status, fields, Some(message.len() as u64));
        if message.len() <= COPIED_BYTES_MAX {
            self.written.extend_from_slice(message);
            return self.write().await;
        }
        self.write().await?;
        self.stream.write_all(message).await?;
        self.stream.flush().await
    }

    async fn send(&mut self, response: Response<Answer>) -> io::Result<()> {
        let (parts, mut body) = response.into_parts();
        let length = body.size_hint().exact();
        self.begin(parts.status, parts.headers.iter(), length);
        if length.is_none() {
            self.write().await?;
        }
        while let Some(frame) = self.next_frame(&mut body).await? {
            match (frame.into_data(), length) {
                // Not worth a copy.
                (Ok(data), Some(_)) if data.len() > COPIED_BYTES_MAX => {
                    self.write().await?;
                    self.stream.write_all(&data).await?;
                }
                (Ok(data), Some(_)) => self.written.extend_from_slice(&data),
                (Ok(data), None) if data.has_remaining() => {
                    self.written.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                    self.written.extend_from_slice(&data);
                    self.written.extend_from_slice(b"\r\n");
                    self.write().await?;
                }
                // Trailers, of which there are none, and nothing at all.
                _ => {}
            }
        }
        if length.is_none() {
            self.written.extend_from_slice(b"0\r\n\r\n");
        }
        self.write().await
    }

    async fn next_frame(&mut self, body: &mut Answer) -> io::Result<Option<Frame<Bytes>>> {
        if body.is_end_stream() {
            return Ok(None);
        }
        let frame = self.unless_gone(poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx))).await;
        let frame = frame.map_err(|Gone| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        frame.transpose().map_err(io::Error::other)
    }

    /// The head of an answer.
    fn begin<'f>(
        &mut self,
        status: StatusCode,
        fields: impl Iterator<Item = (&'f HeaderName, &'f HeaderValue)>,
        length: Option<u64>,
    ) {
        let written = &mut self.written;
        written.extend_from_slice(b"HTTP/1.1 ");
        written.extend_from_slice(status.as_str().as_bytes());
        written.push(b' ');
        written.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
        // How long it is is said below, once.
        for (name, value) in fields.filter(|(name, _)| *name != header::CONTENT_LENGTH) {
            field(written, name.as_str(), value.as_bytes());
        }
        match length {
            Some(0) if status == StatusCode::NO_CONTENT => {}
            Some(length) => field(written, "content-length", itoa::Buffer::new().format(length).as_bytes()),
            None => field(written, "transfer-encoding", b"chunked"),
        }
        if self.leaving.load(Ordering::Relaxed) {
            field(written, "connection", b"close");
        }
        field(written, "date", self.date.now().as_bytes());
        written.extend_from_slice(b"\r\n\r\n");
    }

    async fn write(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.written).await?;
        self.written.clear();
        self.written.shrink_to(COPIED_BYTES_MAX);
        self.stream.flush().await
    }
}

fn field(written: &mut Vec<u8>, name: &str, value: &[u8]) {
    written.extend_from_slice(b"\r\n");
    written.extend_from_slice(name.as_bytes());
    written.extend_from_slice(b": ");
    written.extend_from_slice(value);
}

/// A head that was taken apart. A client says the same again for its next request, but for how long that is.
struct Head {
    text: Bytes,
    /// Where in it the length stands.
    length: Range<usize>,
    /// All but the length.
    said: Arc<Said>,
}

impl Head {
    /// How many bytes it has this time, and its body, if what was received begins with it.
    fn said_again(&self, received: &[u8]) -> Option<(usize, usize)> {
        let rest = received.strip_prefix(&self.text[..self.length.start])?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = &self.text[self.length.end..];
        if !rest[digits..].starts_with(end) {
            return None;
        }
        let body_bytes = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        (body_bytes <= BODY_BYTES_MAX).then_some((self.length.start + digits + end.len(), body_bytes))
    }

    fn with(&self, body: Bytes, peer: Peer) -> Received {
        let Some(lane) = Lane::at(self.said.uri.path()) else { return Received::Other };
        Received::Whole(lane, Posted { said: self.said.clone(), peer, body: Given::Whole(body) })
    }
}

/// Takes the next request out of what was received, if it is there.
fn read(received: &mut BytesMut, last: &mut Option<Head>, peer: Peer) -> Received {
    if received.is_empty() {
        return Received::Part;
    }
    if let Some(head) = last
        && let Some((head_bytes, body_bytes)) = head.said_again(received)
    {
        return match take_body(received, head_bytes, body_bytes) {
            Some(body) => head.with(body, peer),
            None => Received::Head,
        };
    }
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let head_bytes = match head.parse(received) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if may_become_plain(received) => return Received::Part,
        Ok(httparse::Status::Partial) | Err(_) => return Received::Other,
    };
    let (Some("POST"), Some(1), Some(path)) = (head.method, head.version, head.path) else {
        return Received::Other;
    };
    if Lane::at(path).is_none() {
        return Received::Other;
    }
    let place = |part: &[u8]| {
        let begin = part.as_ptr().addr() - received.as_ptr().addr();
        begin..begin + part.len()
    };
    let Some((length, body_bytes)) = length_of(head.headers) else { return Received::Other };
    if body_bytes > BODY_BYTES_MAX {
        return Received::Other;
    }
    let (path, length) = (place(path.as_bytes()), place(length));
    let fields = head.headers.iter().map(|field| (place(field.name.as_bytes()), place(field.value)));
    let fields: Vec<_> = fields.filter(|(_, value)| *value != length).collect();
    // Its own, so that the room for what is received can be used again.
    let text = Bytes::copy_from_slice(&received[..head_bytes]);
    let (Ok(uri), Some(headers)) = (Uri::from_maybe_shared(text.slice(path)), headers_of(&text, fields))
    else {
        return Received::Other;
    };
    match take_body(received, head_bytes, body_bytes) {
        Some(body) => {
            last.insert(Head { text, length, said: Arc::new(Said::new(headers, uri)) }).with(body, peer)
        }
        None => Received::Head,
    }
}

/// The body that follows a head, if it is there.
fn take_body(received: &mut BytesMut, head_bytes: usize, body_bytes: usize) -> Option<Bytes> {
    if received.len() < head_bytes + body_bytes {
        return None;
    }
    received.advance(head_bytes);
    Some(received.split_to(body_bytes).freeze())
}

/// `None` if one of them is none.
fn headers_of(head: &Bytes, fields: Vec<(Range<usize>, Range<usize>)>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = &head[name];
        let usual = USUAL_NAMES.iter().find(|usual| name.eq_ignore_ascii_case(usual.as_str().as_bytes()));
        let name = usual.cloned().map_or_else(|| HeaderName::from_bytes(name), Ok).ok()?;
        headers.append(name, HeaderValue::from_maybe_shared(head.slice(value)).ok()?);
    }
    Some(headers)
}

fn may_become_plain(received: &[u8]) -> bool {
    let begin = b"POST /";
    let known = received.len().min(begin.len());
    received.len() <= HEAD_BYTES_MAX && received[..known] == begin[..known]
}

/// How it is said, and what it is. Said once, in digits, and nothing about the connection beside it.
fn length_of<'a>(fields: &[httparse::Header<'a>]) -> Option<(&'a [u8], usize)> {
    let mut length = None;
    for field in fields {
        let is = |name: &HeaderName| field.name.eq_ignore_ascii_case(name.as_str());
        if is(&header::CONTENT_LENGTH) {
            let digits = std::str::from_utf8(field.value).ok()?;
            if length.is_some() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            length = Some((field.value, digits.parse().ok()?));
        } else if [header::TRANSFER_ENCODING, header::EXPECT, header::UPGRADE, header::TE, header::TRAILER]
            .iter()
            .any(is)
            || is(&header::CONNECTION) && !field.value.eq_ignore_ascii_case(b"keep-alive")
        {
            return None;
        }
    }
    length
}

/// As the header has it; written anew once a second.
#[derive(Default)]
struct Date {
    second: u64,
    text: String,
}

impl Date {
    fn now(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = httpdate::fmt_http_date(now);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests;
