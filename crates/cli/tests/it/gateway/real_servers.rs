//! Six servers that others made, in one project: each has its own tools, its own calls, its own environment and its own end.

use std::collections::BTreeSet;
use std::path::Path;

use cofer_testkit::{engines, until_seen};
use rustix::process::Signal;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Gate, SERVERS, processes_with};

const NAMES: [&str; 6] = ["everything", "filesystem", "memory", "time", "git", "fetch"];

/// The six, and where they work.
struct Six {
    gate: Gate,
    folder: tempfile::TempDir,
    /// In the environment of each, with its name.
    mark: String,
}

impl Six {
    async fn start() -> Option<Self> {
        let tools = engines::tools()?;
        let gate = Gate::new().await;
        let folder = tempfile::tempdir().unwrap();
        let six = Self { gate, folder, mark: Uuid::now_v7().simple().to_string() };
        let git = six.path("repository");
        let made = std::process::Command::new("git").args(["init", "--quiet"]).arg(&git).status().unwrap();
        assert!(made.success());
        for name in NAMES {
            six.register(&tools, name).await;
        }
        Some(six)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn mark_of(&self, name: &str) -> String {
        format!("ONLY_OF_{}={}", name.to_uppercase(), self.mark)
    }

    async fn register(&self, tools: &Path, name: &str) {
        let program = tools.join("bin").join(format!("mcp-server-{name}"));
        let folder = self.folder.path().display().to_string();
        let args: Vec<&str> = match name {
            "filesystem" => vec![&folder],
            "fetch" => vec!["--ignore-robots-txt", "--allow-private-ips"],
            _ => Vec::new(),
        };
        let (variable, value) = (format!("ONLY_OF_{}", name.to_uppercase()), &self.mark);
        let mut env = json!({variable: value});
        if name == "memory" {
            env["MEMORY_FILE_PATH"] = json!(self.path("memory.json"));
        }
        self.gate.stdio(name, &program, &args, env).await;
    }

    /// One call to each, and what shows that it was its own server that answered.
    async fn each_answers(&self, except: &str) {
        let health = format!("{}/healthz", self.gate.app.url);
        let entity = json!({"name": "Ada", "entityType": "person", "observations": ["counts"]});
        for (server, tool, arguments, expected) in [
            ("everything", "echo", json!({"message": "well"}), "Echo: well"),
            ("filesystem", "write_file", json!({"path": self.path("note"), "content": "kept"}), "wrote to"),
            ("filesystem", "read_text_file", json!({"path": self.path("note")}), "kept"),
            ("memory", "create_entities", json!({"entities": [entity]}), ""),
            ("memory", "read_graph", json!({}), "Ada"),
            ("time", "get_current_time", json!({"timezone": "Europe/Zurich"}), "Europe/Zurich"),
            ("git", "git_status", json!({"repo_path": self.path("repository")}), "No commits yet"),
            ("fetch", "fetch", json!({"url": health}), "ok"),
        ] {
            if server != except {
                let text = self.gate.text(tool, arguments).await;
                assert!(text.contains(expected), "{tool}: {text}; log: {}", self.gate.app.log());
            }
        }
    }

    /// Every process of this server.
    fn processes(&self, name: &str) -> Vec<(i32, Vec<String>)> {
        processes_with(&self.mark_of(name))
    }

    async fn none_left_of(&self, name: &str) {
        until_seen(&format!("the end of {name}"), async || {
            let left = self.processes(name);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }
}

#[tokio::test]
async fn every_tool_is_listed_once_and_each_call_reaches_its_own_server() {
    let Some(six) = Six::start().await else { return };
    let listing = six.gate.listing().await;
    assert_eq!(listing["missing"], json!([]), "log: {}", six.gate.app.log());
    assert_eq!(listing["warnings"], json!([]));
    let tools = listing["tools"].as_array().unwrap();
    let names: BTreeSet<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), tools.len(), "one is listed twice: {listing}");
    let mut expected = 0;
    for server in NAMES {
        let own = six.gate.app.get(&format!("{SERVERS}/{server}/tools")).await.json();
        let own = own["tools"].as_array().or(own.as_array()).unwrap().len();
        let listed = tools.iter().filter(|tool| tool["server"] == server).count();
        assert_eq!((listed, own > 0), (own, true), "{server}");
        expected += own;
    }
    assert_eq!(tools.len(), expected);
    let client = six.gate.client().await;
    let seen = client.tool_names().await;
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (expected, names));
    six.each_answers("").await;
    assert_eq!(six.gate.recorded("read_graph").await["server"], "memory");
    six.gate.stop().await;
}

#[tokio::test]
async fn no_server_sees_anything_of_another_or_of_cofer() {
    let Some(six) = Six::start().await else { return };
    six.each_answers("").await;
    let seen: Value = serde_json::from_str(&six.gate.text("get-env", json!({})).await).unwrap();
    let seen: BTreeSet<_> = seen.as_object().unwrap().keys().cloned().collect();
    assert!(seen.contains("ONLY_OF_EVERYTHING"), "{seen:?}");
    for name in NAMES {
        let processes = six.processes(name);
        assert!(!processes.is_empty(), "{name} does not run");
        for (pid, environment) in processes {
            let foreign = |one: &&String| {
                let is_own = **one == six.mark_of(name);
                one.starts_with("COFER")
                    || (one.contains(&six.mark) && !is_own)
                    || one.contains("ADMIN_TOKEN")
            };
            let foreign: Vec<_> = environment.iter().filter(foreign).collect();
            assert!(foreign.is_empty(), "process {pid} of {name} has {foreign:?}");
        }
    }
    six.gate.stop().await;
}

#[tokio::test]
async fn a_server_that_is_removed_ends_with_all_its_processes_and_the_others_stay() {
    let Some(six) = Six::start().await else { return };
    six.each_answers("").await;
    let others: Vec<_> = six.processes("memory").into_iter().map(|(pid, _)| pid).collect();
    six.gate.remove("everything").await;
    six.none_left_of("everything").await;
    until_seen("its tools to be gone", async || {
        let listing = six.gate.listing().await;
        let left = listing["tools"].as_array().unwrap().iter().any(|tool| tool["server"] == "everything");
        if left { Err(listing.to_string()) } else { Ok(()) }
    })
    .await;
    let answer = six.gate.call("echo", json!({"message": "x"})).await.json();
    assert_eq!(answer["content"][0]["text"], "Unknown tool: echo");
    assert_eq!(answer["isError"], true);
    six.each_answers("everything").await;
    let still: Vec<_> = six.processes("memory").into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(others, still, "the others were not started anew");
    six.gate.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_them_after_a_kill_of_cofer() {
    let Some(six) = Six::start().await else { return };
    six.each_answers("").await;
    six.gate.app.signal(Signal::KILL);
    for name in NAMES {
        six.none_left_of(name).await;
    }
    six.gate.kill().await;
}

/// Longer than it is waited for whether a server knows the later era: `uvx` may have to fetch it first.
#[tokio::test]
async fn a_server_of_the_later_era_that_takes_long_to_begin_is_spoken_to_as_such() {
    let Some(tools) = engines::tools() else { return };
    let gate = Gate::new().await;
    let begin = format!("sleep 6; exec {}", tools.join("bin/mcp-server-time").display());
    gate.stdio("time", Path::new("sh"), &["-c", &begin], json!({})).await;
    until_seen("an answer of it", async || {
        let text = gate.text("get_current_time", json!({"timezone": "Europe/Zurich"})).await;
        if text.contains("Europe/Zurich") { Ok(()) } else { Err(format!("{text}; log: {}", gate.app.log())) }
    })
    .await;
    let server = gate.app.get(&format!("{SERVERS}/time")).await.json();
    assert_eq!(server["protocol_version"], "2026-07-28", "{server:#}");
    gate.stop().await;
}
