//! A project's endpoint on two streams of lines, in this process: for clients that start a program and speak to its stdin and stdout.
//!
//! ```text
//!   stdin ─► lines ─► one task for each request ─┐
//!                     what belongs to no request ┴─► queue ─► stdout
//! ```
//!
//! Requests of both eras are taken. A client that says no more is still answered what it asked for, unless it is gone.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cofer_gateway::alone::{self, Asked};
use cofer_gateway::endpoint::{self, Exchange, Received};
use cofer_gateway::{Caller, Next, Outbox, Project, Session};
use cofer_mcp::client::FromClient;
use cofer_mcp::lines::{Line, Lines};
use cofer_mcp::message::{INVALID_REQUEST, Reply, RpcError, response};
use cofer_mcp::raw;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const LINE_BYTES_MAX: usize = 32 << 20;
const LINES_WAITING_MAX: usize = 64;
const CALLS_MAX: usize = 256;

/// Serves one client until it is done, or gone.
pub async fn serve_lines(
    project: &Arc<Project>,
    from_client: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin + Send + 'static,
    gone: impl Future<Output = ()>,
) {
    let (out, lines) = mpsc::channel(LINES_WAITING_MAX);
    let writer = tokio::spawn(write(lines, to_client));
    let door = Door {
        project: project.clone(),
        out,
        session: Mutex::default(),
        alone: Arc::default(),
        calls: Arc::new(Semaphore::new(CALLS_MAX)),
        tasks: TaskTracker::new(),
        over: CancellationToken::new(),
    };
    let all = async {
        door.read(from_client).await;
        door.tasks.close();
        door.tasks.wait().await;
    };
    tokio::select! {
        () = all => {}
        () = gone => {}
    }
    let (over, tasks) = (door.over.clone(), door.tasks.clone());
    // Whoever still works hears that nobody wants to know.
    over.cancel();
    if let Some(session) = door.session() {
        project.dismiss(&session.id);
    }
    drop(door);
    tasks.close();
    tasks.wait().await;
    // Ends with the last who could say something.
    let _ = writer.await;
}

async fn write(mut lines: mpsc::Receiver<Bytes>, mut to_client: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        let written = async {
            to_client.write_all(&line).await?;
            if !line.ends_with(b"\n") {
                to_client.write_all(b"\n").await?;
            }
            to_client.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

struct Door {
    project: Arc<Project>,
    out: mpsc::Sender<Bytes>,
    /// Of a client that shook hands.
    session: Mutex<Option<Arc<Session>>>,
    /// Requests that stand alone and are under way.
    alone: Arc<Mutex<HashMap<String, CancellationToken>>>,
    calls: Arc<Semaphore>,
    tasks: TaskTracker,
    over: CancellationToken,
}

impl Door {
    fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn read(&self, from_client: impl AsyncRead + Unpin) {
        let mut lines = Lines::new(from_client, LINE_BYTES_MAX);
        while let Ok(Some(line)) = lines.next().await {
            let answer = match line {
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => None,
                Line::Whole(line) => self.take(&line),
                Line::TooLong { .. } => {
                    Some(refused(RawValue::NULL, RpcError::new(INVALID_REQUEST, "the message is too long")))
                }
            };
            if let Some(answer) = answer
                && self.out.send(answer).await.is_err()
            {
                return;
            }
        }
    }

    /// What can be answered at once is; the rest is begun.
    fn take(&self, line: &[u8]) -> Option<Bytes> {
        let message = match FromClient::parse(line) {
            Ok(message) => message,
            Err(error) => return Some(refused(RawValue::NULL, error)),
        };
        match &message {
            FromClient::Request { id, method, params } if method == "initialize" => {
                return Some(self.open(id, *params));
            }
            FromClient::Request { id, method, params } => match Asked::read(id, method, *params, None) {
                Ok(Some(asked)) => return self.take_alone(asked),
                Ok(None) => {}
                Err(error) => return Some(refused(id, error)),
            },
            FromClient::Notification { method, params } if method == "notifications/cancelled" => {
                self.call_off(*params);
            }
            FromClient::Notification { .. } | FromClient::Answer { .. } => {}
        }
        let Some(session) = self.session() else {
            let FromClient::Request { id, .. } = &message else { return None };
            return Some(refused(id, RpcError::new(INVALID_REQUEST, "begin with `initialize`")));
        };
        let id = if let FromClient::Request { id, .. } = &message { Some((*id).to_owned()) } else { None };
        match endpoint::receive(&self.project, &session, message, caller()) {
            Received::Accepted => None,
            Received::Exchange(exchange) => self.begin(&id?, exchange, CancellationToken::new(), None),
        }
    }

    fn open(&self, id: &RawValue, params: Option<&RawValue>) -> Bytes {
        if self.session().is_some() {
            return refused(id, RpcError::new(INVALID_REQUEST, "this client has shaken hands already"));
        }
        match endpoint::open_session(&self.project, id, params, None) {
            Ok((session, hello)) => {
                *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
                let (out, over) = (self.out.clone(), self.over.clone());
                tokio::spawn(async move {
                    over.run_until_cancelled(pass_on(&session.general, 0, &out)).await;
                });
                hello.into()
            }
            Err(error) => refused(id, error),
        }
    }

    fn take_alone(&self, asked: Asked<'_>) -> Option<Bytes> {
        let id = asked.id.to_owned();
        let cancelled = CancellationToken::new();
        {
            let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
            if alone.insert(id.get().to_owned(), cancelled.clone()).is_some() {
                let refusal = RpcError::new(INVALID_REQUEST, "a request of this id is under way");
                return Some(refused(&id, refusal));
            }
        }
        let forget = Forget { alone: self.alone.clone(), id: id.get().to_owned() };
        if asked.method == "subscriptions/listen" {
            return match alone::listen(&self.project, &asked, caller()) {
                Ok(listener) => {
                    let (out, over) = (self.out.clone(), self.over.clone());
                    tokio::spawn(async move {
                        let _forget = forget;
                        let general = listener.session.general.clone();
                        tokio::select! {
                            () = over.cancelled() => {}
                            () = cancelled.cancelled() => {}
                            () = pass_on(&general, 0, &out) => {}
                        }
                        let _ = out.send(listener.farewell(&id).into()).await;
                    });
                    None
                }
                Err(error) => Some(refused(&id, error)),
            };
        }
        let exchange = alone::receive(&self.project, asked, caller());
        self.begin(&id, exchange, cancelled, Some(forget))
    }

    fn call_off(&self, params: Option<&RawValue>) {
        let Some(id) = params.and_then(|params| raw::at(params, &["requestId"])) else { return };
        let alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cancelled) = alone.get(id.get()) {
            cancelled.cancel();
        }
    }

    fn begin(
        &self,
        id: &RawValue,
        exchange: Exchange,
        cancelled: CancellationToken,
        forget: Option<Forget>,
    ) -> Option<Bytes> {
        let Ok(place) = self.calls.clone().try_acquire_owned() else {
            return Some(refused(id, RpcError::new(-32000, "too many requests are under way")));
        };
        let (out, over) = (self.out.clone(), self.over.clone());
        self.tasks.spawn(async move {
            let _held: (OwnedSemaphorePermit, Option<Forget>) = (place, forget);
            tokio::select! {
                () = over.cancelled() => {}
                () = cancelled.cancelled() => {}
                () = carry(exchange, &out) => {}
            }
        });
        None
    }
}

/// What is said meanwhile, then the answer.
async fn carry(exchange: Exchange, out: &mpsc::Sender<Bytes>) {
    let Exchange { stream, mut from, mut answer } = exchange;
    let answered = loop {
        tokio::select! {
            biased;
            next = stream.after(from) => match next {
                Next::Message(number, message) => {
                    from = number;
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
                Next::End => break answer.await,
            },
            answered = &mut answer => break answered,
        }
    };
    stream.finish(None);
    pass_on(&stream, from, out).await;
    if let Some(answered) = answered {
        // To who is gone there is nothing to say.
        let _ = out.send(answered.message.into()).await;
    }
}

/// Everything from after this message on, until the end.
async fn pass_on(stream: &Outbox, mut from: u64, out: &mpsc::Sender<Bytes>) {
    while let Next::Message(number, message) = stream.after(from).await {
        from = number;
        if out.send(message).await.is_err() {
            return;
        }
    }
}

/// While it lives, a request of this id is under way.
struct Forget {
    alone: Arc<Mutex<HashMap<String, CancellationToken>>>,
    id: String,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

fn caller() -> Caller {
    Caller {
        name: "stdio".to_owned(),
        trace_id: uuid::Uuid::new_v4().simple().to_string(),
        ..Caller::default()
    }
}

fn refused(id: &RawValue, error: RpcError) -> Bytes {
    response(id, &Reply::Error(error)).into()
}
