//! The task of a wire: takes lines from the pump and has each delivered, many at once.
//!
//! Order is kept where it matters: what comes after `initialize` waits for its answer, and what comes after `notifications/initialized`
//! until that was accepted. A cancelled request is no longer read for, and the upstream is told.
//!
//! Who has said everything (stdin ends) still hears the answers; who does not listen any more (stdout is dropped) need not wait for them.
//! Every task that is at work for the wire is owned here, and ends with it.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::WireLimits;
use super::link::Anchor;
use super::outgoing::{Outgoing, What};
use crate::lines::{Line, Lines};

/// Messages that wait for their turn, or to be accepted. The pump has fewer; beyond them it is not read.
const WAITING_MAX: usize = 1024;

/// How a transport delivers.
pub(super) trait Delivery: Send + Sync + 'static {
    /// Takes a message to the upstream, and its answer to the pump; returns when it has been answered or accepted, or has failed.
    fn deliver(&self, message: Outgoing) -> impl Future<Output = ()> + Send;

    /// Hears what the upstream says by itself, for as long as the wire lasts.
    fn listen(&self) -> impl Future<Output = ()> + Send;

    /// Says goodbye, within bounds.
    fn farewell(&self) -> impl Future<Output = ()> + Send;
}

pub(super) struct Carrier<D> {
    lines: Lines<DuplexStream>,
    delivery: Arc<D>,
    anchor: Anchor,
    in_flight_max: usize,
    deliveries: JoinSet<()>,
    /// The requests among them, by id.
    requests: HashMap<String, Request>,
    /// Requests for which there is no room yet.
    held: VecDeque<Outgoing>,
}

struct Request {
    task: AbortHandle,
    /// It belongs to no session.
    stands_alone: bool,
}

enum Cause {
    Line(std::io::Result<Option<Line>>),
    Delivered(Result<(Id, ()), JoinError>),
    Broken,
}

/// Whether a request that was given up concerns the upstream.
#[derive(PartialEq, Eq)]
enum Upstream {
    HasToBeTold,
    /// It has not heard of it, or understands a connection that ends.
    Knows,
}

impl<D: Delivery> Carrier<D> {
    pub(super) fn new(stdin: DuplexStream, delivery: D, anchor: Anchor, limits: &WireLimits) -> Self {
        Self {
            // What our own side says is its own affair; a limit here would leave a caller without an answer.
            lines: Lines::new(stdin, usize::MAX),
            delivery: Arc::new(delivery),
            anchor,
            in_flight_max: limits.in_flight_max.max(1),
            deliveries: JoinSet::new(),
            requests: HashMap::new(),
            held: VecDeque::new(),
        }
    }

    pub(super) async fn carry(mut self) {
        let delivery = self.delivery.clone();
        let mut listening = JoinSet::new();
        listening.spawn(async move { delivery.listen().await });
        loop {
            let room = self.deliveries.len() + self.held.len() < self.in_flight_max + WAITING_MAX;
            let cause = tokio::select! {
                line = self.lines.next(), if room => Cause::Line(line),
                Some(delivered) = self.deliveries.join_next_with_id() => Cause::Delivered(delivered),
                () = self.anchor.broken() => Cause::Broken,
            };
            match cause {
                Cause::Line(Ok(Some(Line::Whole(line)))) => {
                    if let Some(message) = Outgoing::parse(line.freeze()) {
                        self.dispatch(message).await;
                    }
                }
                Cause::Line(Ok(Some(Line::TooLong { .. }))) => {}
                Cause::Line(Ok(None) | Err(_)) => {
                    self.finish().await;
                    break;
                }
                Cause::Broken => break,
                Cause::Delivered(delivered) => {
                    self.forget(&delivered);
                    self.let_held_ones_go();
                }
            }
        }
        self.end(listening).await;
    }

    /// Until everything is answered, or nobody wants to know.
    async fn finish(&mut self) {
        loop {
            let delivered = tokio::select! {
                delivered = self.deliveries.join_next_with_id() => delivered,
                () = self.anchor.broken() => return,
            };
            let Some(delivered) = delivered else { return };
            self.forget(&delivered);
            self.let_held_ones_go();
        }
    }

    async fn dispatch(&mut self, message: Outgoing) {
        if message.comes_first() {
            // Whoever reads no more need not wait for this either.
            tokio::select! {
                () = self.delivery.deliver(message) => {}
                () = self.anchor.broken() => {}
            }
            return;
        }
        match &message.what {
            What::Request { .. } => {
                self.held.push_back(message);
                self.let_held_ones_go();
            }
            What::Notification { cancels: Some(id), .. } => {
                if self.give_up(id) == Upstream::HasToBeTold {
                    self.start(message);
                }
            }
            What::Notification { .. } | What::Answer => {
                self.start(message);
            }
        }
    }

    /// Nobody waits for this request any more.
    fn give_up(&mut self, id: &str) -> Upstream {
        if let Some(place) = self.held.iter().position(|message| message.request_id() == Some(id)) {
            self.held.remove(place);
            return Upstream::Knows;
        }
        match self.requests.remove(id) {
            Some(request) => {
                request.task.abort();
                if request.stands_alone { Upstream::Knows } else { Upstream::HasToBeTold }
            }
            None => Upstream::HasToBeTold,
        }
    }

    fn let_held_ones_go(&mut self) {
        while self.requests.len() < self.in_flight_max
            && let Some(message) = self.held.pop_front()
        {
            let id = message.request_id().map(ToOwned::to_owned);
            let stands_alone = message.label.is_some();
            let task = self.start(message);
            self.requests.extend(id.map(|id| (id, Request { task, stands_alone })));
        }
    }

    fn start(&mut self, message: Outgoing) -> AbortHandle {
        let delivery = self.delivery.clone();
        self.deliveries.spawn(async move { delivery.deliver(message).await })
    }

    fn forget(&mut self, delivered: &Result<(Id, ()), JoinError>) {
        let task = match delivered {
            Ok((task, ())) => *task,
            Err(error) => error.id(),
        };
        self.requests.retain(|_, request| request.task.id() != task);
    }

    async fn end(self, mut listening: JoinSet<()>) {
        let Self { delivery, anchor, mut deliveries, .. } = self;
        let lost = anchor.has_fault();
        // No answer is lost by this: an answer is said before its delivery ends, and what was said is read to the end.
        listening.shutdown().await;
        deliveries.shutdown().await;
        drop(anchor);
        if !lost {
            delivery.farewell().await;
        }
    }
}
