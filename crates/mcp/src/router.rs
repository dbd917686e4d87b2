//! The two tasks of a pump: the router, which owns everything that changes, and the writer, which owns stdin. See [`crate::pump`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};

use crate::lines::{Line, Lines};
use crate::message::{self, Incoming, Notification, Reply};
use crate::pump::{Call, CallError, Command, Ended, Limits, Waiter};
use crate::spotter::IdSpotter;
use crate::voice::Voice;

/// Longer notifications are not published: with as many kept as above, subscribers would hold too much of a hostile server's text.
const NOTIFICATION_BYTES_MAX: usize = 1 << 20;
/// Answers to the server's questions that wait for the writer. A server that asks and does not read loses answers, nobody
/// else does. What we say ourselves is bounded by the calls it is about.
const ANSWERS_WAITING_MAX: usize = 256;
/// How long answers that are already on their way up are waited for when nothing can be sent down any more.
const LAST_ANSWERS_GRACE: Duration = Duration::from_secs(1);

pub(crate) async fn write(mut stdin: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        let written = async {
            stdin.write_all(&line).await?;
            stdin.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!("a server's stdin broke: {error}");
            return;
        }
    }
}

pub(crate) struct Router<R> {
    lines: Lines<R>,
    limits: Limits,
    commands: mpsc::UnboundedReceiver<Command>,
    to_writer: mpsc::Sender<Vec<u8>>,
    notifications: broadcast::Sender<Arc<Notification>>,
    voice: Arc<Voice>,
    /// Who waits for their turn, first come first served.
    line: VecDeque<Call>,
    /// What else is to be written, before any call.
    asides: VecDeque<Vec<u8>>,
    /// Who need not wait for a turn.
    asked_aside: VecDeque<Call>,
    in_flight: HashMap<u64, Waiter>,
    /// How many of those were asked aside.
    in_flight_aside: usize,
}

/// Everything that may happen.
enum Cause {
    Line(std::io::Result<Option<Line>>),
    Command(Option<Command>),
    WriterReady,
    WriterGone,
}

impl<R: AsyncRead + Unpin> Router<R> {
    pub(crate) fn new(
        lines: Lines<R>,
        limits: Limits,
        commands: mpsc::UnboundedReceiver<Command>,
        to_writer: mpsc::Sender<Vec<u8>>,
        notifications: broadcast::Sender<Arc<Notification>>,
        voice: Arc<Voice>,
    ) -> Self {
        Self {
            lines,
            limits,
            commands,
            to_writer,
            notifications,
            voice,
            line: VecDeque::new(),
            asides: VecDeque::new(),
            asked_aside: VecDeque::new(),
            in_flight: HashMap::new(),
            in_flight_aside: 0,
        }
    }

    pub(crate) async fn run(mut self) -> Ended {
        let end = loop {
            let something_to_write =
                !self.asides.is_empty() || !self.asked_aside.is_empty() || self.has_turn();
            let cause = tokio::select! {
                line = self.lines.next() => Cause::Line(line),
                command = self.commands.recv() => Cause::Command(command),
                Ok(_) = self.to_writer.reserve(), if something_to_write => Cause::WriterReady,
                () = self.to_writer.closed() => Cause::WriterGone,
            };
            match cause {
                Cause::Line(Ok(Some(line))) => self.take(line),
                Cause::Line(Ok(None) | Err(_)) => break Ended::Stdout,
                Cause::Command(Some(Command::Call(call))) => self.queue(call),
                Cause::Command(Some(Command::LetGo(ticket))) => self.let_go(ticket),
                Cause::Command(Some(Command::Notify(line))) => self.asides.push_back(line),
                Cause::Command(Some(Command::Close) | None) => break Ended::Closed,
                Cause::WriterReady => self.write_next(),
                Cause::WriterGone => {
                    self.take_last_answers().await;
                    break Ended::Stdin;
                }
            }
        };
        self.tell_everybody();
        end
    }

    /// A server that answers and exits: its stdin is gone, its answer is still in the pipe.
    async fn take_last_answers(&mut self) {
        let read = async {
            while let Ok(Some(line)) = self.lines.next().await {
                self.take(line);
            }
        };
        // Something else may hold its stdout open.
        let _ = tokio::time::timeout(LAST_ANSWERS_GRACE, read).await;
    }

    fn queue(&mut self, call: Call) {
        match call.waiter.permit {
            Some(_) => self.line.push_back(call),
            None => self.asked_aside.push_back(call),
        }
    }

    fn has_turn(&self) -> bool {
        !self.line.is_empty() && self.in_flight.len() - self.in_flight_aside < self.limits.in_flight_max
    }

    /// There is room for one line: the writer takes it at once.
    fn write_next(&mut self) {
        let line = match self.asides.pop_front() {
            Some(line) => line,
            None => match self.asked_aside.pop_front().or_else(|| self.line.pop_front()) {
                Some(call) => {
                    self.in_flight_aside += usize::from(call.waiter.permit.is_none());
                    let line = message::request(call.ticket, &call.method, call.params.as_deref());
                    self.in_flight.insert(call.ticket, call.waiter);
                    line
                }
                None => return,
            },
        };
        // Only this task sends, and it was told that there is room; a writer that is gone is noticed next.
        let _ = self.to_writer.try_send(line);
    }

    fn take(&mut self, line: Line) {
        self.voice.heard_a_line();
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong { id } => {
                let error = CallError::TooLong { bytes_max: self.limits.message_bytes_max };
                return self.answer(id, Err(error));
            }
        };
        match Incoming::parse(&line) {
            Incoming::Reply { id, reply } => self.answer(Some(id), Ok(reply)),
            Incoming::Request { id, method } if self.asides.len() < ANSWERS_WAITING_MAX => {
                self.asides.push_back(message::answer(id, &method));
            }
            // It asks, and does not read what it gets.
            Incoming::Request { .. } => {}
            Incoming::Notification { method, .. } if line.len() > NOTIFICATION_BYTES_MAX => {
                let method: String = method.chars().take(64).collect();
                tracing::debug!(bytes = line.len(), "a notification `{method}` was too long to be published");
            }
            Incoming::Notification { method, params } => {
                let params = params.map(ToOwned::to_owned);
                // Nobody may be listening.
                let _ =
                    self.notifications.send(Arc::new(Notification { method: method.into_owned(), params }));
            }
            Incoming::Noise => {
                let mut spotter = IdSpotter::default();
                spotter.watch(&line);
                self.answer(spotter.id(), Err(CallError::Unreadable));
            }
        }
    }

    /// An answer that nobody waits for any more finds nobody.
    fn answer(&mut self, id: Option<u64>, outcome: Result<Reply, CallError>) {
        if let Some(waiter) = id.and_then(|id| self.land(id)) {
            let _ = waiter.reply.send(outcome);
        }
    }

    /// It is no longer in flight.
    fn land(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.in_flight.remove(&ticket)?;
        self.in_flight_aside -= usize::from(waiter.permit.is_none());
        Some(waiter)
    }

    fn let_go(&mut self, ticket: u64) {
        if let Some(waiter) = self.land(ticket) {
            if waiter.may_be_cancelled {
                self.asides.push_back(message::cancelled(ticket));
            }
        } else if let Some(place) = self.asked_aside.iter().position(|call| call.ticket == ticket) {
            self.asked_aside.remove(place);
        } else if let Some(place) = self.line.iter().position(|call| call.ticket == ticket) {
            self.line.remove(place);
        }
    }

    /// Whoever's call was sent cannot know whether it was executed. The others can.
    fn tell_everybody(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Call(call) = command {
                self.queue(call);
            }
        }
        for call in self.asked_aside.drain(..).chain(self.line.drain(..)) {
            let _ = call.waiter.reply.send(Err(CallError::Gone));
        }
        for (_, waiter) in self.in_flight.drain() {
            let _ = waiter.reply.send(Err(CallError::MayHaveExecuted));
        }
    }
}
