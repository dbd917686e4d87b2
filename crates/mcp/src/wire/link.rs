//! What every task of a wire shares: the way up to the pump, and the one reason for the end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{mpsc, watch};

use super::outgoing::Outgoing;
use super::trouble::Trouble;
use super::{Fault, WireFault};

/// Lines that wait to be read. Few, because each may be long.
const LINES_WAITING_MAX: usize = 16;

/// Held by whoever says something to the pump. It does not keep the wire alive.
#[derive(Clone, Debug)]
pub(super) struct Link {
    lines: mpsc::WeakSender<Bytes>,
    fault: watch::Sender<Option<WireFault>>,
}

/// Held by the carrier alone: stdout ends with it.
#[derive(Debug)]
pub(super) struct Anchor {
    lines: mpsc::Sender<Bytes>,
    fault: watch::Receiver<Option<WireFault>>,
}

pub(super) fn link() -> (Link, Anchor, Stdout, Fault) {
    let (lines, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let (fault, told) = watch::channel(None);
    let link = Link { lines: lines.downgrade(), fault };
    let anchor = Anchor { lines, fault: told.clone() };
    (link, anchor, Stdout { lines: receiver, line: Bytes::new() }, Fault(told))
}

impl Link {
    /// Hands a message up as one line. JSON has line breaks only between its parts, where a space does as well.
    pub(super) async fn say(&self, mut message: Vec<u8>) {
        for byte in message.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
        message.push(b'\n');
        if let Some(lines) = self.lines.upgrade() {
            // Whoever stopped reading wants to hear nothing.
            let _ = lines.send(message.into()).await;
        }
    }

    /// Ends the wire, if nothing else has.
    pub(super) fn fail(&self, fault: WireFault) {
        self.fault.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert(fault);
            first
        });
    }

    /// A message met with trouble: whoever waits for its answer hears, and the wire ends if it must.
    pub(super) async fn report(&self, message: &Outgoing, trouble: Trouble) {
        if let Some(id) = message.raw_id() {
            self.say(trouble.answer_to(id.get())).await;
        } else {
            tracing::debug!("an upstream did not take {:?}: {}", message.method(), trouble.message);
        }
        if let Some(fault) = trouble.into_fault() {
            self.fail(fault);
        }
    }
}

impl Anchor {
    /// Waits until nobody reads any more, or there is a fault.
    pub(super) async fn broken(&self) {
        let mut fault = self.fault.clone();
        tokio::select! {
            () = self.lines.closed() => {}
            _ = fault.wait_for(Option::is_some) => {}
        }
    }

    pub(super) fn has_fault(&self) -> bool {
        self.fault.borrow().is_some()
    }
}

/// The lines as a stream of bytes.
#[derive(Debug)]
pub(super) struct Stdout {
    lines: mpsc::Receiver<Bytes>,
    line: Bytes,
}

impl AsyncRead for Stdout {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_empty() {
            match ready!(this.lines.poll_recv(cx)) {
                Some(line) => this.line = line,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.line.len().min(out.remaining());
        out.put_slice(&this.line[..length]);
        this.line.advance(length);
        Poll::Ready(Ok(()))
    }
}
