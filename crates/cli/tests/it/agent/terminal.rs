//! `cofer chat`: in scripts, in conversation, with servers of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cofer_testkit::app::{Ran, Start};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::{misbehaving, until_seen};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use super::{RUNS, gate, messages, offered};

fn parrot_call() -> Reply {
    Reply::tool("t1", "echo", &json!({"text": "soup"}))
}

/// A place where no Cofer runs.
fn alone(api: &ModelApi) -> Start {
    crate::start().variable("ANTHROPIC_BASE_URL", &api.url).variable("ANTHROPIC_API_KEY", "sk-test")
}

fn file(start: &Start, content: &Value) -> PathBuf {
    let path = start.path().join("servers.json");
    std::fs::write(&path, content.to_string()).unwrap();
    path
}

fn server(journal: &Path, flags: &[&str]) -> Value {
    let journal = journal.display().to_string();
    let args: Vec<&str> = [&["--journal", &journal], flags].concat();
    json!({"command": misbehaving::program(), "args": args})
}

async fn printed(start: &Start, servers: &Path, message: &str) -> Ran {
    start.cofer(&["chat", "--servers", servers.to_str().unwrap(), "--print", message]).await
}

#[tokio::test]
async fn with_servers_of_its_own_a_message_is_answered_and_nothing_is_left() {
    let leaks = Leaks::watch_processes().adopt_orphans();
    let api = ModelApi::scripted(vec![parrot_call(), Reply::text("It said soup.")]).await;
    let start = alone(&api);
    let journal = start.path().join("journal");
    let servers = file(&start, &json!({"mcpServers": {"kitchen": server(&journal, &["--children", "2"])}}));
    let ran = printed(&start, &servers, "what does it say?").await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "It said soup.\n", ""));
    assert!(offered(&api.requests()[0]).contains(&"echo"));
    assert!(!start.data_dir().exists(), "nothing is kept: it needs no Cofer and makes none");
    leaks.assert_none();
}

#[tokio::test]
async fn servers_start_in_their_order_and_one_that_fails_is_named() {
    let leaks = Leaks::watch_processes().adopt_orphans();
    let api = ModelApi::scripted(vec![Reply::text("never")]).await;
    let start = alone(&api);
    let (good, bad, never) =
        (start.path().join("good"), start.path().join("bad"), start.path().join("never"));
    let text = format!(
        r#"{{"mcpServers": {{"zebra": {}, "the-culprit": {}, "ape": {}}}}}"#,
        server(&good, &[]),
        server(&bad, &["--exit-at-start", "7"]),
        server(&never, &[])
    );
    let path = start.path().join("servers.json");
    std::fs::write(&path, &text).unwrap();
    let ran = printed(&start, &path, "hello").await;
    assert!(ran.failed_with(6).contains("the-culprit"), "{ran:?}");
    assert!(good.exists() && !never.exists(), "one after another, in the order of the file");
    assert!(api.requests().is_empty());
    std::fs::write(&path, text.replace("\"the-culprit\": {", "\"the-culprit\": {\"optional\": true,"))
        .unwrap();
    assert_eq!(printed(&start, &path, "hello").await.succeeded(), "never");
    leaks.assert_none();
}

#[tokio::test]
async fn variables_of_this_program_are_put_where_the_file_names_them_and_nowhere_else() {
    let Some(tools) = cofer_testkit::engines::tools() else { return };
    let api = ModelApi::scripted(vec![
        Reply::tools(&[("t1", "env", json!({})), ("t2", "get-env", json!({}))]),
        Reply::text("seen"),
    ])
    .await;
    let start = alone(&api).variable("COOK_KEY", "pepper-and-salt").variable("OTHER", "not-for-anybody");
    let servers = json!({"mcpServers": {
        "a": {"command": misbehaving::program(), "env": {"KEY": "${COOK_KEY}"}},
        "b": {"command": tools.join("bin/mcp-server-everything"), "env": {"PLAIN": "b-only"}},
    }});
    let servers = file(&start, &servers);
    assert_eq!(printed(&start, &servers, "look").await.succeeded(), "seen");
    let requests = api.requests();
    let seen = |at: usize| super::results(&requests[1])[at].to_string();
    assert!(seen(0).contains("pepper-and-salt") && !seen(0).contains("b-only"), "{}", seen(0));
    assert!(seen(1).contains("b-only") && !seen(1).contains("pepper-and-salt"), "{}", seen(1));
    for secret in ["not-for-anybody", "sk-test", "ANTHROPIC"] {
        assert!(!seen(0).contains(secret) && !seen(1).contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn a_script_gets_the_answer_or_an_exit_code() {
    let api = ModelApi::scripted(vec![
        Reply::text("first"),
        Reply::text("second"),
        Reply::text("third"),
        parrot_call(),
        Reply::refusal(401, "authentication_error", "invalid x-api-key"),
    ])
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    assert_eq!(gate.app.cofer(&["chat", "--print", "hello"]).await.succeeded(), "first");
    assert_eq!(gate.app.cofer_with_input(&["chat", "-p"], "from a pipe").await.succeeded(), "second");
    assert!(api.requests()[1].to_string().contains("from a pipe"));
    let answer = gate.app.cofer(&["chat", "--print", "--json", "hello"]).await.json();
    assert_eq!((&answer["text"], &answer["status"]), (&json!("third"), &json!("completed")));
    let limited = gate.app.cofer(&["chat", "--print", "--max-steps", "1", "hello"]).await;
    assert!(limited.failed_with(1).contains("max_steps"), "{limited:?}");
    let refused = gate.app.cofer(&["chat", "--print", "hello"]).await;
    assert!(refused.failed_with(1).contains("invalid x-api-key"), "{refused:?}");
    let run = answer["run_id"].as_str().unwrap();
    gate.app.cofer(&["chat", "--print", "--run", run, "and more"]).await;
    assert_eq!(messages(&gate, run).await[2]["content"][0]["text"], "and more");
    gate.stop().await;
}

/// A conversation by pipe.
struct Terminal {
    child: Child,
    out: BufReader<tokio::process::ChildStdout>,
}

impl Terminal {
    fn open(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    async fn types(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    /// Ctrl-D; what it had said to standard error.
    async fn ends(mut self) -> String {
        drop(self.child.stdin.take());
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
        assert!(self.child.wait().await.unwrap().success(), "{stderr}");
        stderr
    }
}

#[tokio::test]
async fn a_conversation_goes_on_asks_and_shows() {
    let card = json!({"title": "Soup", "steps": ["boil"]});
    let api = ModelApi::scripted(vec![
        parrot_call(),
        Reply::text("It said soup."),
        Reply::tool("t2", "echo", &json!({"text": "never"})),
        Reply::text("As you wish."),
        Reply::tool("t3", "display_recipe", &card),
        Reply::text("There."),
    ])
    .await;
    let display = json!({"name": "display_recipe", "description": "", "handler": "display"});
    let gate = super::gate_with(&api, |start| {
        let path = start.path().join("servers.json");
        std::fs::write(&path, json!({"mcpServers": {}, "nativeTools": [display]}).to_string()).unwrap();
        start.arg(format!("--servers={}", path.display()))
    })
    .await;
    gate.misbehaving("kitchen", &[]).await;
    let mut terminal = Terminal::open(gate.app.command(&["chat"]));
    terminal.types("what does it say?").await;
    terminal.types("y").await;
    assert_eq!(terminal.line().await, "It said soup.");
    terminal.types("again").await;
    terminal.types("no").await;
    assert_eq!(terminal.line().await, "As you wish.");
    terminal.types("show me").await;
    assert_eq!(terminal.line().await, "There.");
    let shown = terminal.ends().await;
    for text in [
        "call echo {\"text\":\"soup\"}? [y/N]",
        "→ echo",
        "← echo",
        "did not allow",
        "╭─ display_recipe",
        "│ title: Soup",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let runs = gate.app.get(RUNS).await.json();
    assert_eq!(runs.as_array().unwrap().len(), 1, "one conversation, one run");
    assert!(shown.contains(&format!("cofer chat --run {}", runs[0]["id"].as_str().unwrap())), "{shown}");
    gate.stop().await;
}

#[tokio::test]
async fn ctrl_c_interrupts_the_turn_and_not_the_program() {
    let hold = Arc::new(Semaphore::new(0));
    let api =
        ModelApi::scripted(vec![Reply::text("for-ever-and-ever\n").end_held_by(&hold), Reply::text("Yes?")])
            .await;
    let gate = gate(&api).await;
    let mut terminal = Terminal::open(gate.app.command(&["chat"]));
    terminal.types("talk").await;
    assert_eq!(terminal.line().await, "for-ever-and-ever");
    let pid = rustix::process::Pid::from_raw(terminal.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    until_seen("the run to be cancelled", async || {
        let runs = gate.app.get(RUNS).await.json();
        if runs[0]["status"] == "cancelled" { Ok(()) } else { Err(runs.to_string()) }
    })
    .await;
    terminal.types("still there?").await;
    assert_eq!(terminal.line().await, "Yes?");
    assert!(terminal.ends().await.contains("(cancelled: cancelled)"));
    gate.stop().await;
}

#[tokio::test]
async fn servers_of_a_conversation_start_with_its_first_message_once_and_end_with_it() {
    let leaks = Leaks::watch_processes().adopt_orphans();
    let api = ModelApi::start(|_| Reply::text("Well.")).await;
    let start = alone(&api);
    let journal = start.path().join("journal");
    let servers = file(&start, &json!({"mcpServers": {"kitchen": server(&journal, &[])}}));
    let mut terminal = Terminal::open(start.command(&["chat", "--servers", servers.to_str().unwrap()]));
    terminal.types("").await;
    assert!(!journal.exists());
    for _ in 0..3 {
        terminal.types("hello").await;
        assert_eq!(terminal.line().await, "Well.");
    }
    let heard = std::fs::read_to_string(&journal).unwrap();
    assert_eq!(heard.matches("\"initialize\"").count(), 1, "{heard}");
    terminal.ends().await;
    leaks.assert_none();
}

#[tokio::test]
async fn a_conversation_that_is_killed_leaves_no_server_behind_and_its_directory_not_for_long() {
    let leaks = Leaks::watch_processes().adopt_orphans().settle_for(Duration::from_secs(30));
    let api = ModelApi::start(|_| Reply::text("Well.")).await;
    let start = alone(&api);
    let temporary = start.path().display().to_string();
    let start = start.variable("TMPDIR", temporary);
    let journal = start.path().join("journal");
    let servers =
        file(&start, &json!({"mcpServers": {"kitchen": server(&journal, &["--detached-children", "1"])}}));
    let mut terminal = Terminal::open(start.command(&["chat", "--servers", servers.to_str().unwrap()]));
    terminal.types("hello").await;
    assert_eq!(terminal.line().await, "Well.");
    terminal.child.kill().await.unwrap();
    let left = || -> Vec<_> {
        let entries = std::fs::read_dir(start.path()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.display().to_string().contains("cofer-aside-")).collect()
    };
    assert_eq!(left().len(), 1);
    // Somebody who comes much later clears it away.
    let long_ago = std::time::SystemTime::now() - Duration::from_hours(1);
    std::fs::File::open(&left()[0]).unwrap().set_modified(long_ago).unwrap();
    printed(&start, &servers, "hello").await;
    assert!(left().is_empty(), "{:?}", left());
    leaks.assert_none();
}
