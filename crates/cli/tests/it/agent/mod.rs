//! Agents from outside: a running Cofer, servers behind it, and a model's API that says what the test wants it to.

mod approvals;
mod conversation;
mod crowds;
mod databases;
mod records;
mod scenarios;
mod terminal;

use cofer_testkit::app::Start;
use cofer_testkit::model_api::ModelApi;
use reqwest::Method;
use serde_json::{Value, json};

use crate::gateway::Gate;

pub(crate) const CHAT: &str = "/api/v1/projects/default/chat";
pub(crate) const RUNS: &str = "/api/v1/projects/default/agent-runs";

/// A Cofer whose agents ask this API.
pub(crate) async fn gate(api: &ModelApi) -> Gate {
    gate_with(api, |start| start).await
}

pub(crate) async fn gate_with(api: &ModelApi, more: impl FnOnce(Start) -> Start) -> Gate {
    let url = api.url.clone();
    Gate::started(|start| {
        more(start.variable("ANTHROPIC_BASE_URL", url).variable("ANTHROPIC_API_KEY", "sk-test"))
    })
    .await
}

/// Events of a stream, by name.
#[derive(Debug)]
pub(crate) struct Events(pub(crate) Vec<(String, Value)>);

impl Events {
    pub(crate) fn read(text: &str) -> Self {
        let event = |block: &str| {
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let data =
                serde_json::from_str(field("data:")?).unwrap_or_else(|error| panic!("{error}: {block}"));
            Some((field("event:")?.to_owned(), data))
        };
        Self(text.split("\n\n").filter_map(event).collect())
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[track_caller]
    pub(crate) fn one(&self, name: &str) -> &Value {
        let found: Vec<_> = self.all(name);
        assert_eq!(found.len(), 1, "{name} in {self:?}");
        found[0]
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&Value> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, data)| data).collect()
    }

    pub(crate) fn text(&self) -> String {
        self.all("text").iter().map(|data| data["delta"].as_str().unwrap()).collect()
    }
}

/// A chat to its end, as a stream.
pub(crate) async fn chat(gate: &Gate, body: &Value) -> Events {
    let answer = gate.app.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{answer:?}; log: {}", gate.app.log());
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let events = Events::read(&answer.text);
    assert_eq!(answer.headers["x-run-id"].to_str().unwrap(), events.one("run")["run_id"].as_str().unwrap());
    events
}

/// A chat to its end, in one answer.
pub(crate) async fn asked(gate: &Gate, body: &Value) -> cofer_testkit::app::Answer {
    let request = gate.app.request(Method::POST, CHAT).bearer_auth(&gate.app.token);
    gate.app.send(request.header("accept", "application/json").json(body)).await
}

/// What a run is now.
pub(crate) async fn run(gate: &Gate, id: &str) -> Value {
    let answer = gate.app.get(&format!("{RUNS}/{id}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// What was said in it: `role: blocks`.
pub(crate) async fn messages(gate: &Gate, id: &str) -> Vec<Value> {
    gate.app.get(&format!("{RUNS}/{id}/messages")).await.json().as_array().unwrap().clone()
}

/// The results that the model was shown last.
pub(crate) fn results(request: &Value) -> Vec<&Value> {
    let last = request["messages"].as_array().unwrap().last().unwrap();
    last["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_result").collect()
}

/// The names that the model was offered, without our own.
pub(crate) fn offered(request: &Value) -> Vec<&str> {
    let names = request["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
    names.filter(|name| *name != "read_rest").collect()
}

pub(crate) fn hello() -> Value {
    json!({"message": "hello"})
}
