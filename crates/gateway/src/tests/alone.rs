//! A call that its server interrupts, while time passes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Namespacing, ProjectId, ServerId, SessionMode};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

use super::MadeUp;
use crate::alone::{Asked, receive};
use crate::{Caller, Gateway, GatewayRules, Project, ProjectEntry, Recorder, Registry, ServerEntry};

/// One project with one server, which has two tools.
#[derive(Debug)]
pub(super) struct OneServer {
    pub dial: Arc<MadeUp>,
    /// Whether the project has calls that are safe to repeat repeated.
    pub repeats: bool,
}

impl OneServer {
    pub(super) fn of(dial: &Arc<MadeUp>) -> Arc<Self> {
        Arc::new(Self { dial: dial.clone(), repeats: false })
    }
}

#[async_trait]
impl Registry for OneServer {
    async fn project(&self, id: ProjectId) -> Result<Option<ProjectEntry>, String> {
        let server = ServerEntry {
            id: ServerId::generate(),
            name: "s".to_owned(),
            fingerprint: 1,
            sessions: SessionMode::Auto,
            dial: self.dial.clone(),
            tools: Some(vec![
                raw(&json!({"name": "ask"})),
                raw(&json!({"name": "look", "annotations": {"readOnlyHint": true}})),
            ]),
            disabled: HashSet::new(),
        };
        let (name, namespacing) = ("p".to_owned(), Namespacing::Off);
        let repeat_safe_calls = self.repeats;
        Ok(Some(ProjectEntry { id, name, namespacing, repeat_safe_calls, servers: vec![server] }))
    }

    fn tools_found(&self, _: ProjectId, _: ServerId, _: Vec<Arc<RawValue>>) {}

    fn warned(&self, _: ServerId, _: &str) {}

    async fn settled(&self) {}
}

pub(super) fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn params(more: &Value) -> Box<RawValue> {
    let mut params = json!({"name": "ask", "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    raw(&params)
}

async fn called(project: &Arc<Project>, params: Box<RawValue>) -> Value {
    answered(project, "tools/call", &params).await
}

async fn answered(project: &Arc<Project>, method: &str, params: &RawValue) -> Value {
    let id = raw(&json!(1));
    let asked = Asked::read(&id, method, Some(params), None).unwrap().unwrap();
    let answer = receive(project, asked, Caller::default()).answer.await.unwrap();
    serde_json::from_slice(&answer.message).unwrap()
}

/// The other end of the conversation.
pub(super) struct Server(BufReader<DuplexStream>);

impl Server {
    pub(super) async fn of(dial: &MadeUp) -> Self {
        loop {
            if let Some(line) = dial.lines.lock().unwrap().pop() {
                return Self(BufReader::new(line));
            }
            tokio::task::yield_now().await;
        }
    }

    /// The first thing it is told that is like this.
    pub(super) async fn hears(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).await.unwrap() > 0, "it ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if is_it(&message) {
                return message;
            }
        }
    }

    /// All that it is told from now on, until nobody speaks to it any more.
    async fn hears_all(self) -> Vec<Value> {
        let (mut lines, mut all) = (self.0.lines(), Vec::new());
        while let Ok(Some(line)) = lines.next_line().await {
            all.push(serde_json::from_str(&line).unwrap());
        }
        all
    }

    pub(super) async fn says(&mut self, message: Value) {
        self.0.get_mut().write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_does_not_come_back_ends_and_its_server_hears() {
    let dial = MadeUp::that([]);
    let rules = GatewayRules { call_timeout: Duration::from_mins(1), ..GatewayRules::default() };
    let gateway = Gateway::start(OneServer::of(&dial), Recorder::nowhere(), Vec::new(), rules);
    let project = gateway.project(ProjectId::generate()).await.unwrap().unwrap();
    let serving = async {
        let mut server = Server::of(&dial).await;
        let call = server.hears(|message| message["method"] == "tools/call").await;
        server.says(json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}})).await;
        (server, call["id"].clone())
    };
    let (answer, (server, id)) = tokio::join!(called(&project, params(&json!({}))), serving);
    let state = answer["result"]["requestState"].clone();
    assert_eq!(answer["result"]["resultType"], "input_required", "{answer}");
    let told = tokio::spawn(server.hears_all());
    // Longer than a call may take, and no longer than a person may.
    tokio::time::sleep(Duration::from_mins(9)).await;
    let again = called(&project, params(&json!({"requestState": state}))).await;
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    tokio::time::sleep(Duration::from_mins(11)).await;
    let state = again["result"]["requestState"].clone();
    let late = called(&project, params(&json!({"requestState": state}))).await;
    assert_eq!(late["error"]["code"], -32602, "{late}");
    gateway.stop().await;
    let told = told.await.unwrap();
    let refused = told.iter().find(|message| message["id"] == "q").expect("an answer to its question");
    assert!(refused["error"]["message"].as_str().unwrap().contains("nobody"), "{refused}");
    assert!(told.iter().any(|message| message["params"]["requestId"] == id), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_may_be_kept_as_long_as_its_server_says_and_is_looked_at_again_then() {
    let dial = MadeUp::that([]);
    let rules = GatewayRules::default();
    let gateway = Gateway::start(OneServer::of(&dial), Recorder::nowhere(), Vec::new(), rules);
    let project = gateway.project(ProjectId::generate()).await.unwrap().unwrap();
    let listed = async || answered(&project, "tools/list", &params(&json!({}))).await["result"].clone();
    assert_eq!((&listed().await["ttlMs"], &listed().await["cacheScope"]), (&json!(0), &json!("private")));

    let asked = tokio::spawn({
        let project = project.clone();
        async move { answered(&project, "prompts/list", &params(&json!({}))).await }
    });
    let mut server = Server::of(&dial).await;
    let is = |method: &'static str| move |message: &Value| message["method"] == method;
    let tools = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "result": {"ttlMs": 60_000, "tools": [{"name": "ask"}]}});
    let (mut looked, mut asked_for_prompts) = (false, false);
    while !looked || !asked_for_prompts {
        let message =
            server.hears(|message| message["method"].as_str().is_some_and(|m| m.ends_with("/list"))).await;
        if message["method"] == "tools/list" {
            looked = true;
            server.says(tools(&message["id"])).await;
        } else {
            asked_for_prompts = true;
            let prompts = json!({"ttlMs": 5_000, "prompts": []});
            server.says(json!({"jsonrpc": "2.0", "id": message["id"], "result": prompts})).await;
        }
    }
    assert_eq!(asked.await.unwrap()["result"]["ttlMs"], 5_000);
    while listed().await["ttlMs"] == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(45)).await;
    assert!((1..=15_000).contains(&listed().await["ttlMs"].as_u64().unwrap()));
    tokio::time::advance(Duration::from_secs(15)).await;
    assert_eq!(listed().await["ttlMs"], 0);
    let again = server.hears(is("tools/list")).await;
    server.says(tools(&again["id"])).await;
    while listed().await["ttlMs"] == 0 {
        tokio::task::yield_now().await;
    }
}
