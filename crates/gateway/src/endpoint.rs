//! What a client may ask, and how each is answered; and the handshake of those who shake hands. Requests that stand alone are taken
//! by [`crate::alone`], and answered here as well.
//!
//! ```text
//!   body ─► receive ─┬─► Accepted                      a notification, an answer to a question
//!                    └─► Exchange { stream, answer }   a request: what is said meanwhile, and its answer
//! ```
//!
//! The door (HTTP, stdio) decides how both reach the client; here it is only decided what they are.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError};

use cofer_mcp::client::FromClient;
use cofer_mcp::message::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Reply, RpcError, response};
use cofer_mcp::raw::empty_object;
use cofer_mcp::{Face, raw};
use cofer_model::Kind;
use futures_util::future::BoxFuture;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::call::{CallFailed, Caller, Client, Params, ToolAsked};
use crate::lists::{Items, List};
use crate::names;
use crate::outbox::Outbox;
use crate::project::{Missing, Project, find, missing_meta};
use crate::session::Session;
use crate::upstream::Upstream;

/// Newest first.
pub const HANDSHAKE_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Codes of ours for what is not the server's doing.
pub(crate) const UNAVAILABLE: i64 = -32000;
const TIMED_OUT: i64 = -32001;
const RESOURCE_NOT_FOUND: i64 = -32002;

/// What becomes of a message.
pub enum Received {
    /// There is nothing to answer.
    Accepted,
    Exchange(Exchange),
}

/// A request being answered.
pub struct Exchange {
    /// What is said to the client meanwhile.
    pub stream: Arc<Outbox>,
    /// The last message of it that the client has heard already.
    pub from: u64,
    /// `None` if the client called it off. Dropping it calls the request off.
    pub answer: BoxFuture<'static, Option<Answered>>,
}

/// An answer, ready to be sent.
#[derive(Debug)]
pub struct Answered {
    pub message: Vec<u8>,
    /// If it is an error.
    pub code: Option<i64>,
}

impl Answered {
    pub(crate) fn to(id: &RawValue, reply: &Reply) -> Self {
        let code = if let Reply::Error(error) = reply { Some(error.code) } else { None };
        Self { message: response(id, reply), code }
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accepted => "Accepted",
            Self::Exchange(_) => "Exchange",
        })
    }
}

/// The handshake of a new client: its session, and the answer to it.
pub fn open_session(
    project: &Project,
    id: &RawValue,
    params: Option<&RawValue>,
    owner: Option<uuid::Uuid>,
) -> Result<(Arc<Session>, Vec<u8>), RpcError> {
    let params = params.ok_or_else(|| RpcError::new(INVALID_PARAMS, "`initialize` needs parameters"))?;
    let asked = raw::text_at(params, &["protocolVersion"])
        .ok_or_else(|| RpcError::new(INVALID_PARAMS, "`protocolVersion` is missing"))?;
    let version =
        HANDSHAKE_VERSIONS.into_iter().find(|known| *known == asked).unwrap_or(HANDSHAKE_VERSIONS[0]);
    let part = |name: &str| raw::at(params, &[name]).map(ToOwned::to_owned);
    let cofer = Face::default();
    let face = Face {
        capabilities: part("capabilities").unwrap_or_else(empty_object),
        client_info: part("clientInfo").unwrap_or(cofer.client_info),
    };
    let session = Arc::new(Session::new(owner, version, face));
    project.admit(session.clone());
    let mut hello = json!({
        "protocolVersion": version,
        "capabilities": offered(project.capabilities_of_servers(&["tasks", "experimental"])),
        "serverInfo": server_info(project),
    });
    if let (Some(instructions), Some(hello)) = (project.house.instructions, hello.as_object_mut()) {
        hello.insert("instructions".to_owned(), instructions.into());
    }
    let hello =
        to_raw_value(&hello).map_err(|_| RpcError::new(INTERNAL_ERROR, "no answer could be written"))?;
    Ok((session, response(id, &Reply::Result(hello))))
}

/// What we can do, and what servers add to it.
pub(crate) fn offered(added: Map<String, Value>) -> Value {
    let mut capabilities = json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true},
        "logging": {},
        "completions": {},
    });
    if let Some(all) = capabilities.as_object_mut() {
        all.extend(added);
    }
    capabilities
}

pub(crate) fn server_info(project: &Project) -> Value {
    let title = format!("Cofer: {}", project.name());
    json!({"name": "cofer", "title": title, "version": env!("CARGO_PKG_VERSION")})
}

/// Takes one message of a client whose session is open.
pub fn receive(
    project: &Arc<Project>,
    session: &Arc<Session>,
    message: FromClient<'_>,
    caller: Caller,
) -> Received {
    match message {
        FromClient::Answer { id, reply } => {
            if let Ok(number) = id.get().trim_matches('"').parse() {
                session.answered(number, reply);
            }
            Received::Accepted
        }
        FromClient::Notification { method, params } => {
            hear(project, session, &method, params);
            Received::Accepted
        }
        FromClient::Request { id, method, params } => {
            let request = Request {
                project: project.clone(),
                session: session.clone(),
                stream: session.stream(),
                caller,
                method: kept(method),
                tool: None,
                params: params.map(ToOwned::to_owned),
                bare: None,
            };
            Received::Exchange(exchange(request, id.to_owned()))
        }
    }
}

/// Nearly always the same.
pub(crate) fn kept(method: Cow<'_, str>) -> Cow<'static, str> {
    const CALL: &str = "tools/call";
    if method == CALL { CALL.into() } else { method.into_owned().into() }
}

fn hear(project: &Project, session: &Arc<Session>, method: &str, params: Option<&RawValue>) {
    session.note_use();
    match method {
        "notifications/initialized" => {}
        "notifications/cancelled" => {
            if let Some(id) = params.and_then(|params| raw::at(params, &["requestId"])) {
                session.cancel_call(id.get());
            }
        }
        // Of what it was asked, under the number of the question.
        "notifications/progress" => {
            let number = params.and_then(|params| raw::at(params, &["progressToken"])?.get().parse().ok());
            if let (Some(number), Some(params)) = (number, params) {
                session.is_at(number, params);
            }
        }
        // Whatever else a client says of itself is for those who talk to this client alone.
        _ => project.upstreams().iter().for_each(|upstream| upstream.pass_down(session, method, params)),
    }
}

fn exchange(mut request: Request, id: Box<RawValue>) -> Exchange {
    let stream = request.stream.clone();
    let Some(mut underway) = request.session.begin_call(&id) else {
        let refusal = RpcError::new(INVALID_REQUEST, "a request of this id is under way");
        let answer = Box::pin(async move { Some(Answered::to(&id, &Reply::Error(refusal))) });
        return Exchange { stream, from: 0, answer };
    };
    let answer = Box::pin(async move {
        let reply = tokio::select! {
            biased;
            _ = &mut underway.cancelled => return None,
            reply = request.answer() => reply,
        };
        Some(Answered::to(&id, &reply.unwrap_or_else(Reply::Error)))
    });
    Exchange { stream, from: 0, answer }
}

/// A request of whichever era, and whom it is answered for.
pub(crate) struct Request {
    pub project: Arc<Project>,
    pub session: Arc<Session>,
    pub stream: Arc<Outbox>,
    pub caller: Caller,
    pub method: Cow<'static, str>,
    /// What is called, if somebody has looked already.
    pub tool: Option<ToolAsked>,
    pub params: Option<Box<RawValue>>,
    /// Those of a call without what it says of itself, if somebody has taken it out already.
    pub bare: Option<Box<RawValue>>,
}

pub(crate) type Answer = Result<Reply, RpcError>;

impl Request {
    pub(crate) async fn answer(&mut self) -> Answer {
        match &*self.method {
            "tools/call" => self.call_tool().await,
            // Aside: a call would carry the room for all of them with it.
            _ => Box::pin(self.answer_other()).await,
        }
    }

    async fn answer_other(&mut self) -> Answer {
        match &*self.method {
            "ping" => Ok(Reply::Result(empty_object())),
            "tools/list" => self.list_tools().await,
            "prompts/list" => self.list_prompts().await,
            "resources/list" => self.list_resources(List::Resources).await,
            "resources/templates/list" => self.list_resources(List::Templates).await,
            "prompts/get" => self.get_prompt().await,
            "resources/read" => self.of_resource().await,
            "resources/subscribe" => self.subscribe().await,
            "resources/unsubscribe" => self.unsubscribe().await,
            "completion/complete" => self.complete().await,
            "logging/setLevel" => self.set_level(),
            "tasks/get" | "tasks/update" | "tasks/cancel" | "tasks/result" => self.of_task().await,
            "initialize" => Err(RpcError::new(INVALID_REQUEST, "this session has shaken hands already")),
            _ => self.of_who_knows_it().await,
        }
    }

    fn client(&self) -> Client<'_> {
        Client { session: &self.session, stream: &self.stream }
    }

    pub(crate) fn text(&self, path: &[&str]) -> Result<String, RpcError> {
        let text = self.params.as_deref().and_then(|params| raw::text_at(params, path));
        text.map(Cow::into_owned).ok_or_else(|| missing(path))
    }

    fn cursor(&self) -> Result<Option<String>, RpcError> {
        let Some(params) = self.params.as_deref() else { return Ok(None) };
        match raw::at(params, &["cursor"]) {
            None => Ok(None),
            Some(cursor) if cursor.get() == "null" => Ok(None),
            Some(_) => self.text(&["cursor"]).map(Some),
        }
    }

    async fn call_tool(&mut self) -> Answer {
        let params = self.params.take().unwrap_or_else(empty_object);
        let tool = self.tool.take().or_else(|| ToolAsked::read(&params)).ok_or_else(|| missing(&["name"]))?;
        let params = Params { said: params, bare: self.bare.take() };
        let client = Some(Client { session: &self.session, stream: &self.stream });
        let outcome = self.project.call_tool_for(&tool, params, None, &self.caller, client).await;
        outcome.map_err(refusal)
    }

    async fn list_tools(&self) -> Answer {
        let cursor = self.cursor()?;
        let (_, missing) = self.project.whole_catalogue().await;
        self.session.note_listed();
        // Read after that, so that whatever changes later is told.
        let catalogue = self.project.catalogue();
        let page = catalogue.page(cursor.as_deref()).ok_or_else(no_such_cursor)?;
        let told = missing_meta(&missing).and_then(|meta| raw::with_new(page, "_meta", meta.get()));
        Ok(Reply::Result(told.unwrap_or_else(|| page.to_owned())))
    }

    async fn list_prompts(&self) -> Answer {
        self.no_cursor()?;
        let (there, missing) = self.project.complete(List::Prompts, self.project.house.list_patience).await;
        let offers = prompt_offers(&self.project, &there);
        let items = offers.iter().filter(|offer| offer.shadowed_by.is_none()).map(|offer| {
            let prompt = &there[offer.server].1[offer.item];
            if prompt.key == offer.name {
                return prompt.raw.get().to_owned();
            }
            let renamed = raw::with(&prompt.raw, &["name"], &raw::quoted(&offer.name));
            renamed.map_or_else(|| prompt.raw.get().to_owned(), |prompt| prompt.get().to_owned())
        });
        let page = format!("[{}]", items.collect::<Vec<_>>().join(","));
        listing("prompts", &page, &missing)
    }

    async fn list_resources(&self, list: List) -> Answer {
        self.no_cursor()?;
        let (there, missing) = self.project.complete(list, self.project.house.list_patience).await;
        let mut seen = std::collections::HashSet::new();
        let mut items = Vec::new();
        for (upstream, resources) in &there {
            for resource in resources.iter().filter(|resource| seen.insert(resource.key.clone())) {
                items.push(resource.raw.get());
                if list == List::Resources {
                    self.learn_home(&resource.key, upstream);
                }
            }
        }
        listing(list.field(), &format!("[{}]", items.join(",")), &missing)
    }

    fn no_cursor(&self) -> Result<(), RpcError> {
        if self.cursor()?.is_some() { Err(no_such_cursor()) } else { Ok(()) }
    }

    async fn get_prompt(&mut self) -> Answer {
        let name = self.text(&["name"])?;
        let (upstream, own) = self.prompt(&name).await?;
        self.rename(&["name"], &name, &own);
        self.forward(&upstream).await
    }

    /// Whose prompt it is, and what it is called there.
    async fn prompt(&self, name: &str) -> Result<(Arc<Upstream>, String), RpcError> {
        let (there, _) = self.project.complete(List::Prompts, self.project.house.list_patience).await;
        let offers = prompt_offers(&self.project, &there);
        let found = offers.iter().find(|offer| {
            let (upstream, prompts) = &there[offer.server];
            offer.name == name || names::qualified(upstream.name(), &prompts[offer.item].key) == name
        });
        let found = found.ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("Unknown prompt: {name}")))?;
        let (upstream, prompts) = &there[found.server];
        Ok((upstream.clone(), prompts[found.item].key.clone()))
    }

    fn rename(&mut self, path: &[&str], from: &str, to: &str) {
        if from != to
            && let Some(renamed) =
                self.params.as_deref().and_then(|params| raw::with(params, path, &raw::quoted(to)))
        {
            self.params = Some(renamed);
        }
    }

    pub(crate) async fn forward(&self, upstream: &Upstream) -> Answer {
        self.sent_to(upstream).await.map_err(refusal)
    }

    pub(crate) async fn sent_to(&self, upstream: &Upstream) -> Result<Reply, CallFailed> {
        let params = self.params.clone().map(Params::new);
        self.project.send(upstream, &self.method, params, None, Some(self.client()), None).await
    }

    async fn of_resource(&self) -> Answer {
        let uri = self.text(&["uri"])?;
        let mut last = None;
        for upstream in self.homes(&uri).await {
            match self.forward(&upstream).await {
                Ok(Reply::Result(result)) => {
                    self.learn_home(&uri, &upstream);
                    return Ok(Reply::Result(result));
                }
                otherwise => last = last.or(Some(otherwise)),
            }
        }
        last.unwrap_or_else(|| Err(RpcError::new(RESOURCE_NOT_FOUND, format!("Resource not found: {uri}"))))
    }

    fn learn_home(&self, uri: &str, upstream: &Upstream) {
        const HOMES_MAX: usize = 100_000;
        let mut homes = self.project.resource_homes.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() < HOMES_MAX {
            homes.insert(uri.to_owned(), upstream.entry.id);
        }
    }

    /// Whose resource it may be: the one that lists it; else those with a template that fits; else anybody with resources at all.
    async fn homes(&self, uri: &str) -> Vec<Arc<Upstream>> {
        let known =
            self.project.resource_homes.lock().unwrap_or_else(PoisonError::into_inner).get(uri).copied();
        if let Some(upstream) = known.and_then(|id| self.project.upstream(id)) {
            return vec![upstream];
        }
        let patience = self.project.house.list_patience;
        let (resources, _) = self.project.complete(List::Resources, patience).await;
        if let Some((upstream, _)) = resources.iter().find(|(_, items)| find(items, uri).is_some()) {
            return vec![upstream.clone()];
        }
        let (templates, _) = self.project.complete(List::Templates, patience).await;
        let fits = |items: &Items| items.iter().any(|template| template_fits(&template.key, uri));
        let fitting: Vec<_> =
            templates.iter().filter(|(_, items)| fits(items)).map(|(upstream, _)| upstream.clone()).collect();
        if fitting.is_empty() {
            resources.into_iter().map(|(upstream, _)| upstream).collect()
        } else {
            fitting
        }
    }

    async fn subscribe(&self) -> Answer {
        let uri = self.text(&["uri"])?;
        let reply = self.of_resource().await?;
        if matches!(reply, Reply::Result(_)) && !self.session.subscribe(&uri) {
            return Err(RpcError::new(UNAVAILABLE, "this session has too many subscriptions"));
        }
        self.subscriptions_changed(&uri);
        Ok(reply)
    }

    async fn unsubscribe(&self) -> Answer {
        let uri = self.text(&["uri"])?;
        self.session.unsubscribe(&uri);
        let others_want_it = std::sync::atomic::AtomicBool::new(false);
        self.project.each_session(|session| {
            if session.is_subscribed(&uri) {
                others_want_it.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        if others_want_it.into_inner() {
            return Ok(Reply::Result(empty_object()));
        }
        self.subscriptions_changed(&uri);
        self.of_resource().await
    }

    /// A server that is listened to is told anew what for.
    fn subscriptions_changed(&self, uri: &str) {
        let home =
            self.project.resource_homes.lock().unwrap_or_else(PoisonError::into_inner).get(uri).copied();
        if let Some(upstream) = home.and_then(|id| self.project.upstream(id)) {
            upstream.subscriptions_changed();
        }
    }

    async fn complete(&mut self) -> Answer {
        match self.text(&["ref", "type"])?.as_str() {
            "ref/prompt" => {
                let name = self.text(&["ref", "name"])?;
                let (upstream, own) = self.prompt(&name).await?;
                self.rename(&["ref", "name"], &name, &own);
                self.forward(&upstream).await
            }
            "ref/resource" => {
                let uri = self.text(&["ref", "uri"])?;
                let (there, _) =
                    self.project.complete(List::Templates, self.project.house.list_patience).await;
                let home = there.iter().find(|(_, items)| find(items, &uri).is_some());
                match home {
                    Some((upstream, _)) => self.forward(upstream).await,
                    None => Err(RpcError::new(INVALID_PARAMS, format!("Unknown resource template: {uri}"))),
                }
            }
            other => {
                Err(RpcError::new(INVALID_PARAMS, format!("`ref.type` is `{other}`, which is not known")))
            }
        }
    }

    fn set_level(&self) -> Answer {
        let level = self.text(&["level"])?;
        if !self.session.set_level(&level) {
            return Err(RpcError::new(INVALID_PARAMS, format!("`{level}` is no level of logging")));
        }
        for upstream in self.project.upstreams().iter() {
            upstream.tell_level(&self.session);
        }
        Ok(Reply::Result(empty_object()))
    }
}

fn missing(path: &[&str]) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("`{}` is missing, or is no text", path.join(".")))
}

fn prompt_offers(project: &Project, there: &[(Arc<Upstream>, Items)]) -> Vec<names::Offer> {
    let all: Vec<_> = there
        .iter()
        .map(|(upstream, prompts)| {
            let names = prompts.iter().map(|prompt| Some(prompt.key.as_str()).filter(|key| !key.is_empty()));
            (upstream.name(), names.collect())
        })
        .collect();
    names::offers(&all, project.namespacing())
}

fn no_such_cursor() -> RpcError {
    RpcError::new(INVALID_PARAMS, "this cursor is none of ours, or is too old; begin again without one")
}

/// A whole list, and who is missing from it.
fn listing(field: &str, items: &str, missing: &[Missing]) -> Answer {
    let meta = missing_meta(missing).map(|meta| format!(",\"_meta\":{meta}")).unwrap_or_default();
    RawValue::from_string(format!("{{\"{field}\":{items}{meta}}}"))
        .map(Reply::Result)
        .map_err(|_| RpcError::new(INTERNAL_ERROR, "the list could not be written"))
}

/// What is not a server's doing, in the words of JSON-RPC.
pub(crate) fn refusal(failed: CallFailed) -> RpcError {
    let code = if failed.kind == Kind::Timeout { TIMED_OUT } else { UNAVAILABLE };
    let data = json!({
        "code": failed.kind.code(),
        "may_have_executed": failed.may_have_executed,
        "retry_after_ms": failed.retry_after.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    });
    RpcError { code, message: failed.message, data: to_raw_value(&data).ok() }
}

/// Whether an address may have been made from a template: its fixed parts are there, in their order.
fn template_fits(template: &str, uri: &str) -> bool {
    let mut rest = uri;
    let mut parts = template.split('{').map(|part| part.split_once('}').map_or(part, |(_, fixed)| fixed));
    let first = parts.next().unwrap_or_default();
    let Some(after_first) = rest.strip_prefix(first) else { return false };
    rest = after_first;
    let mut is_open = false;
    for fixed in parts {
        is_open = fixed.is_empty();
        match rest.find(fixed) {
            Some(at) => rest = &rest[at + fixed.len()..],
            None => return false,
        }
    }
    is_open || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_the_template_it_was_made_from() {
        for (template, uri, fits) in [
            ("test://template/{id}/data", "test://template/123/data", true),
            ("test://template/{id}/data", "test://template/123/other", false),
            ("test://{a}/{b}", "test://x/y/z", true),
            ("test://fixed", "test://fixed", true),
            ("test://fixed", "test://fixed/more", false),
            ("{+path}", "anything", true),
        ] {
            assert_eq!(template_fits(template, uri), fits, "{template} {uri}");
        }
    }
}
