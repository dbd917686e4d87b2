//! Environments beside what they are made of: a command beside the engine's own exec into the same container, a new environment beside
//! `git worktree add` and `run -d` by hand.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::figures::{median, row};

const IMAGE: &str = "cofer-test/busybox";
const FILES: usize = 1000;
const MANY_FILES: usize = 50_000;
const COMMANDS: usize = 60;
const EXECS: usize = 12;
const CHANGES: usize = 30;
const CREATES: usize = 5;

pub async fn measure() {
    for engine in ["podman", "docker"] {
        let Ok(host) = std::env::var(format!("COFER_TEST_{}_HOST", engine.to_uppercase())) else { continue };
        of_engine(&Engine { name: engine, host }).await;
    }
}

struct Engine {
    name: &'static str,
    host: String,
}

impl Engine {
    /// The engine's own client.
    fn client(&self) -> Command {
        let mut command = Command::new(self.name);
        match self.name {
            "podman" => command.args(["--remote", "--url", &self.host]),
            _ => command.args(["-H", &self.host]),
        };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

async fn of_engine(engine: &Engine) {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = repository(folder.path(), "small", FILES).await;
    let mut agent = Agent::begin(engine, &repository).await;
    start_and_memory(engine, &repository).await;
    let id = agent.create().await;
    commands(engine, &mut agent, &id).await;
    changes(engine.name, &mut agent, &id).await;
    agent.call("environment_destroy", json!({"environment_id": id})).await;
    creates(engine, &mut agent, &repository).await;
    let many = self::repository(folder.path(), "many", MANY_FILES).await;
    large(engine, &many).await;
}

/// `true` all in, beside the engine's exec of it into the same container, in turns.
async fn commands(engine: &Engine, agent: &mut Agent, id: &str) {
    let container = container_of(engine, id).await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    agent.run(id, "true").await;
    for round in 0..COMMANDS {
        ours.push(agent.run(id, "true").await.as_secs_f64() * 1e3);
        if round % (COMMANDS / EXECS) == 0 {
            let began = Instant::now();
            let ran = engine.client().args(["exec", &container, "true"]).status().await;
            assert!(ran.expect("the engine's client").success(), "exec");
            floor.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let (ours, floor) = (median(ours), median(floor));
    let figure = format!("{ours:.1} ms, 1/{:.0} of exec ({floor:.0} ms)", floor / ours);
    row(&format!("{}: run_cmd `true`, p50", engine.name), &figure, "aim < 15 ms, <= 1/8");
}

async fn container_of(engine: &Engine, id: &str) -> String {
    let filter = format!("name=cofer-{id}-");
    let mut command = engine.client();
    let listed = command.args(["ps", "-q", "--filter", &filter]).stdout(Stdio::piped()).output().await;
    String::from_utf8_lossy(&listed.expect("a list").stdout).trim().to_owned()
}

async fn changes(engine: &str, agent: &mut Agent, id: &str) {
    let mut times = Vec::new();
    for number in 0..CHANGES {
        times.push(agent.run(id, &format!("echo {number} > changed")).await.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let p95 = times[times.len() * 95 / 100];
    let figure = format!("p50 {:.0} ms, p95 {p95:.0} ms", median(times));
    row(&format!("{engine}: one changed file, to committed"), &figure, "aim < 120 ms, 180 ms");
    let took = agent.run(id, "for f in $(seq 1000); do echo $f > many$f; done").await;
    row(
        &format!("{engine}: 1,000 changed files, to committed"),
        &format!("{:.2} s", took.as_secs_f64()),
        "aim < 2 s",
    );
}

async fn creates(engine: &Engine, agent: &mut Agent, repository: &Path) {
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for number in 0..CREATES {
        let began = Instant::now();
        let id = agent.create().await;
        ours.push(began.elapsed().as_secs_f64() * 1e3);
        agent.call("environment_destroy", json!({"environment_id": id})).await;
        floor.push(by_hand(engine, repository, number).await.as_secs_f64() * 1e3);
    }
    let (ours, floor) = (median(ours), median(floor));
    let figure = format!("{:.2} x ({ours:.0} ms beside {floor:.0} ms)", ours / floor);
    row(&format!("{}: create, {FILES} files, beside by hand", engine.name), &figure, "aim <= 1.2 x");
}

/// `git worktree add` and `run -d`.
async fn by_hand(engine: &Engine, repository: &Path, number: usize) -> Duration {
    let worktree = repository.with_file_name(format!("by-hand-{}-{number}", engine.name));
    let path = worktree.display().to_string();
    let name = format!("cofer-bench-by-hand-{number}-{}", std::process::id());
    let began = Instant::now();
    git(repository, &["worktree", "add", "--quiet", "--detach", &path]).await;
    let mount = format!("{path}:/workdir");
    let run = ["run", "-d", "--name", &name, "-v", &mount, "-w", "/workdir", IMAGE, "sleep", "1000"];
    assert!(engine.client().args(run).status().await.expect("the engine's client").success(), "run -d");
    let took = began.elapsed();
    engine.client().args(["rm", "-f", &name]).status().await.expect("removed");
    git(repository, &["worktree", "remove", "--force", &path]).await;
    took
}

async fn large(engine: &Engine, repository: &Path) {
    let mut agent = Agent::begin(engine, repository).await;
    let began = Instant::now();
    let id = agent.create().await;
    let created = began.elapsed();
    let began = Instant::now();
    git(repository, &["worktree", "add", "--quiet", "--detach", "../by-hand-many"]).await;
    let floor = began.elapsed();
    git(repository, &["worktree", "remove", "--force", "../by-hand-many"]).await;
    let mut times = Vec::new();
    for _ in 0..10 {
        times.push(agent.run(&id, "true").await.as_secs_f64() * 1e3);
    }
    agent.call("environment_destroy", json!({"environment_id": id})).await;
    let figure = format!("{:.1} s (worktree add alone {:.1} s)", created.as_secs_f64(), floor.as_secs_f64());
    row(&format!("{}: create, {MANY_FILES} files", engine.name), &figure, "");
    row(
        &format!("{}: run_cmd `true`, {MANY_FILES} files, p50", engine.name),
        &format!("{:.0} ms", median(times)),
        "",
    );
}

async fn start_and_memory(engine: &Engine, repository: &Path) {
    let mut times = Vec::new();
    let mut resident = 0;
    for _ in 0..10 {
        let began = Instant::now();
        let agent = Agent::begin(engine, repository).await;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        resident = agent.resident_kib();
    }
    let figure = format!("{:.0} ms, {} KiB", median(times), resident);
    row(&format!("{}: stdio to `initialize`, and idle", engine.name), &figure, "aim < 50 ms, < 20 MB");
}

/// A repository of so many files, ready for environments.
async fn repository(folder: &Path, name: &str, files: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir(&path).expect("a folder");
    git(&path, &["init", "--quiet", "."]).await;
    for number in 0..files {
        let below = path.join(format!("d{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir(&below).expect("a folder");
        }
        std::fs::write(below.join(format!("f{number}")), format!("file {number}\n").repeat(20))
            .expect("a file");
    }
    git(&path, &["add", "."]).await;
    git(&path, &["-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "first"]).await;
    let made = Command::new(cofer()).args(["init", "-C"]).arg(&path).stdout(Stdio::null()).status().await;
    assert!(made.expect("cofer").success(), "cofer init");
    path
}

async fn git(folder: &Path, arguments: &[&str]) {
    let ran = Command::new("git").arg("-C").arg(folder).args(arguments).status().await;
    assert!(ran.expect("git").success(), "git {arguments:?}");
}

/// The program beside this one.
fn cofer() -> PathBuf {
    std::env::current_exe().expect("this program").with_file_name("cofer")
}

/// A client of `cofer stdio`.
struct Agent {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    source: String,
    next_id: u64,
}

impl Agent {
    async fn begin(engine: &Engine, repository: &Path) -> Self {
        let mut command = Command::new(cofer());
        let host = format!("COFER_{}_HOST", engine.name.to_uppercase());
        command.args(["stdio", "--provider", engine.name, "--log", "warn"]).env(host, &engine.host);
        command.env("COFER_ENVIRONMENT_IMAGE", IMAGE).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cofer");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let source = repository.display().to_string();
        let mut agent = Self { child, stdin, lines: BufReader::new(stdout).lines(), source, next_id: 1 };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}});
        agent.ask("initialize", hello).await;
        agent
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let line = format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.stdin.write_all(line.as_bytes()).await.expect("cofer reads");
        let line = self.lines.next_line().await.expect("cofer writes").expect("cofer goes on");
        serde_json::from_str::<Value>(&line).expect("JSON")["result"].take()
    }

    async fn call(&mut self, tool: &str, mut arguments: Value) -> Value {
        arguments["environment_source"] = self.source.clone().into();
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(result["isError"], false, "{result}");
        result
    }

    async fn create(&mut self) -> String {
        let made = self.call("environment_create", json!({"title": "bench"})).await;
        made["structuredContent"]["id"].as_str().expect("an id").to_owned()
    }

    async fn run(&mut self, id: &str, command: &str) -> Duration {
        let began = Instant::now();
        self.call("environment_run_cmd", json!({"environment_id": id, "command": command})).await;
        began.elapsed()
    }

    fn resident_kib(&self) -> u64 {
        crate::served::resident_kib(self.child.id().expect("it runs"))
    }
}
