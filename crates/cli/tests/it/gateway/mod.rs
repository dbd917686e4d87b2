//! The gateway from outside: a running Cofer, servers behind it, clients before it.
//!
//! [`Gate`] is a Cofer whose process tree is watched to its last leaf; [`Client`] speaks to its endpoint by hand, so that a test sees
//! every message as it came. Clients that others made are in `eras`, servers that others made in `real_servers`.

mod alone;
mod carried;
mod client;
mod conformance;
mod door;
mod eras;
mod file;
mod hosted;
mod real_servers;
mod records;
mod recovery;

use std::path::Path;

use cofer_testkit::app::{Answer, App, Start};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::{misbehaving, until_seen};
use serde_json::{Value, json};

pub(crate) use client::Client;

const SERVERS: &str = "/api/v1/projects/default/mcp-servers";
const TOOLS: &str = "/api/v1/projects/default/tools";

/// A Cofer that is a gateway.
pub(crate) struct Gate {
    pub(crate) app: App,
    /// Last: it looks when everything else is gone.
    leaks: Leaks,
}

impl Gate {
    pub(crate) async fn new() -> Self {
        Self::started(|start| start).await
    }

    /// With a few more settings.
    pub(crate) async fn started(more: impl FnOnce(Start) -> Start) -> Self {
        // Before anything is started: children have a clean environment, so they are known by descent alone.
        let leaks = Leaks::watch_processes().adopt_orphans();
        Self { app: more(crate::start()).serve().await, leaks }
    }

    /// Registers a server; `more` is put over it.
    pub(crate) async fn register(&self, name: &str, transport: &str, config: Value, more: &Value) -> Value {
        let mut body = json!({"name": name, "transport": transport, "config": config});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.app.post(SERVERS, &body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    }

    pub(crate) async fn stdio(&self, name: &str, command: &Path, args: &[&str], env: Value) -> Value {
        let config = json!({"command": command, "args": args, "env": env});
        self.register(name, "stdio", config, &json!({})).await
    }

    /// The misbehaving server with these flags.
    pub(crate) async fn misbehaving(&self, name: &str, flags: &[&str]) -> Value {
        self.misbehaving_with(name, flags, &json!({})).await
    }

    pub(crate) async fn misbehaving_with(&self, name: &str, flags: &[&str], more: &Value) -> Value {
        let flags: Vec<&str> = [&["--server-name", name], flags].concat();
        let config = json!({"command": misbehaving::program(), "args": flags});
        self.register(name, "stdio", config, more).await
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

    pub(crate) async fn remove(&self, name: &str) {
        let answer = self.app.delete(&format!("{SERVERS}/{name}")).await;
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    /// `GET …/tools`.
    pub(crate) async fn listing(&self) -> Value {
        let answer = self.app.get(TOOLS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Calls a tool by REST, whatever comes of it.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.app.post(&format!("{TOOLS}/call"), &json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool by REST; its first text.
    pub(crate) async fn text(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments).await;
        assert_eq!(answer.status, 200, "{tool}: {answer:?}; log: {}", self.app.log());
        answer.json()["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// The record of the one call of this tool, once it is written.
    pub(crate) async fn recorded(&self, tool: &str) -> Value {
        until_seen(&format!("the record of {tool}"), async || {
            let calls =
                self.app.get(&format!("/api/v1/projects/default/tool-calls?tool={tool}")).await.json();
            match calls.as_array().map(Vec::as_slice) {
                Some([one]) => Ok(one.clone()),
                _ => Err(calls.to_string()),
            }
        })
        .await
    }

    /// A client that can answer questions of every kind.
    pub(crate) async fn client(&self) -> Client {
        let capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
        Client::open(&self.app, "/mcp", &self.app.token, capabilities).await
    }

    /// Ends Cofer politely; nothing may be left.
    pub(crate) async fn stop(self) {
        let Self { app, leaks } = self;
        app.stop().await;
        leaks.assert_none();
    }

    /// SIGKILL; nothing may be left either.
    pub(crate) async fn kill(self) {
        let Self { app, leaks } = self;
        app.kill().await;
        leaks.assert_none();
    }
}

/// The processes whose environment has this, with their environments.
pub(crate) fn processes_with(variable: &str) -> Vec<(i32, Vec<String>)> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let read = |pid: i32| {
        let text = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let all: Vec<_> = text.split('\0').filter(|one| !one.is_empty()).map(ToOwned::to_owned).collect();
        all.iter().any(|one| one == variable).then_some((pid, all))
    };
    numbers.filter_map(read).collect()
}

/// SIGKILL for a server behind the gateway.
pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
