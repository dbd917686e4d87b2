//! A call to a server whose requests stand alone. When it answers that it needs something of the client first, a client of the
//! handshake era is asked that, on the stream of its call, and the call is made again with what it said; a client whose requests stand
//! alone is answered the same.

use std::sync::LazyLock;
use std::time::Duration;

use cofer_mcp::message::{INTERNAL_ERROR, Reply, RpcError};
use cofer_mcp::raw::{self, empty_object};
use cofer_mcp::{CallError, Face, Question};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};

use crate::call::Client;
use crate::dial::Dialled;
use crate::session::{QUESTION_PATIENCE, Session, level_name};
use crate::translate;

/// A server that asks for ever is not answered for ever.
const ROUNDS_MAX: usize = 64;

/// There is nobody who could answer anything.
static NOBODY: LazyLock<Face> = LazyLock::new(|| Face { capabilities: empty_object(), ..Face::default() });

/// Until when an answer is waited for. While the client itself is asked something, the clock stands still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock<'a> {
    pub deadline: Instant,
    pub timeout: Duration,
    pub session: Option<&'a Session>,
}

impl Clock<'_> {
    pub(crate) async fn wait(
        self,
        mut call: impl Future<Output = Result<Reply, CallError>> + Unpin,
    ) -> Result<Reply, CallError> {
        let mut deadline = self.deadline;
        loop {
            if let Ok(reply) = timeout_at(deadline, &mut call).await {
                return reply;
            }
            deadline =
                self.session.and_then(|session| session.more_time(self.timeout)).ok_or(CallError::Timeout)?;
        }
    }
}

pub(crate) async fn rounds(
    server: &Dialled,
    method: &str,
    params: Option<Box<RawValue>>,
    client: Option<Client<'_>>,
    clock: Clock<'_>,
) -> Result<Reply, CallError> {
    if is_settled_by_others(method) {
        return Ok(Reply::Result(empty_object()));
    }
    let face = client.map_or(&*NOBODY, |client| &client.session.face);
    let level = client.and_then(|client| client.session.level_if_set()).map(level_name);
    let mut params = server.dressed(params, face, level);
    let mut last = None;
    for _ in 0..ROUNDS_MAX {
        let reply = clock.wait(server.pump.call_patiently(method, params.clone())?).await?;
        if client.is_some_and(|client| client.session.is_standalone()) {
            return Ok(reply);
        }
        let Reply::Result(result) = &reply else { return Ok(reply) };
        let Some(client) = client.filter(|_| needs_input(result)) else {
            return Ok(translate::for_handshake(reply));
        };
        params = params.map(|params| answered(&params, result)).unwrap_or_default();
        if let Some(requests) = raw::at(result, &["inputRequests"]) {
            match answers(client, requests).await {
                Ok(answers) => {
                    params = params.and_then(|params| raw::with_new(&params, "inputResponses", &answers));
                }
                Err(refusal) => return Ok(Reply::Error(refusal)),
            }
        }
        last = Some(reply);
    }
    last.ok_or(CallError::Unreadable)
}

/// What the earlier era says to a server, and the later one with each request, or by listening.
fn is_settled_by_others(method: &str) -> bool {
    matches!(method, "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe")
}

fn needs_input(result: &RawValue) -> bool {
    result.get().contains("input_required")
        && raw::text_at(result, &["resultType"]).is_some_and(|kind| kind == "input_required")
}

/// The request again, with what the server wants back and without what was said to an earlier question.
fn answered(params: &RawValue, result: &RawValue) -> Option<Box<RawValue>> {
    let mut params = params.to_owned();
    for field in ["inputResponses", "requestState"] {
        params = raw::without(&params, field).unwrap_or(params);
    }
    match raw::at(result, &["requestState"]) {
        Some(state) => raw::with_new(&params, "requestState", state.get()),
        None => Some(params),
    }
}

/// What the client says to each of these. One that it cannot answer ends the call: the server would only ask again.
async fn answers(client: Client<'_>, requests: &RawValue) -> Result<String, RpcError> {
    let asked = raw::fields(requests).unwrap_or_default().into_iter().map(|(key, request)| {
        let method = raw::text_at(request, &["method"]).unwrap_or_default().into_owned();
        let params = raw::at(request, &["params"]).map(ToOwned::to_owned);
        let (question, answer) = Question::on_behalf(method, params);
        client.session.ask(None, client.stream, question);
        async move { (key, answer.await) }
    });
    let replies = timeout(QUESTION_PATIENCE, join_all(asked.collect::<Vec<_>>())).await;
    let late = |_| RpcError::new(INTERNAL_ERROR, "the client did not answer in time what the server asked");
    let mut answers = Vec::new();
    for (key, reply) in replies.map_err(late)? {
        match reply {
            Ok(Reply::Result(result)) => answers.push(format!("{}:{result}", raw::quoted(&key))),
            Ok(Reply::Error(refusal)) => return Err(refusal),
            Err(_nobody) => {
                return Err(RpcError::new(INTERNAL_ERROR, "the client did not answer what the server asked"));
            }
        }
    }
    Ok(format!("{{{}}}", answers.join(",")))
}
