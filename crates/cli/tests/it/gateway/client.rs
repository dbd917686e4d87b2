//! A client of the endpoint, by hand: every message is seen as it came.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofer_testkit::app::App;
use cofer_testkit::until_seen;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const ANSWER_MAX: Duration = Duration::from_secs(90);

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) token: String,
    pub(crate) session: String,
    /// What the server said of itself.
    pub(crate) hello: Value,
    pub(crate) next_id: Arc<AtomicU64>,
}

/// What came of a request: what was said meanwhile, and the whole answer.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) said: Vec<Value>,
    pub(crate) answer: Value,
}

impl Heard {
    #[track_caller]
    pub(crate) fn result(&self) -> &Value {
        assert!(self.answer["error"].is_null(), "{self:?}");
        &self.answer["result"]
    }

    /// The first text of a tool's result.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        let text = self.result()["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text: {self:?}"))
    }

    /// What was said by this method.
    pub(crate) fn of(&self, method: &str) -> Vec<&Value> {
        self.said.iter().filter(|message| message["method"] == method).collect()
    }
}

impl Client {
    pub(crate) async fn open(app: &App, path: &str, token: &str, capabilities: Value) -> Self {
        let mut client = Self {
            http: app.http.clone(),
            url: format!("{}{path}", app.url),
            token: token.to_owned(),
            session: String::new(),
            hello: Value::Null,
            next_id: Arc::new(AtomicU64::new(1)),
        };
        let info = json!({"name": "by hand", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info});
        let hello =
            client.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        let hello = hello.send().await.unwrap();
        let session = hello.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
        client.session = session.unwrap_or_else(|| panic!("no session: {hello:?}"));
        client.hello = hello.json().await.unwrap();
        client.tell("notifications/initialized", Value::Null).await;
        client
    }

    pub(crate) fn request(&self, method: Method) -> RequestBuilder {
        let request = self.http.request(method, &self.url).timeout(ANSWER_MAX).bearer_auth(&self.token);
        let request = request.header("accept", "application/json, text/event-stream");
        if self.session.is_empty() { request } else { request.header("mcp-session-id", &self.session) }
    }

    pub(crate) fn post(&self, message: &Value) -> RequestBuilder {
        self.request(Method::POST).json(message)
    }

    /// A notification.
    pub(crate) async fn tell(&self, method: &str, params: Value) {
        let mut message = json!({"jsonrpc": "2.0", "method": method});
        if !params.is_null() {
            message["params"] = params;
        }
        let answer = self.post(&message).send().await.unwrap();
        assert_eq!(answer.status(), 202, "{answer:?}");
    }

    pub(crate) async fn ask(&self, method: &str, params: Value) -> Heard {
        self.ask_answering(method, params, |question| panic!("nobody expects a question: {question}")).await
    }

    pub(crate) async fn tool(&self, name: &str, arguments: Value) -> Heard {
        self.ask("tools/call", json!({"name": name, "arguments": arguments})).await
    }

    /// Asks, and answers what is asked back.
    pub(crate) async fn ask_answering(
        &self,
        method: &str,
        params: Value,
        answers: impl Fn(&Value) -> Value,
    ) -> Heard {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.ask_as(json!(id), method, params, answers).await
    }

    /// The same, under an id of the test's own.
    pub(crate) async fn ask_as(
        &self,
        id: Value,
        method: &str,
        params: Value,
        answers: impl Fn(&Value) -> Value,
    ) -> Heard {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let response = self.post(&message).send().await.unwrap();
        let mut heard = Heard { said: Vec::new(), answer: Value::Null };
        let is_stream = response.headers()["content-type"] == "text/event-stream";
        if !is_stream {
            heard.answer = response.json().await.unwrap();
            return heard;
        }
        let mut events = Events::of(response);
        while let Some(event) = events.next().await {
            if event.data["id"] == id && event.data["method"].is_null() {
                heard.answer = event.data;
                return heard;
            }
            if !event.data["method"].is_null() && !event.data["id"].is_null() {
                self.reply(&event.data["id"], answers(&event.data)).await;
            }
            heard.said.push(event.data);
        }
        panic!("the stream ended without an answer: {heard:?}");
    }

    /// Answers a question.
    pub(crate) async fn reply(&self, id: &Value, result: Value) {
        let answer = self.post(&json!({"jsonrpc": "2.0", "id": id, "result": result})).send().await.unwrap();
        assert_eq!(answer.status(), 202, "{answer:?}");
    }

    /// Calls a tool without waiting.
    pub(crate) fn begin(&self, name: &str, arguments: Value) -> JoinHandle<Heard> {
        let (client, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move { client.tool(&name, arguments).await })
    }

    /// All names of tools, in their order.
    pub(crate) async fn tool_names(&self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({})).await;
        let tools = listed.result()["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Hears what belongs to no call, from now on.
    pub(crate) async fn listen(&self) -> Listening {
        let response = self.request(Method::GET).send().await.unwrap();
        assert_eq!(response.status(), 200, "{response:?}");
        let heard = Arc::<Mutex<Vec<Value>>>::default();
        let kept = heard.clone();
        let mut events = Events::of(response);
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                kept.lock().unwrap().push(event.data);
            }
        });
        Listening { heard, task }
    }

    pub(crate) async fn leave(&self) -> u16 {
        self.request(Method::DELETE).send().await.unwrap().status().as_u16()
    }
}

/// The stream of what belongs to no call.
#[derive(Debug)]
pub(crate) struct Listening {
    heard: Arc<Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl Listening {
    /// What came by this method so far.
    pub(crate) fn of(&self, method: &str) -> Vec<Value> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|message| message["method"] == method).cloned().collect()
    }

    /// Waits until so many came by this method.
    pub(crate) async fn until(&self, method: &str, count: usize) -> Vec<Value> {
        until_seen(&format!("{count} {method}"), async || {
            let found = self.of(method);
            if found.len() >= count { Ok(found) } else { Err(format!("{:?}", self.heard.lock().unwrap())) }
        })
        .await
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) data: Value,
}

/// A stream of events as it comes.
#[derive(Debug)]
pub(crate) struct Events {
    response: Response,
    buffer: Vec<u8>,
    /// The id of the last event, of one without a message too.
    pub(crate) last_id: String,
}

impl Events {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{response:?}");
        Self { response, buffer: Vec::new(), last_id: String::new() }
    }

    /// The next one that has a message.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                if let Some(id) = field("id: ") {
                    id.clone_into(&mut self.last_id);
                }
                if let Some(data) = field("data: ").filter(|data| !data.is_empty()) {
                    return Some(Event {
                        id: self.last_id.clone(),
                        data: serde_json::from_str(data).unwrap(),
                    });
                }
            }
            self.buffer.extend_from_slice(&self.response.chunk().await.ok()??);
        }
    }
}
