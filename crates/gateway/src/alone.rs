//! Requests that stand alone, as clients send them since 2026-07-28: no session, no handshake; each says what its client can do.
//!
//! ```text
//!   request ─► running ─┬─ answered ────────────────────────────► result
//!                ▲      └─ its server asks something ─► parked ─► `input_required`, with a ticket
//!                └────── the client comes back with it ──┘
//! ```
//!
//! A server that asks in the middle of a call, as those of the handshake era do, does not notice: its call goes on where it was.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use cofer_mcp::era::{
    Introduction, Meta, SERVER_INFO_KEY, STANDALONE_VERSION, UNSUPPORTED_VERSION, may_be_introduced,
};
use cofer_mcp::message::{INVALID_PARAMS, METHOD_NOT_FOUND, Reply, RpcError, response};
use cofer_mcp::raw;
use futures_util::future::BoxFuture;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::call::{Caller, ToolAsked};
use crate::endpoint::{Answer, Answered, Exchange, Request, kept, offered, server_info};
use crate::listening::Wanted;
use crate::lists::List;
use crate::outbox::Outbox;
use crate::project::Project;
use crate::session::{QUESTION_PATIENCE, Session};
use crate::state::{Bearer, Keepsake};
use crate::translate;
use crate::visitors::Visit;

/// Those that were there before and are no more.
const GONE: [&str; 5] =
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
/// Those that may be answered with a question.
const MAY_ASK: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// A request as it came, and who sent it.
#[derive(Debug)]
pub struct Asked<'a> {
    pub id: &'a RawValue,
    pub method: &'a str,
    pub params: Option<&'a RawValue>,
    /// Those of a call without what it says of itself, for servers of the earlier era.
    bare: Option<Box<RawValue>>,
    pub introduction: Introduction<'a>,
    /// Of what is called, got, read or waited for.
    pub name: Option<Cow<'a, str>>,
    /// What a tool is called with.
    arguments: Option<&'a RawValue>,
    /// What an earlier answer gave it to bring back.
    state: Option<Cow<'a, str>>,
    /// Bearer token it came with.
    pub owner: Option<uuid::Uuid>,
}

/// Where a request of this method says what it is about.
pub fn name_field(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

impl<'a> Asked<'a> {
    /// `None` for a request that says nothing of itself, as those of the earlier era do.
    pub fn read(
        id: &'a RawValue,
        method: &'a str,
        params: Option<&'a RawValue>,
        owner: Option<uuid::Uuid>,
    ) -> Result<Option<Self>, RpcError> {
        let Some(found) = params.filter(|params| may_be_introduced(params)) else { return Ok(None) };
        // However these are written: a state that we overlook would reach the server unopened.
        let names = ["_meta", name_field(method).unwrap_or("name"), "requestState", "arguments"];
        let [Some(meta), name, state, arguments] = raw::several(found, names) else { return Ok(None) };
        let said = Meta::read(meta)?;
        // Most servers are of the earlier era, and most requests that they get are calls.
        let bare = if method == "tools/call" { said.taken_out_of(found, meta) } else { None };
        let Some(introduction) = Introduction::read(said)? else { return Ok(None) };
        let (name, state) = (name.and_then(raw::text), state.and_then(raw::text));
        Ok(Some(Self { id, method, params, bare, introduction, name, arguments, state, owner }))
    }

    fn check(&self) -> Result<(), RpcError> {
        if self.introduction.protocol_version != STANDALONE_VERSION {
            let requested = &self.introduction.protocol_version;
            let data = json!({"supported": [STANDALONE_VERSION], "requested": requested});
            let message = format!("requests that stand alone are taken in version {STANDALONE_VERSION}");
            return Err(RpcError { code: UNSUPPORTED_VERSION, message, data: to_raw_value(&data).ok() });
        }
        if GONE.contains(&self.method) {
            let message =
                format!("Method not found: `{}` is not in version {STANDALONE_VERSION}", self.method);
            return Err(RpcError::new(METHOD_NOT_FOUND, message));
        }
        Ok(())
    }
}

/// A call under way, with everything that it needs.
pub(crate) struct Running {
    call: BoxFuture<'static, Answer>,
    visit: Visit,
    stream: Arc<Outbox>,
    /// The last message of the stream that its client was told when it was last answered.
    told: u64,
    method: String,
    name: String,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("method", &self.method)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Takes a request that stands alone.
pub fn receive(project: &Arc<Project>, mut asked: Asked<'_>, caller: Caller) -> Exchange {
    let (id, method) = (asked.id.to_owned(), asked.method.to_owned());
    match prepare(project, &mut asked, caller) {
        Ok(running) => {
            let (stream, from, project) = (running.stream.clone(), running.told, project.clone());
            let answer = Box::pin(async move {
                let list = List::of(&method);
                let lifetime = |project: &Project| list.map_or(Duration::ZERO, |list| project.lifetime(list));
                // A list that changes while it is answered is not good for as long as the new one is.
                let before = lifetime(&project);
                let reply = running.drive(&project).await.unwrap_or_else(Reply::Error);
                let after = lifetime(&project);
                let lifetime = if before.is_zero() { after } else { after.min(before) };
                Some(translate::for_standalone(&id, &method, reply, lifetime))
            });
            Exchange { stream, from, answer }
        }
        Err(error) => Exchange {
            stream: Arc::new(Outbox::new(1)),
            from: 0,
            answer: Box::pin(async move { Some(Answered::to(&id, &Reply::Error(error))) }),
        },
    }
}

/// What is to be done: something new, or something that waits for this.
fn prepare(project: &Arc<Project>, asked: &mut Asked<'_>, caller: Caller) -> Result<Running, RpcError> {
    asked.check()?;
    let (mut params, mut bare) = (asked.params.map(ToOwned::to_owned), asked.bare.take());
    let name = asked.name.as_deref().unwrap_or_default();
    if let Some(state) = asked.state.as_deref().filter(|_| MAY_ASK.contains(&asked.method)) {
        let bearer = Bearer { owner: asked.owner, project: project.id.0, method: asked.method, name };
        let stale = || {
            RpcError::new(INVALID_PARAMS, "this `requestState` is none of ours, or not any more; begin anew")
        };
        match project.house.sealer.open(state, bearer).ok_or_else(stale)? {
            Keepsake::Parked(ticket) => {
                let running = project.house.lot.take(&ticket).ok_or_else(stale)?;
                running.hear(asked.params);
                return Ok(running);
            }
            Keepsake::Servers(wanted) => {
                bare = None;
                params =
                    params.and_then(|params| raw::with(&params, &["requestState"], &raw::quoted(&wanted)));
            }
        }
    }
    let visit = Visit::begin(project, asked.owner, &asked.introduction);
    if !visit.session.set_level_of_request(asked.introduction.log_level.as_deref()) {
        return Err(RpcError::new(INVALID_PARAMS, "the level of logging is none that is known"));
    }
    let stream = visit.session.stream();
    let mut request = Request {
        project: project.clone(),
        session: visit.session.clone(),
        stream: stream.clone(),
        caller,
        method: kept(asked.method.into()),
        tool: asked.name.as_deref().map(|name| ToolAsked::new(name, asked.arguments)),
        params,
        bare,
    };
    let call: BoxFuture<'static, Answer> = match asked.method {
        "server/discover" => Box::pin(discover(project.clone())),
        _ => Box::pin(async move { request.answer().await }),
    };
    let (method, name) = (asked.method.to_owned(), name.to_owned());
    Ok(Running { call, visit, stream, told: 0, method, name })
}

impl Running {
    pub(crate) fn owner(&self) -> Option<uuid::Uuid> {
        self.visit.session.owner
    }

    /// Takes what the client was asked for, and what it calls the progress of the call now.
    fn hear(&self, params: Option<&RawValue>) {
        self.stream.set_token(params.and_then(|params| raw::at(params, &["_meta", "progressToken"])));
        let answers = params.and_then(|params| raw::at(params, &["inputResponses"])).and_then(raw::fields);
        for (number, answer) in answers.unwrap_or_default() {
            if let Ok(number) = number.parse() {
                self.visit.session.answered(number, Reply::Result(answer.to_owned()));
            }
        }
    }

    async fn drive(mut self, project: &Arc<Project>) -> Answer {
        loop {
            tokio::select! {
                biased;
                reply = &mut self.call => return Ok(self.sealed(project, reply?)),
                () = self.visit.session.is_asked() => {}
            }
            if MAY_ASK.contains(&self.method.as_str()) {
                return self.park(project);
            }
            self.visit.session.forget_questions();
        }
    }

    /// Waits for the client from here on.
    fn park(mut self, project: &Project) -> Answer {
        self.told = self.stream.last();
        let (session, method, name) = (self.visit.session.clone(), self.method.clone(), self.name.clone());
        let requests = session.input_requests();
        let Ok(ticket) = project.house.lot.park(self) else {
            return Err(RpcError::new(crate::endpoint::UNAVAILABLE, "too many calls wait for their clients"));
        };
        let bearer = Bearer { owner: session.owner, project: project.id.0, method: &method, name: &name };
        let state = project.house.sealer.seal(&Keepsake::Parked(ticket), bearer, QUESTION_PATIENCE);
        let result = format!(
            "{{\"resultType\":\"input_required\",\"inputRequests\":{requests},\"requestState\":\"{state}\"}}"
        );
        RawValue::from_string(result)
            .map(Reply::Result)
            .map_err(|_| RpcError::new(INVALID_PARAMS, "what the server asks cannot be passed on"))
    }

    /// What a server wants back is held by the client for us.
    fn sealed(&self, project: &Project, reply: Reply) -> Reply {
        let Reply::Result(result) = &reply else { return reply };
        if !result.get().contains("\"requestState\"") {
            return reply;
        }
        let Some(state) = raw::text_at(result, &["requestState"]) else { return reply };
        let bearer =
            Bearer { owner: self.owner(), project: project.id.0, method: &self.method, name: &self.name };
        let sealed =
            project.house.sealer.seal(&Keepsake::Servers(state.into_owned()), bearer, QUESTION_PATIENCE);
        raw::with(result, &["requestState"], &raw::quoted(&sealed)).map_or(reply, Reply::Result)
    }
}

/// What there is here, for everybody who may ask.
async fn discover(project: Arc<Project>) -> Answer {
    // Who was never asked is now, so that what it adds is known.
    project.complete(List::Tools, project.house.list_patience).await;
    let mut result = json!({
        "supportedVersions": [STANDALONE_VERSION],
        "capabilities": offered(project.capabilities_of_servers(&["extensions"])),
        "_meta": {SERVER_INFO_KEY: server_info(&project)},
    });
    if let (Some(instructions), Some(result)) = (project.house.instructions, result.as_object_mut()) {
        result.insert("instructions".to_owned(), instructions.into());
    }
    to_raw_value(&result).map(Reply::Result).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

/// A client that listens until this is dropped.
#[derive(Debug)]
pub struct Listener {
    project: Arc<Project>,
    pub session: Arc<Session>,
}

/// Begins to listen (`subscriptions/listen`).
pub fn listen(project: &Arc<Project>, asked: &Asked<'_>, caller: Caller) -> Result<Listener, RpcError> {
    asked.check()?;
    let wanted =
        Wanted::read(asked.id, asked.params).map_err(|error| RpcError::new(INVALID_PARAMS, error))?;
    let uris: Vec<String> = wanted.uris().cloned().collect();
    let hello = wanted.acknowledgement();
    let session = Arc::new(Session::listening(asked.owner, &asked.introduction, wanted));
    session.general.push(hello);
    project.admit(session.clone());
    let listener = Listener { project: project.clone(), session: session.clone() };
    let project = project.clone();
    // Ends with the last of them.
    tokio::spawn(async move {
        for uri in uris {
            let params = RawValue::from_string(format!("{{\"uri\":{}}}", raw::quoted(&uri))).ok();
            let mut request = Request {
                project: project.clone(),
                stream: session.stream(),
                session: session.clone(),
                caller: caller.clone(),
                method: "resources/subscribe".into(),
                tool: None,
                params,
                bare: None,
            };
            if let Err(error) = request.answer().await {
                tracing::debug!("resource {uri} cannot be subscribed to: {}", error.message);
            }
        }
    });
    Ok(listener)
}

impl Listener {
    /// The answer to who listened, when we end it.
    pub fn farewell(&self, id: &RawValue) -> Vec<u8> {
        let result = self.session.wanted.as_ref().map_or_else(raw::empty_object, Wanted::farewell);
        response(id, &Reply::Result(result))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.project.dismiss(&self.session.id);
    }
}
