//! A sandbox's streams: one connection to the engine, taken over from HTTP, carrying stdin one way and frames the other.
//!
//! ```text
//!   stdin  ───────────────────────────────► engine      (or past it: `stdin`)
//!   stdout ◄─ [1 0 0 0 length] payload ◄─┐
//!   LogSink ◄ [2 0 0 0 length] payload ◄─┴─ engine
//! ```
//!
//! This is not the engine client's own attach: that one passes every line through two buffers, a lock and a codec that holds a
//! whole frame in memory, however long its sender says it is. Here a small line is copied once, a large one goes straight into
//! the reader's memory, and stderr is handed to its sink while stdout is polled, so that there is no task and no queue.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bollard::ClientVersion;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use crate::plain::{self, Answer, Drain, Source};
use crate::sightings::Seen;
use crate::{LogSink, LogStream, SandboxId, Streams, stdin};

const ATTACH_MAX: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 8 << 10;
const FRAME_HEADER_BYTES: usize = 8;

/// Which of a sandbox's streams are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    OutputOnly,
}

/// Where to attach.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub endpoint: &'a str,
    pub version: ClientVersion,
    pub id: &'a SandboxId,
    pub wanted: Wanted,
}

/// A connection that the engine has handed over.
pub(crate) struct Attached {
    source: Source,
    drain: Drain,
    /// Came in one piece with the engine's answer, and belongs to the stream.
    early: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("the engine did not attach the streams within {ATTACH_MAX:?}")]
    TooLate,
    #[error("the engine refused to attach the streams ({status}): {message}")]
    Refused { status: u16, message: String },
    #[error("the connection for the streams failed")]
    Connection(#[source] io::Error),
}

pub(crate) async fn attach(target: Target<'_>) -> Result<Attached, AttachError> {
    let request = request(&target);
    let attached = tokio::time::timeout(ATTACH_MAX, take_over(target.endpoint, &request));
    attached.await.unwrap_or(Err(AttachError::TooLate))
}

/// Starts a second program that the engine has made ready, with its streams.
pub(crate) async fn start_exec(
    endpoint: &str,
    version: ClientVersion,
    exec: &str,
) -> Result<Attached, AttachError> {
    let body = r#"{"Detach":false,"Tty":false}"#;
    let request = format!(
        "POST /v{}.{}/exec/{exec}/start HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        version.major_version,
        version.minor_version,
        body.len()
    );
    let started = tokio::time::timeout(ATTACH_MAX, take_over(endpoint, &request));
    started.await.unwrap_or(Err(AttachError::TooLate))
}

async fn take_over(endpoint: &str, request: &str) -> Result<Attached, AttachError> {
    let (mut source, mut drain) = plain::connect(endpoint).await.map_err(AttachError::Connection)?;
    drain.write_all(request.as_bytes()).await.map_err(AttachError::Connection)?;
    let answer = plain::read_head(&mut source).await.map_err(AttachError::Connection)?;
    let Answer { status, after_head: early, .. } = answer;
    match status {
        // 200 is what engines answer that do not speak of upgrades but do the same.
        101 | 200 => Ok(Attached { source, drain, early }),
        _ => Err(AttachError::Refused { status, message: String::from_utf8_lossy(&early).trim().to_owned() }),
    }
}

fn request(target: &Target<'_>) -> String {
    let Target { version, id, wanted, .. } = target;
    let stdin = u8::from(*wanted == Wanted::All);
    // No detach keys: Podman looks for them in every stream, and a sandbox's stdin is nobody's keyboard.
    format!(
        "POST /v{}.{}/containers/{id}/attach?stream=1&stdin={stdin}&stdout=1&stderr=1&detachKeys= HTTP/1.1\r\n\
         Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n",
        version.major_version, version.minor_version
    )
}

impl Attached {
    /// Stdin and stdout for us, stderr for the sink.
    pub fn bridged(self, logs: LogSink) -> Streams {
        let Self { source, drain, early } = self;
        let stdout = Demultiplexer::new(source, early, logs, Stdout::Read);
        Streams { stdin: drain, stdout: Box::new(stdout) }
    }

    /// The same of a sandbox that was seen to run, past the engine to its stdin where that can be.
    pub fn bridged_to(self, seen: &Seen, logs: LogSink) -> Streams {
        let Some(pipe) = stdin::own_pipe_of(seen) else { return self.bridged(logs) };
        let Self { source, drain, early } = self;
        let mut stdout = Demultiplexer::new(source, early, logs, Stdout::Read);
        stdout.held_open = Some(drain);
        Streams { stdin: Box::new(pipe), stdout: Box::new(stdout) }
    }

    /// Everything for the sink, until the sandbox ends or the engine goes away.
    pub async fn drain_into(self, logs: LogSink) {
        let Self { source, drain: _held_open, early } = self;
        let mut both = Demultiplexer::new(source, early, logs, Stdout::Logged);
        // Nothing is ever read this way: the read ends when the stream does.
        let _ = both.read(&mut [0; 1]).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stdout {
    Read,
    Logged,
}

/// Reads frames; yields what is stdout, and hands the rest to the sink.
struct Demultiplexer<R> {
    source: R,
    logs: LogSink,
    stdout: Stdout,
    buffer: Vec<u8>,
    /// What is in the buffer and not taken yet.
    filled: std::ops::Range<usize>,
    frame: Option<Frame>,
    /// An engine closes a stdin that nobody is attached to, also where nothing is said that way.
    held_open: Option<Drain>,
}

/// The frame being read, and how much of it is still to come.
#[derive(Clone, Copy)]
struct Frame {
    goes_to: Destination,
    left: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Destination {
    Reader,
    Log(LogStream),
    Nobody,
}

impl<R: AsyncRead + Unpin> Demultiplexer<R> {
    fn new(source: R, early: Vec<u8>, logs: LogSink, stdout: Stdout) -> Self {
        let filled = 0..early.len();
        let mut buffer = early;
        buffer.resize(buffer.len().max(BUFFER_BYTES), 0);
        Self { source, logs, stdout, buffer, filled, frame: None, held_open: None }
    }

    /// Reads more into the buffer. False at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let mut space = ReadBuf::new(&mut self.buffer[self.filled.end..]);
        ready!(Pin::new(&mut self.source).poll_read(cx, &mut space))?;
        let read = space.filled().len();
        self.filled.end += read;
        Poll::Ready(Ok(read > 0))
    }

    /// The next frame, if its header is in the buffer.
    fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some((header, _)) = self.buffer[self.filled.clone()].split_first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let [kind, _, _, _, length @ ..] = *header;
        let goes_to = match (kind, self.stdout) {
            (0, _) => Destination::Nobody,
            (1, Stdout::Read) => Destination::Reader,
            (1, Stdout::Logged) => Destination::Log(LogStream::Stdout),
            (2, _) => Destination::Log(LogStream::Stderr),
            _ => {
                return Err(plain::invalid("the engine sent a frame of no known kind"));
            }
        };
        self.filled.start += FRAME_HEADER_BYTES;
        Ok(Some(Frame { goes_to, left: u32::from_be_bytes(length) as usize }))
    }

    /// Hands out what the buffer has of this frame.
    fn take_buffered(&mut self, frame: &mut Frame, out: &mut ReadBuf<'_>) {
        let mut length = self.filled.len().min(frame.left);
        if frame.goes_to == Destination::Reader {
            length = length.min(out.remaining());
        }
        let piece = &self.buffer[self.filled.start..self.filled.start + length];
        match frame.goes_to {
            Destination::Reader => out.put_slice(piece),
            Destination::Log(stream) => (self.logs)(stream, piece),
            Destination::Nobody => {}
        }
        self.filled.start += length;
        frame.left -= length;
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Demultiplexer<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match this.frame.filter(|frame| frame.left > 0) {
                Some(mut frame) if !this.filled.is_empty() => {
                    let before = out.filled().len();
                    this.take_buffered(&mut frame, out);
                    this.frame = Some(frame);
                    if out.filled().len() > before {
                        return Poll::Ready(Ok(()));
                    }
                }
                // Far from its end: straight into the reader's memory.
                Some(mut frame) if frame.goes_to == Destination::Reader && frame.left >= BUFFER_BYTES => {
                    let wanted = out.remaining().min(frame.left);
                    let mut direct = ReadBuf::new(out.initialize_unfilled_to(wanted));
                    ready!(Pin::new(&mut this.source).poll_read(cx, &mut direct))?;
                    let read = direct.filled().len();
                    out.advance(read);
                    frame.left -= read;
                    this.frame = Some(frame);
                    return Poll::Ready(Ok(()));
                }
                Some(_) => {
                    if !ready!(this.poll_fill(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                None => {
                    this.frame = this.next_frame()?;
                    if this.frame.is_none() && !ready!(this.poll_fill(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, 0, 0], &length[..], payload].concat()
    }

    /// What is read and what is logged, when this comes in pieces of such a size.
    async fn told(bytes: Vec<u8>, early: usize, piece: usize, stdout: Stdout) -> (Vec<u8>, Vec<u8>) {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let sink = logged.clone();
        let logs: LogSink = Arc::new(move |_, piece: &[u8]| sink.lock().unwrap().extend_from_slice(piece));
        let (mut sender, receiver) = tokio::io::duplex(piece);
        let (first, rest) = (bytes[..early].to_vec(), bytes[early..].to_vec());
        let sending = tokio::spawn(async move { sender.write_all(&rest).await });
        let mut read = Vec::new();
        Demultiplexer::new(receiver, first, logs, stdout).read_to_end(&mut read).await.unwrap();
        sending.await.unwrap().unwrap();
        let logged = logged.lock().unwrap().clone();
        (read, logged)
    }

    #[tokio::test]
    async fn frames_arrive_whole_however_they_are_cut() {
        let long = vec![b'x'; 3 * BUFFER_BYTES];
        let bytes = [
            frame(1, b"one "),
            frame(2, b"log"),
            frame(1, b""),
            frame(1, &long),
            frame(0, b"?"),
            frame(1, b" two"),
        ]
        .concat();
        let expected = [b"one ", long.as_slice(), b" two"].concat();
        for (early, piece) in [(0, 1), (0, 7), (3, 64), (10, 1 << 20), (bytes.len(), 1)] {
            let (read, logged) = told(bytes.clone(), early, piece, Stdout::Read).await;
            assert!(read == expected, "{early} {piece}: {} bytes", read.len());
            assert_eq!(logged, b"log", "{early} {piece}");
        }
        let (read, logged) = told(bytes, 0, 100, Stdout::Logged).await;
        assert_eq!((read.len(), logged.len()), (0, expected.len() + 3));
    }

    #[tokio::test]
    async fn a_frame_of_no_known_kind_is_an_error() {
        let logs: LogSink = Arc::new(|_, _| ());
        let mut stream = Demultiplexer::new(&b"HTTP/1.1 200 OK"[..], Vec::new(), logs, Stdout::Read);
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
