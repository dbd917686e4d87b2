//! The task of a pump: it owns everything that changes, and both ends of the server. See [`crate::pump`].

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, broadcast, mpsc};

use crate::ear::{Answerer, Ear, Question, ToServer};
use crate::lines::{Line, Lines};
use crate::message::{self, Incoming, Notification, Reply};
use crate::pump::{Call, CallError, Command, Ended, Limits, Waiter};
use crate::spotter::IdSpotter;
use crate::voice::Voice;

/// Longer notifications are not published: with as many kept as above, subscribers would hold too much of a hostile server's text.
const NOTIFICATION_BYTES_MAX: usize = 1 << 20;
/// Answers to the server's questions that wait to be written. A server that asks and does not read loses answers, nobody
/// else does. What we say ourselves of a call is bounded by the calls.
const ANSWERS_WAITING_MAX: usize = 256;
/// What others have us say to a server that does not read: more is lost.
const SAID_WAITING_BYTES_MAX: usize = 4 << 20;
/// Questions of one server that wait for their answers, which a person may have to give.
const QUESTIONS_MAX: usize = 2048;
/// So many bytes are written at once where there are as many lines, and no more is begun.
const WRITTEN_TOGETHER: usize = 64 << 10;
/// How long answers that are already on their way up are waited for when nothing can be sent down any more.
const LAST_ANSWERS_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Router<R, W> {
    lines: Lines<R>,
    stdin: W,
    limits: Limits,
    commands: mpsc::UnboundedReceiver<Command>,
    /// For answers to the server's questions, which may come when everybody else has let go.
    inbox: mpsc::WeakUnboundedSender<Command>,
    notifications: broadcast::Sender<Arc<Notification>>,
    voice: Arc<Voice>,
    ear: Option<Arc<dyn Ear>>,
    /// How much the server may ask at once.
    questions: Arc<Semaphore>,
    /// Who waits for their turn, first come first served.
    line: VecDeque<Call>,
    /// What else is to be written, before any call.
    asides: VecDeque<Vec<u8>>,
    asides_bytes: usize,
    /// Who need not wait for a turn.
    asked_aside: VecDeque<Call>,
    /// What is left of the lines that are being written.
    writing: Bytes,
    in_flight: BTreeMap<u64, Waiter>,
    /// How many of those were asked aside.
    in_flight_aside: usize,
    /// Nobody wants anything of the server any more.
    is_closing: bool,
}

/// Everything that may happen.
enum Cause {
    Line(std::io::Result<Option<Line>>),
    Command(Option<Command>),
    Written(std::io::Result<usize>),
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Router<R, W> {
    pub(crate) fn new(
        lines: Lines<R>,
        stdin: W,
        limits: Limits,
        commands: mpsc::UnboundedReceiver<Command>,
        inbox: mpsc::WeakUnboundedSender<Command>,
        notifications: broadcast::Sender<Arc<Notification>>,
        voice: Arc<Voice>,
    ) -> Self {
        Self {
            lines,
            stdin,
            limits,
            commands,
            inbox,
            notifications,
            voice,
            ear: None,
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            line: VecDeque::new(),
            asides: VecDeque::new(),
            asides_bytes: 0,
            asked_aside: VecDeque::new(),
            writing: Bytes::new(),
            in_flight: BTreeMap::new(),
            in_flight_aside: 0,
            is_closing: false,
        }
    }

    pub(crate) async fn run(mut self) -> Ended {
        let end = loop {
            if self.writing.is_empty() && self.has_next() {
                self.wait_for_company().await;
            }
            if self.is_closing {
                break Ended::Closed;
            }
            if self.writing.is_empty() {
                self.begin_next();
            }
            // Reading and writing wait beside each other: neither holds the other up, and giving up either loses nothing.
            let cause = tokio::select! {
                line = self.lines.next() => Cause::Line(line),
                command = self.commands.recv() => Cause::Command(command),
                written = self.stdin.write(&self.writing), if !self.writing.is_empty() => Cause::Written(written),
            };
            match cause {
                Cause::Line(Ok(Some(line))) => self.take(line),
                Cause::Line(Ok(None) | Err(_)) => break Ended::Stdout,
                Cause::Command(Some(command)) => self.obey(command),
                Cause::Command(None) => self.is_closing = true,
                Cause::Written(Ok(bytes)) if bytes > 0 => self.writing.advance(bytes),
                Cause::Written(_broken) => {
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

    fn obey(&mut self, command: Command) {
        match command {
            Command::Call(call) => self.queue(call),
            Command::LetGo(ticket) => self.let_go(ticket),
            Command::Say(line) => self.say(line),
            Command::Listen(ear) => self.ear = Some(ear),
            Command::Close => self.is_closing = true,
        }
    }

    /// One line is taken whatever its length, as a call is.
    fn say(&mut self, line: Vec<u8>) {
        if self.asides.is_empty() || self.asides_bytes + line.len() <= SAID_WAITING_BYTES_MAX {
            self.aside(line);
        }
    }

    fn aside(&mut self, line: Vec<u8>) {
        self.asides_bytes += line.len();
        self.asides.push_back(line);
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

    /// Whether anything may be written.
    fn has_next(&self) -> bool {
        !self.asides.is_empty() || !self.asked_aside.is_empty() || self.has_turn()
    }

    /// Where several call at once, whoever is about to is let in first: one write for all of them wakes the server once. One who calls
    /// alone is not kept waiting.
    async fn wait_for_company(&mut self) {
        if !self.in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
    }

    /// The next lines to be written, as many as go together.
    fn begin_next(&mut self) {
        let mut lines = Vec::new();
        while lines.len() < WRITTEN_TOGETHER && self.append_next(&mut lines) {}
        self.writing = lines.into();
    }

    /// Asides first, then whoever's turn it is. Says whether there was any.
    fn append_next(&mut self, lines: &mut Vec<u8>) -> bool {
        if let Some(line) = self.asides.pop_front() {
            self.asides_bytes -= line.len();
            lines.extend_from_slice(&line);
            return true;
        }
        let aside = self.asked_aside.pop_front();
        let next = aside.or_else(|| if self.has_turn() { self.line.pop_front() } else { None });
        let Some(call) = next else { return false };
        self.in_flight_aside += usize::from(call.waiter.permit.is_none());
        message::append_request(lines, call.ticket, &call.method, call.params.as_deref());
        self.in_flight.insert(call.ticket, call.waiter);
        true
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
            Incoming::Request { id, method, params } => self.is_asked(id, method, params),
            Incoming::Notification { method, .. } if line.len() > NOTIFICATION_BYTES_MAX => {
                let method: String = method.chars().take(64).collect();
                tracing::debug!(bytes = line.len(), "a notification `{method}` was too long to be published");
            }
            Incoming::Notification { method, params } => {
                let params = params.map(ToOwned::to_owned);
                self.publish(Notification { method: method.into_owned(), params });
            }
            Incoming::Noise => {
                let mut spotter = IdSpotter::default();
                spotter.watch(&line);
                self.answer(spotter.id(), Err(CallError::Unreadable));
            }
        }
    }

    fn publish(&self, notification: Notification) {
        if self.notifications.receiver_count() > 0 {
            // The last one may be leaving just now.
            let _ = self.notifications.send(Arc::new(notification.clone()));
        }
        if let Some(ear) = &self.ear {
            ear.hears(notification);
        }
    }

    /// A server that asks and does not read what it gets is not answered; one that asks too much at once is told so.
    fn is_asked(&mut self, id: &RawValue, method: Cow<'_, str>, params: Option<&RawValue>) {
        if self.asides.len() >= ANSWERS_WAITING_MAX {
            return;
        }
        match &self.ear {
            _ if method == "ping" => self.aside(message::pong(id)),
            None => self.aside(message::not_known(id)),
            Some(ear) => {
                let Ok(place) = self.questions.clone().try_acquire_owned() else {
                    return self.aside(message::too_many_questions(id));
                };
                let inbox = self.inbox.clone();
                let answerer = Answerer::ToServer(ToServer { id: Some(id.to_owned()), inbox, _place: place });
                let (method, params) = (method.into_owned(), params.map(ToOwned::to_owned));
                ear.is_asked(Question { method, params, answerer });
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
                self.aside(message::cancelled(ticket));
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
        for (_, waiter) in std::mem::take(&mut self.in_flight) {
            let _ = waiter.reply.send(Err(CallError::MayHaveExecuted));
        }
    }
}
