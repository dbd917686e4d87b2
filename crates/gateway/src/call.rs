//! One call: to whom, over which conversation, and what is kept of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofer_mcp::era::{self, Era};
use cofer_mcp::message::Reply;
use cofer_mcp::{CallError, raw};
use cofer_model::mask::Mask;
use cofer_model::{CallId, CallStatus, Kind, Moment, ProjectId, RunId};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use crate::House;
use crate::catalogue::Answerer;
use crate::desk::next_number;
use crate::journal::Line;
use crate::native::{NATIVE, NativeCall, NativeProgress, text_result};
use crate::outbox::Outbox;
use crate::project::Project;
use crate::record::Taken;
use crate::rounds::{Clock, rounds};
use crate::session::{Session, TOKEN};
use crate::slot::Unreached;
use crate::upstream::Upstream;

/// So much of a tool's name is recorded.
const RECORDED_NAME_BYTES_MAX: usize = 1 << 10;

/// Who calls, for the record.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub name: String,
    pub trace_id: String,
    pub run: Option<RunId>,
    pub step: Option<i64>,
}

/// A tool by the name it has here, and what it is called with.
#[derive(Clone, Debug)]
pub struct ToolAsked {
    pub name: String,
    pub arguments: Option<Box<RawValue>>,
}

impl ToolAsked {
    pub(crate) fn new(name: &str, arguments: Option<&RawValue>) -> Self {
        Self { name: name.to_owned(), arguments: arguments.map(ToOwned::to_owned) }
    }

    /// From what `tools/call` takes; `None` if that names no tool.
    pub fn read(params: &RawValue) -> Option<Self> {
        let [name, arguments] = raw::several(params, ["name", "arguments"]);
        Some(Self::new(&name.and_then(raw::text)?, arguments))
    }
}

/// The parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub said: Box<RawValue>,
    /// Without what a request of the later era says of itself, if somebody has taken it out already.
    pub bare: Option<Box<RawValue>>,
}

impl Params {
    pub(crate) fn new(said: Box<RawValue>) -> Self {
        Self { said, bare: None }
    }

    fn renamed(self, name: &str) -> Self {
        let name = raw::quoted(name);
        let with = |params: Box<RawValue>| raw::with(&params, &["name"], &name).unwrap_or(params);
        Self { said: with(self.said), bare: self.bare.map(with) }
    }

    /// For a server of this era.
    fn fit_for(self, era: Era) -> Box<RawValue> {
        match era {
            Era::Standalone => self.said,
            Era::Handshake => self.bare.unwrap_or_else(|| era::unintroduced(self.said)),
        }
    }
}

/// A client that hears what is said while its call is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub session: &'a Arc<Session>,
    pub stream: &'a Arc<Outbox>,
}

/// Why a call has no answer of the server's.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CallFailed {
    pub kind: Kind,
    pub message: String,
    pub may_have_executed: bool,
    /// Its server ended in the middle of it.
    pub server_ended: bool,
    pub retry_after: Option<Duration>,
}

impl CallFailed {
    fn unreached(server: &str, unreached: &Unreached) -> Self {
        Self {
            kind: unreached.kind,
            message: format!("server `{server}` cannot be reached: {}", unreached.reason),
            may_have_executed: false,
            server_ended: false,
            retry_after: unreached.retry_after,
        }
    }

    fn late(server: &str, timeout: Duration) -> Self {
        Self {
            kind: Kind::Timeout,
            message: format!("server `{server}` did not answer within {} ms", timeout.as_millis()),
            may_have_executed: true,
            server_ended: false,
            retry_after: None,
        }
    }

    fn unanswered(server: &str, error: CallError, timeout: Duration) -> Self {
        if error == CallError::Timeout {
            return Self::late(server, timeout);
        }
        Self {
            kind: error.kind(),
            message: format!("server `{server}`: {error}"),
            may_have_executed: !matches!(error, CallError::Gone | CallError::QueueFull),
            server_ended: error == CallError::MayHaveExecuted,
            retry_after: None,
        }
    }
}

impl Project {
    /// Calls a tool by the name it has here. `params` is what `tools/call` takes: `name`, `arguments`, `_meta` and whatever else.
    pub async fn call_tool(
        &self,
        name: &str,
        params: Box<RawValue>,
        timeout: Option<Duration>,
        caller: &Caller,
    ) -> Result<Reply, CallFailed> {
        let tool = ToolAsked::new(name, raw::at(&params, &["arguments"]));
        self.call_tool_for(&tool, Params::new(params), timeout, caller, None).await
    }

    /// Records that a tool was not called, and what was said instead.
    pub async fn decline_tool(&self, name: &str, params: &RawValue, words: &str, caller: &Caller) {
        let tool = ToolAsked::new(name, raw::at(params, &["arguments"]));
        let mut recording = Recording::begin(&self.house, self.id, &tool, caller);
        if let Some(route) = self.catalogue().route(name) {
            route.answerer.server_name().clone_into(&mut recording.server);
        }
        recording.finish(Ok(&Reply::Result(text_result(words, true)))).await;
    }

    pub(crate) async fn call_tool_for(
        &self,
        tool: &ToolAsked,
        params: Params,
        timeout: Option<Duration>,
        caller: &Caller,
        client: Option<Client<'_>>,
    ) -> Result<Reply, CallFailed> {
        let mut recording = Recording::begin(&self.house, self.id, tool, caller);
        // In a box of its own: in one with the request it would be larger than what allocators keep at hand.
        let outcome = Box::pin(self.routed(tool, params, timeout, caller, client, &mut recording)).await;
        recording.finish(outcome.as_ref()).await;
        outcome
    }

    async fn routed(
        &self,
        tool: &ToolAsked,
        params: Params,
        timeout: Option<Duration>,
        caller: &Caller,
        client: Option<Client<'_>>,
        recording: &mut Recording<'_>,
    ) -> Result<Reply, CallFailed> {
        let name = &*tool.name;
        let catalogue = self.catalogue_with(name).await;
        let Some(route) = catalogue.route(name) else {
            return Ok(Reply::Result(text_result(&format!("Unknown tool: {name}"), true)));
        };
        route.answerer.server_name().clone_into(&mut recording.server);
        let upstream = match &route.answerer {
            Answerer::Server(upstream) => upstream,
            Answerer::Native(native) => {
                let call = NativeCall {
                    arguments: tool.arguments.as_deref(),
                    project: self.id,
                    trace_id: &caller.trace_id,
                    progress: NativeProgress::of(client, &params.said),
                };
                let answer = native.handler.call(call);
                // What Cofer does itself has limits of its own; a shorter one may be asked for.
                let Some(timeout) = timeout else { return Ok(Reply::Result(answer.await)) };
                let answer = tokio::time::timeout(timeout, answer).await;
                return answer.map(Reply::Result).map_err(|_| CallFailed::late(NATIVE, timeout));
            }
        };
        let params = if *route.name == *name { params } else { params.renamed(&route.name) };
        let repeats = route.is_safe_to_repeat && self.repeats_safe_calls();
        let again = repeats.then(|| params.clone());
        let mask = &mut recording.mask;
        let sent = self.send(upstream, "tools/call", Some(params), timeout, client, Some(mask)).await;
        match (sent, again) {
            (Err(failed), Some(again)) if failed.server_ended => {
                let server = upstream.name();
                tracing::info!(
                    "server {server} ended in a call of {name}, which is safe to repeat: it is made once more"
                );
                let left =
                    timeout.unwrap_or(self.house.call_timeout).saturating_sub(recording.began.elapsed());
                let mask = &mut recording.mask;
                let sent = self.send(upstream, "tools/call", Some(again), Some(left), client, Some(mask));
                let sent = Box::pin(sent).await;
                // One that did not leave changes nothing about the first.
                sent.map_err(|later| if later.may_have_executed { later } else { failed })
            }
            (sent, _) => sent,
        }
    }

    /// Sends a request to a server, with the progress of it going back to the client.
    pub(crate) async fn send(
        &self,
        upstream: &Upstream,
        method: &str,
        params: Option<Params>,
        timeout: Option<Duration>,
        client: Option<Client<'_>>,
        mask: Option<&mut Option<Arc<Mask>>>,
    ) -> Result<Reply, CallFailed> {
        let (server, timeout) = (upstream.name(), timeout.unwrap_or(self.house.call_timeout));
        let deadline = Instant::now() + timeout;
        let session = client.map(|client| client.session);
        let connection = match upstream.open_connection(session) {
            Some(connection) => connection,
            // Aside, so that who need not wait does not carry the room for it.
            None => Box::pin(timeout_at(deadline, upstream.connection(session)))
                .await
                .map_err(|_| CallFailed { may_have_executed: false, ..CallFailed::late(server, timeout) })?
                .map_err(|unreached| CallFailed::unreached(server, &unreached))?,
        };
        if let Some(mask) = mask {
            *mask = Some(connection.dialled.mask.clone());
        }
        let number = next_number();
        let era = if connection.dialled.is_standalone() { Era::Standalone } else { Era::Handshake };
        let params = params.map(|params| params.fit_for(era));
        let (params, token) = with_own_token(params, number, client.is_some());
        let _entered = client.map(|client| {
            if token.is_some() {
                client.stream.set_token(token.as_deref());
            }
            connection.desk.enter(number, client.session, client.stream)
        });
        let clock = Clock { deadline, timeout, session: client.map(|client| &**client.session) };
        let reply = if era == Era::Standalone {
            Box::pin(rounds(&connection.dialled, method, params, client, clock)).await
        } else {
            if let Some(level) = client.and_then(|client| client.session.level_of_request()) {
                Box::pin(connection.at_least_as_chatty(level)).await;
            }
            match connection.dialled.pump.call_patiently(method, params) {
                Ok(answer) => clock.wait(answer).await,
                Err(refused) => Err(refused),
            }
        };
        if let (Ok(Reply::Result(result)), Some(client), "tools/call") = (&reply, client, method) {
            self.tasks.learn(result, upstream.entry.id, client.session.owner);
        }
        reply.map_err(|error| CallFailed::unanswered(server, error, timeout))
    }
}

/// The parameters with a progress token of ours, and the client's own. Without a client nobody would hear of any progress.
fn with_own_token(
    params: Option<Box<RawValue>>,
    number: u64,
    has_client: bool,
) -> (Option<Box<RawValue>>, Option<Box<RawValue>>) {
    let Some(params) = params else { return (None, None) };
    if !has_client || !params.get().contains("progressToken") {
        return (Some(params), None);
    }
    let Some(token) = raw::at(&params, &TOKEN).map(ToOwned::to_owned) else { return (Some(params), None) };
    match raw::with(&params, &TOKEN, &number.to_string()) {
        Some(own) => (Some(own), Some(token)),
        None => (Some(params), None),
    }
}

/// A call on its way into the record; also when its caller leaves, which is when this is dropped unfinished.
#[derive(Debug)]
pub struct Recording<'a> {
    house: &'a House,
    project: ProjectId,
    tool: &'a ToolAsked,
    server: String,
    caller: &'a Caller,
    mask: Option<Arc<Mask>>,
    began: Instant,
    done: bool,
}

impl<'a> Recording<'a> {
    pub(crate) fn begin(
        house: &'a House,
        project: ProjectId,
        tool: &'a ToolAsked,
        caller: &'a Caller,
    ) -> Self {
        house.calls_under_way.fetch_add(1, Ordering::Relaxed);
        Self {
            house,
            project,
            tool,
            server: String::new(),
            caller,
            mask: None,
            began: Instant::now(),
            done: false,
        }
    }

    fn taken<'b>(&'b self, status: CallStatus, output: Option<&'b RawValue>) -> Taken<'b> {
        let line = Line {
            id: CallId::generate(),
            project: self.project,
            run: self.caller.run,
            step: self.caller.step,
            tool: cut(&self.tool.name).into(),
            server: (&*self.server).into(),
            input: None,
            output: None,
            status,
            took_ms: i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX),
            caller: (&*self.caller.name).into(),
            trace: (&*self.caller.trace_id).into(),
            ended_unix_ms: Moment::now().unix_ms(),
        };
        let mask = self.mask.as_deref().unwrap_or(&self.house.no_mask);
        Taken { line, input: self.tool.arguments.as_deref(), output, mask }
    }

    /// Which server it goes to, and what of its words is not written down.
    #[must_use]
    pub fn to(mut self, server: &str, mask: Arc<Mask>) -> Self {
        server.clone_into(&mut self.server);
        self.mask = Some(mask);
        self
    }

    pub async fn finish(&mut self, outcome: Result<&Reply, &CallFailed>) {
        let words;
        let (status, output) = match outcome {
            Ok(Reply::Result(result)) if is_error(result) => (CallStatus::Error, Some(&**result)),
            Ok(Reply::Result(result)) => (CallStatus::Completed, Some(&**result)),
            Ok(Reply::Error(error)) => {
                words = serde_json::value::to_raw_value(error).ok();
                (CallStatus::Error, words.as_deref())
            }
            Err(failed) => {
                let status =
                    if failed.kind == Kind::Timeout { CallStatus::Timeout } else { CallStatus::Error };
                let said = serde_json::json!({"code": failed.kind.code(), "message": failed.message});
                words = serde_json::value::to_raw_value(&said).ok();
                (status, words.as_deref())
            }
        };
        self.house.recorder.room().await;
        let noted = self.house.recorder.take(self.taken(status, output));
        // Not before: whoever leaves while there is no room has been called, too.
        self.done = true;
        // Whoever else has an answer by now is let in first: one write is enough for all. One who calls alone is not kept waiting.
        if noted.is_some() && self.house.calls_under_way.load(Ordering::Relaxed) > 1 {
            tokio::task::yield_now().await;
        }
    }
}

/// Nobody's tool has such a name; but anybody can ask for one.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(RECORDED_NAME_BYTES_MAX)]
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.done {
            drop(self.house.recorder.take(self.taken(CallStatus::Cancelled, None)));
        }
        self.house.calls_under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_error(result: &RawValue) -> bool {
    result.get().contains("isError") && raw::at(result, &["isError"]).is_some_and(|flag| flag.get() == "true")
}
