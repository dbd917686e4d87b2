//! Messages for a client, in order, that may be read again: one stream of its session.
//!
//! Each message has a number. A reader says after which one it goes on, so that a client whose connection broke finds what it missed,
//! as far as it is kept. What is kept is bounded in messages and in bytes; the oldest goes first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::Notify;

const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct Outbox {
    /// Which stream of the session it is; 0 is the one for what belongs to no call.
    pub stream: u64,
    kept: Mutex<Kept>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first one kept. Numbers begin with 1.
    first: u64,
    ended: bool,
    /// What the client calls the progress of the call that this is the stream of.
    token: Option<Arc<RawValue>>,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Message(u64, Bytes),
    /// No more will come.
    End,
}

impl Outbox {
    pub(crate) fn new(stream: u64) -> Self {
        let kept = Kept { first: 1, ..Kept::default() };
        Self { stream, kept: Mutex::new(kept), news: Notify::new() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the client calls its progress so.
    pub(crate) fn set_token(&self, token: Option<&RawValue>) {
        self.kept().token = token.map(|token| Arc::from(token.to_owned()));
    }

    pub(crate) fn token(&self) -> Option<Arc<RawValue>> {
        self.kept().token.clone()
    }

    /// One message, without its line break.
    pub(crate) fn push(&self, mut message: Vec<u8>) {
        while message.last() == Some(&b'\n') {
            message.pop();
        }
        {
            let mut kept = self.kept();
            if kept.ended {
                return;
            }
            kept.bytes += message.len();
            kept.messages.push_back(message.into());
            while kept.messages.len() > MESSAGES_MAX || (kept.bytes > BYTES_MAX && kept.messages.len() > 1) {
                let gone = kept.messages.pop_front().map_or(0, |gone| gone.len());
                kept.bytes -= gone;
                kept.first += 1;
            }
        }
        self.news.notify_waiters();
    }

    /// The answer, if there is one, and the end.
    pub fn finish(&self, answer: Option<Vec<u8>>) {
        if let Some(answer) = answer {
            self.push(answer);
        }
        self.end();
    }

    pub(crate) fn end(&self) {
        self.kept().ended = true;
        self.news.notify_waiters();
    }

    pub fn has_ended(&self) -> bool {
        self.kept().ended
    }

    /// Whether anything was ever put in.
    pub fn is_unused(&self) -> bool {
        let kept = self.kept();
        kept.first == 1 && kept.messages.is_empty()
    }

    /// The number of the last message.
    pub fn last(&self) -> u64 {
        let kept = self.kept();
        kept.first + kept.messages.len() as u64 - 1
    }

    /// The first message after this one, when it comes.
    pub async fn after(&self, number: u64) -> Next {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // From here on nothing is missed.
            news.as_mut().enable();
            if let Some(next) = self.look_after(number) {
                return next;
            }
            news.await;
        }
    }

    fn look_after(&self, number: u64) -> Option<Next> {
        let kept = self.kept();
        let wanted = (number + 1).max(kept.first);
        let place = usize::try_from(wanted - kept.first).ok()?;
        match kept.messages.get(place) {
            Some(message) => Some(Next::Message(wanted, message.clone())),
            None => kept.ended.then_some(Next::End),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_goes_on_where_it_was() {
        let outbox = Outbox::new(1);
        outbox.push(b"one\n".to_vec());
        outbox.push(b"two".to_vec());
        assert_eq!(outbox.after(0).await, Next::Message(1, "one".into()));
        assert_eq!(outbox.after(1).await, Next::Message(2, "two".into()));
        outbox.end();
        assert_eq!(outbox.after(2).await, Next::End);
        assert_eq!(outbox.after(1).await, Next::Message(2, "two".into()));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let outbox = Outbox::new(1);
        for n in 0..=MESSAGES_MAX {
            outbox.push(n.to_string().into_bytes());
        }
        assert_eq!(outbox.after(0).await, Next::Message(2, "1".into()));
        outbox.push(vec![b'x'; BYTES_MAX + 1]);
        let Next::Message(number, message) = outbox.after(0).await else { panic!("an end") };
        assert_eq!((number, message.len()), (MESSAGES_MAX as u64 + 2, BYTES_MAX + 1));
    }
}
