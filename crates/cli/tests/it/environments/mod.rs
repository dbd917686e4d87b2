//! Environments, on real Podman and real Docker, as an agent uses them: `cofer stdio`, spoken to in MCP.
//!
//! A test is an `async fn(Place)`; [`on_each_engine!`] makes one of each for both engines. A `Place` is a git repository of the test's own,
//! with an engine; containers, networks, processes and worktrees that are left of it fail the test.

mod acceptance;
mod by_hand;
mod clients;
mod hostile;
mod ownership;
mod scenarios;
pub(crate) mod shown;
mod taking_over;
mod terminal;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use cofer_environments::git::Source;
use cofer_testkit::app::Start;
use cofer_testkit::engines;
use cofer_testkit::leaks::Leaks;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// Makes a test of each function for each engine: `podman::…`, `docker::…`.
macro_rules! on_each_engine {
    ($($test:ident),* $(,)?) => {
        on_each_engine!(@ podman; ($($test),*));
        on_each_engine!(@ docker; ($($test),*));
    };
    (@ $engine:ident; ($($test:ident),*)) => {
        mod $engine {
            $(#[tokio::test] async fn $test() {
                let Some(place) = crate::environments::Place::new(stringify!($engine)).await else { return };
                super::$test(place).await;
            })*
        }
    };
}
use on_each_engine;

pub(crate) const IMAGE: &str = "cofer-test/busybox";
/// Longer than any answer takes, even on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// A git repository of the test's own, ready for environments.
pub(crate) struct Place {
    pub(crate) start: Start,
    pub(crate) path: PathBuf,
    bed: engines::Engine,
    label: String,
    _leaks: Leaks,
}

impl Place {
    pub(crate) async fn new(engine: &'static str) -> Option<Self> {
        let place = Self::uninitialised(engine)?;
        place.start.cofer(&["init", "-C", place.source()]).await.succeeded();
        Some(place)
    }

    /// One in which nobody has run `cofer init`.
    pub(crate) fn uninitialised(engine: &'static str) -> Option<Self> {
        let bed = if engine == "podman" { engines::podman()? } else { engines::docker()? };
        let start = crate::start()
            .with_engines()
            .variable("COFER_ENVIRONMENT_PROVIDER", engine)
            .variable("COFER_ENVIRONMENT_IMAGE", IMAGE)
            .variable("GIT_CONFIG_NOSYSTEM", "1");
        let path = start.path().join("the repository");
        std::fs::create_dir(&path).unwrap();
        let path = path.canonicalize().unwrap();
        git(&path, &["init", "--quiet", "--initial-branch=main", "."]);
        git(&path, &["config", "user.name", "A Person"]);
        git(&path, &["config", "user.email", "person@example.org"]);
        std::fs::write(path.join("README.md"), "one\ntwo\nthree\n").unwrap();
        git(&path, &["add", "."]);
        git(&path, &["commit", "--quiet", "--message", "first"]);
        let source = Source::at(&path, ANSWER_MAX);
        let label = format!("cofer.instance={}", cofer_environments::instance(&source));
        Some(Self { start, path, bed, _leaks: Leaks::watch_processes().label(&label), label })
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.start = self.start.variable(name, value);
        self
    }

    pub(crate) fn source(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git(&self.path, arguments)
    }

    /// Everything of an environment's that may be seen in the repository.
    pub(crate) fn traces(&self) -> Vec<String> {
        let refs = self.git(&["for-each-ref", "--format=%(refname)", "refs/remotes/cofer", "refs/notes"]);
        let bare = self.path.join(".cofer/repo.git");
        let branches = git(&bare, &["for-each-ref", "--format=bare %(refname)"]);
        let mut traces: Vec<String> = refs.lines().chain(branches.lines()).map(ToOwned::to_owned).collect();
        for folder in ["worktrees", "environments", "repo.git/worktrees"] {
            let entries =
                std::fs::read_dir(self.path.join(".cofer").join(folder)).into_iter().flatten().flatten();
            traces.extend(entries.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())));
        }
        traces
    }

    /// As somebody else might, behind Cofer's back.
    pub(crate) async fn remove_containers(&self) {
        let client = self.bed.client().await.unwrap();
        let force = RemoveContainerOptionsBuilder::new().force(true).build();
        for container in self.bed.containers(&self.label).await.unwrap() {
            client.remove_container(&container.id, Some(force.clone())).await.unwrap();
        }
    }

    pub(crate) async fn remove_image(&self, name: &str) {
        let client = self.bed.client().await.unwrap();
        client.remove_image(name, None::<bollard::query_parameters::RemoveImageOptions>, None).await.unwrap();
    }

    pub(crate) async fn agent(&self) -> Agent {
        self.agent_with(&[]).await
    }

    /// `cofer stdio` with these flags.
    pub(crate) async fn agent_with(&self, flags: &[&str]) -> Agent {
        let arguments: Vec<&str> = ["stdio"].into_iter().chain(flags.iter().copied()).collect();
        Agent::greeted(self.start.command(&arguments).spawn().unwrap(), self.source()).await
    }
}

pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(["-c", "safe.directory=*", "-C"])
        .arg(folder)
        .args(arguments)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "git {arguments:?}: {stdout}{stderr}");
    stdout.trim_end().to_owned()
}

/// An MCP client that started `cofer stdio`.
pub(crate) struct Agent {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    source: String,
    next_id: u64,
    pub(crate) hello: Value,
    /// Whatever was said that was no answer.
    pub(crate) said: Vec<Value>,
}

impl Agent {
    /// One that has shaken hands.
    pub(crate) async fn greeted(mut child: Child, source: &str) -> Self {
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let (lines, source) = (BufReader::new(stdout).lines(), source.to_owned());
        let mut agent =
            Self { child, stdin, lines, source, next_id: 1, hello: Value::Null, said: Vec::new() };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        agent.hello = agent.ask("initialize", hello).await;
        agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        agent
    }

    pub(crate) async fn say(&mut self, message: &Value) {
        self.say_raw(message.to_string().as_bytes()).await;
    }

    /// One line, whatever it is.
    pub(crate) async fn say_raw(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line).await.unwrap();
        stdin.write_all(b"\n").await.unwrap();
    }

    /// Sends a request and does not wait for its answer. Its id.
    pub(crate) async fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// The next message.
    pub(crate) async fn hear(&mut self) -> Value {
        let line = tokio::time::timeout(ANSWER_MAX, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("no answer; heard so far: {:?}", self.said)).unwrap();
        serde_json::from_str(&line.unwrap()).unwrap()
    }

    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.hear().await;
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.said.push(message);
        }
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let answer = self.answer(id).await;
        answer.get("result").cloned().unwrap_or_else(|| panic!("{method}: {answer}"))
    }

    /// A tool's result. The repository is named unless the arguments do.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": self.complete(arguments)});
        self.ask("tools/call", params).await
    }

    fn complete(&self, mut arguments: Value) -> Value {
        let fields = arguments.as_object_mut().unwrap();
        fields.entry("environment_source").or_insert_with(|| self.source.clone().into());
        arguments
    }

    /// What a call gives that must succeed.
    #[track_caller]
    fn must_succeed(result: &Value) -> Value {
        assert_eq!(result["isError"], false, "{result:#}");
        result["structuredContent"].clone()
    }

    pub(crate) async fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        Self::must_succeed(&result)
    }

    /// The error of a call that must fail.
    pub(crate) async fn refused(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result:#}");
        let error = &result["structuredContent"]["error"];
        for field in ["kind", "message", "step", "recovery", "trace_id"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {result:#}");
        }
        assert!(error["retryable"].is_boolean(), "{result:#}");
        error.clone()
    }

    /// A new environment's id.
    pub(crate) async fn create(&mut self) -> String {
        let made = self.done("environment_create", json!({"title": "a test"})).await;
        made["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn run(&mut self, id: &str, command: &str) -> Value {
        self.done("environment_run_cmd", json!({"environment_id": id, "command": command})).await
    }

    pub(crate) async fn destroy(&mut self, id: &str) -> Value {
        self.done("environment_destroy", json!({"environment_id": id})).await
    }

    /// Says no more, and waits for its end. What it logged.
    pub(crate) async fn leave(mut self) -> String {
        drop(self.stdin.take());
        let ended = tokio::time::timeout(ANSWER_MAX, self.child.wait_with_output()).await;
        let output = ended.unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}
