//! Hosted servers, on real Docker, real gVisor and real Podman.
//!
//! A test is an `async fn(Host)`; [`on_each_provider!`] makes one of each for every provider. A `Host` is a running Cofer with the
//! engines of the bed; what it leaves in them fails the test.

mod applied;
mod changes;
mod command_line;
mod examples;
mod from_packages;
mod logs;
mod moods;
mod moods_from_the_start;
mod providers;
mod recovery;
mod refusals;
mod scenarios;
mod secrets;
mod stress;
mod tenants;
mod tenure;
mod traffic;

use std::time::Duration;

use cofer_testkit::app::{Answer, App, Start};
use cofer_testkit::engines::{self, Container};
use cofer_testkit::until_seen;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Makes a test of each function for each provider: `docker::…`, `gvisor::…`, `podman::…`.
macro_rules! on_each_provider {
    ($($test:ident),* $(,)?) => {
        on_each_provider!(@ docker, gvisor, podman; ($($test),*));
    };
    // On these alone.
    (on $($provider:ident),*; $($test:ident),* $(,)?) => {
        on_each_provider!(@ $($provider),*; ($($test),*));
    };
    (@ $($provider:ident),*; $tests:tt) => {
        $(on_each_provider!(@@ $provider; $tests);)*
    };
    (@@ $provider:ident; ($($test:ident),*)) => {
        mod $provider {
            $(#[tokio::test] async fn $test() {
                let Some(host) = crate::hosting::Host::new(stringify!($provider)).await else { return };
                super::$test(host).await;
            })*
        }
    };
}
use on_each_provider;

pub(crate) const SERVERS: &str = "/api/v1/mcp/hosted";
pub(crate) const MISBEHAVING: &str = "cofer-test/misbehaving";
pub(crate) const VOLUMES: &str = "/api/v1/mcp/volumes";
/// Longer than any answer takes, even on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(90);
/// Answers each request with the request itself, byte for byte.
pub(crate) const MIRROR: &str = r#"while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/^[^i]*"id":\([0-9]*\).*/\1/p')
  if [ -n "$id" ]; then printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$line"; fi
done"#;

/// A Cofer that hosts, and the provider that a test is about.
pub(crate) struct Host {
    pub(crate) app: App,
    pub(crate) provider: &'static str,
}

impl Host {
    pub(crate) async fn new(provider: &'static str) -> Option<Self> {
        Self::started(provider, |start| start).await
    }

    /// With a few more settings.
    pub(crate) async fn started(provider: &'static str, more: impl FnOnce(Start) -> Start) -> Option<Self> {
        if provider == "podman" {
            engines::podman()?
        } else {
            engines::docker()?
        };
        let start = crate::start()
            .with_engines()
            .variable("COFER_STOP_GRACE_MS", "5000")
            .variable("WORKSPACE_DEFAULT_PROVIDER", provider);
        Some(Self { app: more(start).serve().await, provider })
    }

    /// With these lines in its settings file.
    pub(crate) async fn configured(provider: &'static str, settings: &str) -> Option<Self> {
        Self::started(provider, |start| {
            let file = start.path().join("cofer.toml");
            std::fs::write(&file, settings).unwrap();
            start.variable("COFER_CONFIG", file.display().to_string())
        })
        .await
    }

    /// SIGKILL, and a new start on the same data.
    pub(crate) async fn killed_and_started_again(self) -> Self {
        Self { app: self.app.kill().await.serve().await, provider: self.provider }
    }

    /// Registers a server with this provider; `more` is what the test is about.
    pub(crate) async fn register(&self, name: &str, image: &str, more: Value) -> Answer {
        let mut body = json!({"name": name, "image": image, "provider": self.provider});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.app.post(SERVERS, &body).await
    }

    /// The misbehaving server with these flags, which must come up.
    pub(crate) async fn misbehaving(&self, name: &str, flags: &[&str]) -> Value {
        self.hosted(name, MISBEHAVING, json!({"cmd": flags})).await
    }

    pub(crate) async fn hosted(&self, name: &str, image: &str, more: Value) -> Value {
        let answer = self.register(name, image, more).await;
        assert_eq!(answer.status, 201, "{answer:?}; log: {}", self.app.log());
        answer.json()
    }

    pub(crate) async fn status(&self, name: &str) -> Value {
        let answer = self.app.get(&format!("{SERVERS}/{name}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Waits until its status object is like this.
    pub(crate) async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until_seen(what, async || {
            let status = self.status(name).await;
            if holds(&status) { Ok(status) } else { Err(format!("{status:#}; log: {}", self.app.log())) }
        })
        .await
    }

    pub(crate) async fn until_status(&self, name: &str, status: &str) -> Value {
        self.until(name, status, |seen| seen["status"] == status).await
    }

    pub(crate) async fn call(&self, name: &str, method: &str, params: Value) -> Answer {
        self.app.post(&format!("{SERVERS}/{name}/call"), &json!({"method": method, "params": params})).await
    }

    /// Calls a tool, whatever comes of it, with this much patience.
    pub(crate) async fn try_tool(&self, name: &str, tool: &str, arguments: Value, timeout_ms: u64) -> Answer {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"method": "tools/call", "params": params, "timeout_ms": timeout_ms});
        self.app.post(&format!("{SERVERS}/{name}/call"), &body).await
    }

    /// It takes calls and answers them right.
    pub(crate) async fn works(&self, name: &str) {
        assert_eq!(self.tool(name, "echo", json!({"text": "well"})).await, "well");
    }

    /// Sends these bytes as the body of a call.
    pub(crate) async fn call_raw(&self, name: &str, body: impl Into<String>) -> Answer {
        let request = self.app.request(reqwest::Method::POST, &format!("{SERVERS}/{name}/call"));
        let request = request.bearer_auth(&self.app.token).header("content-type", "application/json");
        self.app.send(request.body(body.into())).await
    }

    /// Waits until so many have been given a log, or its beginning.
    pub(crate) async fn log_readers(&self, readers: usize) {
        let given = |line: &str| line.contains("_requests_total{") && line.contains("/logs\"");
        let count = format!(" {readers}");
        cofer_testkit::until(&format!("{readers} readers of a log"), async || {
            let page = self.app.get("/metrics").await.text;
            page.lines().any(|line| given(line) && line.ends_with(&count))
        })
        .await;
    }

    /// What this Cofer has in the engines now: containers, networks and volumes.
    pub(crate) async fn in_engines(&self) -> Vec<String> {
        cofer_testkit::leaks::labelled(&format!("cofer.instance={}", self.app.instance())).await
    }

    /// Calls a tool that must answer; its first text.
    pub(crate) async fn tool(&self, name: &str, tool: &str, arguments: Value) -> String {
        let answer = self.call(name, "tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(answer.status, 200, "{answer:?}; log: {}", self.app.log());
        answer.json()["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// The structured facts that a tool answers with.
    pub(crate) async fn facts(&self, name: &str, tool: &str, arguments: Value) -> Value {
        serde_json::from_str(&self.tool(name, tool, arguments).await).unwrap()
    }

    /// Calls a tool whose fate is not of interest, without waiting.
    pub(crate) fn begin(&self, name: &str, tool: &str, arguments: &Value) -> JoinHandle<u16> {
        let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        self.ask(Method::POST, &format!("/{name}/call"), Some(body))
    }

    /// Asks something of hosting without waiting. The status of the answer; 0 where none came.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<Value>) -> JoinHandle<u16> {
        let request = self.app.request(method, &format!("{SERVERS}{path}")).timeout(ANSWER_MAX);
        let request = request.bearer_auth(&self.app.token).json(&body.unwrap_or_else(|| json!({})));
        tokio::spawn(async move { request.send().await.map_or(0, |answer| answer.status().as_u16()) })
    }

    /// Every container of this Cofer, in both engines, whatever its state.
    pub(crate) async fn containers(&self) -> Vec<Container> {
        let label = format!("cofer.instance={}", self.app.instance());
        let mut all = Vec::new();
        for engine in engines::all_present() {
            all.extend(engine.containers(&label).await.unwrap());
        }
        all
    }

    /// The id of the one container that this server has.
    pub(crate) async fn container(&self, name: &str) -> String {
        let all = self.containers().await;
        let mut its = all.iter().filter(|container| container.labels["cofer.name"] == name);
        let (first, second) = (its.next(), its.next());
        assert!(second.is_none(), "two for one: {all:#?}");
        first.unwrap_or_else(|| panic!("{name} has no container: {all:#?}")).id.clone()
    }

    /// Waits until each of these answers calls, from one container, and nobody else has a container.
    pub(crate) async fn until_only(&self, running: &[&str]) {
        for name in running {
            self.until_status(name, "ready").await;
            assert_eq!(self.tool(name, "echo", json!({"text": name})).await, *name);
        }
        let mut expected: Vec<_> = running.iter().map(ToString::to_string).collect();
        expected.sort();
        until_seen(&format!("only {expected:?}"), async || {
            let all = self.containers().await;
            let mut names: Vec<_> =
                all.iter().map(|container| container.labels["cofer.name"].clone()).collect();
            names.sort();
            let right = names == expected && all.iter().all(Container::runs);
            if right { Ok(()) } else { Err(format!("{all:#?}; log: {}", self.app.log())) }
        })
        .await;
    }

    pub(crate) async fn post(&self, name: &str, verb: &str) -> Value {
        let answer = self.app.post(&format!("{SERVERS}/{name}/{verb}"), &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}; log: {}", self.app.log());
        answer.json()
    }

    /// Its events, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Vec<Value> {
        let answer = self.app.get(&format!("{SERVERS}/{name}/events?limit=1000")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mut events = answer.json().as_array().unwrap().clone();
        events.reverse();
        events
    }

    /// Waits until an event of this kind is in the history.
    pub(crate) async fn event(&self, name: &str, kind: &str) -> Value {
        until_seen(&format!("an event {kind}"), async || {
            let events = self.events(name).await;
            let found = events.iter().rfind(|event| event["kind"] == kind).cloned();
            found.ok_or_else(|| format!("{events:?}"))
        })
        .await
    }

    pub(crate) async fn remove(&self, name: &str) {
        let answer = self.app.delete(&format!("{SERVERS}/{name}?delete_volumes=true")).await;
        assert_eq!(answer.status, 204, "{answer:?}; log: {}", self.app.log());
    }

    /// Ends Cofer politely; nothing may be left.
    pub(crate) async fn stop(self) -> Start {
        self.app.stop().await
    }
}
