//! A command that runs in a [`Workshop`](crate::Workshop), seen from here: what it says, what it is told, and how it ends.
//!
//! ```text
//!   RunningCommand::next ◄── frames ◄─┐
//!   CommandInput ──► queue ──► writer ┴── connection ── warden ── the command's tree
//! ```
//!
//! The other side is believed nothing: frames are limited, stdin has a window, and whoever does not end when asked is given up. Dropping
//! the [`RunningCommand`] hangs up, and the warden ends the tree.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use cofer_inside::{
    Deed, End, FRAME_BYTES_MAX, HEADER_BYTES, How, Order, Reason, Run, STDIN_WINDOW_BYTES, Size, Word,
    parse_header,
};
use futures_util::future::BoxFuture;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Streams;
use crate::plain::{Drain, Source, invalid};

/// How long the helper may take to start a command, or to refuse.
const START_MAX: Duration = Duration::from_secs(30);
/// How long it may take to read an order.
const ORDER_MAX: Duration = Duration::from_secs(10);
/// How long after the grace of an order to end it may take to say that it is done.
const OBEDIENCE_MAX: Duration = Duration::from_secs(10);
/// What it may still say after that: more than can have been on its way.
const AFTERWORDS_BYTES_MAX: usize = 4 << 20;
const ORDERS_WAITING_MAX: usize = 16;
const LIFE_LOOK_EVERY: Duration = Duration::from_secs(2);

/// What to run.
#[derive(Clone, Debug)]
pub struct CommandSpec {
    pub argv: Vec<String>,
    /// Added to the container's own.
    pub environment: Vec<(String, SecretString)>,
    /// Where the container starts, if not told.
    pub workdir: Option<String>,
    /// With one, both outputs are one, and stdin is what is typed.
    pub terminal: Option<TerminalSize>,
    /// Without, it reads the end at once.
    pub stdin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

impl From<TerminalSize> for Size {
    fn from(size: TerminalSize) -> Self {
        Self { rows: size.rows, columns: size.columns }
    }
}

/// What a command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last of all.
    Ended(CommandEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub how: HowCommandEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowCommandEnded {
    /// By itself, or by somebody's signal. What it left running goes on.
    Exited,
    /// It was asked, and its whole tree ended within the grace.
    Terminated,
    /// It was asked, and something of its tree had to be killed.
    Killed,
    /// Nobody can tell: the helper, or the whole container, went away or does not answer. Something of it may still run in the container.
    Lost,
}

const LOST: CommandEnd = CommandEnd { code: None, signal: None, how: HowCommandEnded::Lost };

impl From<End> for CommandEnd {
    fn from(end: End) -> Self {
        let how = match end.how {
            How::Exited => HowCommandEnded::Exited,
            How::Terminated => HowCommandEnded::Terminated,
            How::Killed => HowCommandEnded::Killed,
        };
        Self { code: end.code, signal: end.signal, how }
    }
}

impl CommandSpec {
    pub(crate) fn deed(&self) -> Deed {
        let bytes = |text: &String| text.clone().into_bytes();
        let variable =
            |(name, value): &(String, SecretString)| (bytes(name), value.expose_secret().as_bytes().to_vec());
        Deed::Run(Run {
            argv: self.argv.iter().map(bytes).collect(),
            environment: self.environment.iter().map(variable).collect(),
            workdir: self.workdir.as_ref().map(bytes),
            terminal: self.terminal.map(Into::into),
            stdin: self.stdin,
            user: None,
        })
    }
}

/// Why a request came to nothing.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Refused(Reason, String),
    /// The helper hung up, was silent, or said what nobody understands.
    Broken(io::Error),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// The helper's side of a connection, one word at a time.
pub(crate) struct Words {
    source: Source,
    buffer: BytesMut,
}

/// A frame that came whole.
struct Frame {
    kind: u8,
    payload: Bytes,
}

impl Words {
    /// The next frame; none at the end. Nothing is lost when this is dropped half-way.
    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let head = parse_header(&self.buffer, false).map_err(|garbled| invalid(&garbled.to_string()))?;
            if let Some((kind, length)) =
                head.filter(|(_, length)| self.buffer.len() >= HEADER_BYTES + length)
            {
                self.buffer.advance(HEADER_BYTES);
                return Ok(Some(Frame { kind, payload: self.buffer.split_to(length).freeze() }));
            }
            if self.buffer.capacity() - self.buffer.len() < HEADER_BYTES {
                self.buffer.reserve(HEADER_BYTES + FRAME_BYTES_MAX);
            }
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn first(&mut self, patience: Duration) -> Result<Frame, NoAnswer> {
        let silent = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it said nothing for {patience:?}"));
        let frame = tokio::time::timeout(patience, self.frame()).await.map_err(silent)??;
        frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

/// Asks for something, and takes the first word of the answer.
async fn ask(streams: Streams, deed: &Deed, patience: Duration) -> Result<(Words, Drain, Frame), NoAnswer> {
    let Streams { stdin: mut drain, stdout: source } = streams;
    let mut words = Words { source, buffer: BytesMut::with_capacity(HEADER_BYTES + FRAME_BYTES_MAX) };
    let asking = async {
        drain.write_all(&deed.frame()).await?;
        drain.flush().await
    };
    // One that refuses at once may not read the whole request; what it says is worth more than that.
    let asked = tokio::time::timeout(ORDER_MAX, asking).await.unwrap_or_else(|late| Err(late.into()));
    let frame = match asked {
        Ok(()) => words.first(patience).await?,
        Err(error) => words.first(Duration::from_millis(100)).await.map_err(|_| error)?,
    };
    if let Ok(Word::Refused(reason, text)) = Word::parse(frame.kind, &frame.payload) {
        return Err(NoAnswer::Refused(reason, text));
    }
    Ok((words, drain, frame))
}

/// A small deed, from question to answer: how much was done, and how much could not be.
pub(crate) async fn deed(streams: Streams, deed: &Deed, patience: Duration) -> Result<(u32, u32), NoAnswer> {
    let (_, _, frame) = ask(streams, deed, patience).await?;
    match Word::parse(frame.kind, &frame.payload) {
        Ok(Word::Done { changed, failed }) => Ok((changed, failed)),
        Ok(Word::Pong) => Ok((0, 0)),
        _ => Err(invalid("it answered something else").into()),
    }
}

/// Tells whether the container runs: an engine may keep a connection to a program in one that has ended.
pub(crate) type Lifeline = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A command that was started. Dropped, it ends with its whole tree.
pub struct RunningCommand {
    words: Words,
    input: CommandInput,
    /// When one that was asked to end is given up.
    end_by: Option<Instant>,
    afterwords_bytes: usize,
    lifeline: Option<Lifeline>,
    is_over: bool,
    writer: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for RunningCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningCommand").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// What can be told to a command, by several at once. Stdin flows while [`RunningCommand::next`] is called.
#[derive(Clone, Debug)]
pub struct CommandInput {
    orders: mpsc::Sender<Vec<u8>>,
    window: Arc<Window>,
}

#[derive(Debug)]
struct Window {
    room: Semaphore,
    under_way: AtomicUsize,
}

impl RunningCommand {
    pub(crate) async fn start(
        streams: Streams,
        lifeline: Option<Lifeline>,
        spec: &CommandSpec,
    ) -> Result<Self, NoAnswer> {
        let (words, drain, frame) = ask(streams, &spec.deed(), START_MAX).await?;
        if Word::parse(frame.kind, &frame.payload) != Ok(Word::Started) {
            return Err(invalid("it answered something else").into());
        }
        let (orders, waiting) = mpsc::channel(ORDERS_WAITING_MAX);
        let writer = AbortOnDropHandle::new(tokio::spawn(write_orders(drain, waiting)));
        let window = Window { room: Semaphore::new(STDIN_WINDOW_BYTES), under_way: AtomicUsize::new(0) };
        let input = CommandInput { orders, window: Arc::new(window) };
        Ok(Self { words, input, end_by: None, afterwords_bytes: 0, lifeline, is_over: false, writer })
    }

    /// What it says next; none after its end. May be dropped half-way and called again.
    pub async fn next(&mut self) -> Option<Said> {
        while !self.is_over {
            let Some(frame) = self.frame().await else { break };
            match Word::parse(frame.kind, &frame.payload) {
                Ok(Word::Stdout(_)) => return Some(Said::Stdout(frame.payload)),
                Ok(Word::Stderr(_)) => return Some(Said::Stderr(frame.payload)),
                Ok(Word::Taken(bytes)) if self.input.window.make_room(bytes) => {}
                Ok(Word::Ended(end)) => {
                    self.is_over = true;
                    return Some(Said::Ended(end.into()));
                }
                _ => break,
            }
        }
        let was_over = std::mem::replace(&mut self.is_over, true);
        (!was_over).then_some(Said::Ended(LOST))
    }

    /// None when nothing more is to be had.
    async fn frame(&mut self) -> Option<Frame> {
        let Some(end_by) = self.end_by else { return self.frame_while_it_lives().await };
        if Instant::now() >= end_by && self.afterwords_bytes > AFTERWORDS_BYTES_MAX {
            return None;
        }
        let frame = tokio::time::timeout_at(end_by, self.words.frame()).await.ok()?.ok().flatten()?;
        if Instant::now() >= end_by {
            self.afterwords_bytes += HEADER_BYTES + frame.payload.len();
        }
        Some(frame)
    }

    async fn frame_while_it_lives(&mut self) -> Option<Frame> {
        let Some(lives) = self.lifeline.clone() else { return self.words.frame().await.ok().flatten() };
        loop {
            match tokio::time::timeout(LIFE_LOOK_EVERY, self.words.frame()).await {
                Ok(frame) => return frame.ok().flatten(),
                Err(_elapsed) if lives().await => {}
                Err(_elapsed) => return None,
            }
        }
    }

    /// Asks its whole tree to end: SIGTERM, `grace`, SIGKILL. [`next`](Self::next) tells when that is done; it does so in any case.
    pub async fn end(&mut self, grace: Duration) -> io::Result<()> {
        let by = Instant::now() + grace + OBEDIENCE_MAX;
        self.end_by = Some(self.end_by.map_or(by, |earlier| earlier.min(by)));
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.input.order(&Order::End { grace_ms }).await
    }

    /// A handle for whoever writes while another reads.
    pub fn input(&self) -> CommandInput {
        self.input.clone()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // The connection ends with both its halves, and whoever waits to write hears of it.
        self.writer.abort();
        self.input.window.room.close();
    }
}

impl Window {
    /// False when more is given back than was taken.
    fn make_room(&self, bytes: u32) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else { return false };
        let less = |under_way: usize| under_way.checked_sub(bytes);
        let is_ours = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_ours {
            self.room.add_permits(bytes);
        }
        is_ours
    }
}

impl CommandInput {
    /// Writes to its stdin; returns when all of it is on its way. What a command never reads is not an error.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(STDIN_WINDOW_BYTES / 2) {
            let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
            let room = self.window.room.acquire_many(length).await.map_err(|_| ended())?;
            room.forget();
            self.window.under_way.fetch_add(piece.len(), Ordering::Relaxed);
            self.order(&Order::Stdin(piece)).await?;
        }
        Ok(())
    }

    /// Says that there is no more. On a terminal it is what a person types for that.
    pub async fn close_stdin(&self) -> io::Result<()> {
        self.order(&Order::CloseStdin).await
    }

    pub async fn resize(&self, size: TerminalSize) -> io::Result<()> {
        self.order(&Order::Resize(size.into())).await
    }

    async fn order(&self, order: &Order<'_>) -> io::Result<()> {
        match self.orders.send_timeout(order.frame(), ORDER_MAX).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(io::ErrorKind::TimedOut.into()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(ended()),
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the command has ended")
}

/// Says each order in turn, until nobody gives any or nobody listens.
async fn write_orders(mut drain: Drain, mut orders: mpsc::Receiver<Vec<u8>>) {
    while let Some(order) = orders.recv().await {
        let writing = async {
            drain.write_all(&order).await?;
            drain.flush().await
        };
        if writing.await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    fn spec() -> CommandSpec {
        let environment = vec![("TOKEN".to_owned(), SecretString::from("secret"))];
        CommandSpec { argv: vec!["x".into()], environment, workdir: None, terminal: None, stdin: true }
    }

    fn streams(ours: DuplexStream) -> Streams {
        let (source, drain) = tokio::io::split(ours);
        Streams { stdin: Box::new(drain), stdout: Box::new(source) }
    }

    /// A command whose helper is this test.
    async fn started() -> (RunningCommand, DuplexStream) {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        theirs.write_all(&Word::Started.frame()).await.unwrap();
        let command = RunningCommand::start(streams(ours), None, &spec()).await.unwrap();
        let mut asked = vec![0; spec().deed().frame().len()];
        theirs.read_exact(&mut asked).await.unwrap();
        (command, theirs)
    }

    #[tokio::test]
    async fn a_helper_that_speaks_nonsense_is_lost_and_nothing_of_it_is_kept() {
        let nonsense: [&[u8]; 5] = [
            b"HTTP/1.1 200 OK",
            b"1\xff\xff\xff\xff",
            b"e\x00\x00\x00\x01\x07",
            b"t\x00\x00\x00\x04\x00\x00\x00\x01",
            b"1\x00",
        ];
        for said in nonsense {
            let (mut command, mut helper) = started().await;
            helper.write_all(said).await.unwrap();
            drop(helper);
            assert_eq!(command.next().await, Some(Said::Ended(LOST)), "{said:?}");
            assert_eq!(command.next().await, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_helper_that_says_nothing_is_not_waited_for() {
        let (ours, _theirs) = tokio::io::duplex(1 << 20);
        let error = RunningCommand::start(streams(ours), None, &spec()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Broken(error) if error.kind() == io::ErrorKind::TimedOut));
        let (ours, _theirs) = tokio::io::duplex(16);
        assert!(
            RunningCommand::start(streams(ours), None, &spec()).await.is_err(),
            "nobody reads the request"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_end_when_asked_is_given_up() {
        let (mut command, _helper) = started().await;
        let start = Instant::now();
        command.end(Duration::from_secs(3)).await.unwrap();
        assert_eq!(command.next().await, Some(Said::Ended(LOST)));
        assert_eq!(start.elapsed().as_secs(), 13);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_goes_on_and_on_after_it_was_asked_to_end_is_given_up() {
        let (mut command, mut helper) = started().await;
        tokio::spawn(async move {
            let piece = Word::Stdout(&[b'x'; 10_000]).frame();
            while helper.write_all(&piece).await.is_ok() {}
        });
        command.end(Duration::ZERO).await.unwrap();
        tokio::time::advance(Duration::from_mins(1)).await;
        let mut bytes = 0;
        while let Some(said) = command.next().await {
            match said {
                Said::Stdout(piece) => bytes += piece.len(),
                other => assert_eq!(other, Said::Ended(LOST)),
            }
        }
        assert!(bytes < 2 * AFTERWORDS_BYTES_MAX, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn stdin_waits_for_its_reader_and_hears_of_the_end() {
        let (mut command, mut helper) = started().await;
        let input = command.input();
        let writing = tokio::spawn(async move { input.write(&vec![b'x'; 3 * STDIN_WINDOW_BYTES]).await });
        let half = STDIN_WINDOW_BYTES / 2;
        let mut window = vec![0; 2 * (HEADER_BYTES + half)];
        helper.read_exact(&mut window).await.unwrap();
        let more = tokio::time::timeout(Duration::from_mins(1), helper.read_u8()).await;
        assert!(more.is_err(), "more is under way than the window");
        helper.write_all(&Word::Taken(u32::try_from(half).unwrap()).frame()).await.unwrap();
        helper.write_all(&Word::Stderr(b"hm").frame()).await.unwrap();
        assert_eq!(command.next().await, Some(Said::Stderr(Bytes::from_static(b"hm"))));
        helper.read_exact(&mut window[..HEADER_BYTES + half]).await.unwrap();
        drop(command);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(helper.read(&mut [0]).await.unwrap(), 0, "the helper hears that we hung up");
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_its_own_words() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let refusal = Word::Refused(Reason::NotFound, "no such program".to_owned());
        theirs.write_all(&refusal.frame()).await.unwrap();
        let error = RunningCommand::start(streams(ours), None, &spec()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Refused(Reason::NotFound, text) if text == "no such program"));
    }
}
