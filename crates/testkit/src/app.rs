//! The real `cofer`, as a person would start it: a process of its own, a data directory of its own, HTTP and the command
//! line as the only ways in.
//!
//! ```no_run
//! # async fn test() {
//! let app = cofer_testkit::app::Start::new("target/debug/cofer").serve().await;
//! assert_eq!(app.get("/healthz").await.status, 200);
//! app.stop().await; // SIGTERM; must exit 0 and leave nothing behind
//! # }
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::engines;
use crate::leaks::Leaks;
use crate::until::until;

const START_DEADLINE: Duration = Duration::from_secs(20);
const STOP_DEADLINE: Duration = Duration::from_secs(40);
/// Generous: a command may wait for an installer, on a machine that is busy with other tests.
const COMMAND_DEADLINE: Duration = Duration::from_mins(4);
/// What of the test's own environment a `cofer` under test may see.
const INHERITED: [&str; 2] = ["PATH", "TMPDIR"];

/// How to start it. Nothing of the caller's environment reaches it but what is named here.
#[derive(Debug)]
pub struct Start {
    program: PathBuf,
    dir: TempDir,
    listen: String,
    args: Vec<String>,
    variables: BTreeMap<String, String>,
    /// Checked when this is dropped.
    leaks: Leaks,
}

impl Start {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        // TLS wants to be told whose cryptography to use; an error says that it was told already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("a directory for this test");
        let leaks = Leaks::watch_processes();
        let mut variables: BTreeMap<_, _> = INHERITED
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect();
        let (mark, value) = leaks.mark();
        variables.insert(mark.to_owned(), value.to_owned());
        variables.insert("COFER_INSTANCE".to_owned(), value.to_owned());
        variables.insert("HOME".to_owned(), dir.path().display().to_string());
        variables.insert("COFER_DATA_DIR".to_owned(), dir.path().join("data").display().to_string());
        Self {
            program: program.into(),
            dir,
            listen: "127.0.0.1:0".to_owned(),
            args: Vec::new(),
            variables,
            leaks,
        }
    }

    /// With the engines of the bed. What it leaves in them fails the test.
    #[must_use]
    pub fn with_engines(mut self) -> Self {
        let label = format!("cofer.instance={}", self.instance());
        self.leaks = self.leaks.label(label);
        for engine in engines::all_present() {
            let variable = format!("COFER_{}_HOST", engine.name().to_uppercase());
            self.variables.insert(variable, engine.host().to_owned());
        }
        self
    }

    /// What it marks its things in engines with.
    pub fn instance(&self) -> &str {
        &self.variables["COFER_INSTANCE"]
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Instead of a free port on loopback.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    #[must_use]
    pub fn without_variable(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self
    }

    /// A place of this test's own: `data` below it is the data directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Runs any command to its end, with nothing on standard input.
    pub async fn cofer(&self, args: &[&str]) -> Ran {
        run(&self.program, &self.variables, args, None).await
    }

    /// The same, to be talked to.
    pub fn command(&self, args: &[&str]) -> Command {
        command(&self.program, &self.variables, args)
    }

    /// Starts `cofer serve` on a free port and waits until it serves.
    pub async fn serve(self) -> App {
        match self.try_serve().await {
            Ok(app) => app,
            Err(failed) => panic!("cofer serve did not start: {failed:?}"),
        }
    }

    /// The same, for starts that are meant to fail.
    pub async fn try_serve(self) -> Result<App, Ran> {
        self.starting().listening().await
    }

    /// Starts `cofer serve` and waits for nothing. It has no address yet.
    pub fn starting(self) -> App {
        let mut command = Command::new(&self.program);
        command.arg("serve").args(["--listen", &self.listen]).args(&self.args);
        command.env_clear().envs(&self.variables).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("cofer starts");
        let stderr = Lines::of(child.stderr.take().expect("piped"));
        let stdout = Lines::of(child.stdout.take().expect("piped"));
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        App { child, start: self, url: String::new(), token: String::new(), http, stdout, stderr }
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Exit code and everything it said, for tests of what a person sees.
    #[track_caller]
    pub fn failed_with(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.stderr
    }

    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout.trim_end()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

/// A running `cofer serve`.
#[derive(Debug)]
pub struct App {
    /// Before `start`: it ends before anybody looks for what is left.
    child: Child,
    start: Start,
    pub url: String,
    /// The admin token.
    pub token: String,
    pub http: reqwest::Client,
    stdout: Lines,
    stderr: Lines,
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// `status code`, after checking that this is the envelope, whole, with a trace id and nothing else.
    #[track_caller]
    pub fn refusal(&self) -> String {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no envelope: {self:?}"));
        let mut fields: Vec<_> = error.keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["code", "details", "message", "trace_id"], "{self:?}");
        assert_eq!(error["trace_id"].as_str().map(str::len), Some(32), "{self:?}");
        assert!(
            error["details"].is_object() && error["message"].as_str().is_some_and(|text| !text.is_empty())
        );
        format!("{} {}", self.status, error["code"].as_str().expect("a code"))
    }
}

impl App {
    /// Waits until one that is [`Start::starting`] serves; gives what it said if it ends instead.
    pub async fn listening(self) -> Result<Self, Ran> {
        let listening = tokio::time::timeout(START_DEADLINE, self.stdout.find("listening on ")).await;
        let Ok(listening) = listening else { panic!("no `listening on` in time; its log: {}", self.log()) };
        let Some(line) = listening else { return Err(self.wait().await.1) };
        let token_file = self.data_dir().join("admin.token");
        let token = self.start.variables.get("COFER_ADMIN_TOKEN").cloned();
        let token = token.or_else(|| Some(std::fs::read_to_string(token_file).ok()?.trim().to_owned()));
        let url = line.trim_start_matches("listening on ").to_owned();
        Ok(Self { url, token: token.unwrap_or_default(), ..self })
    }

    /// Waits until so many requests are being answered, the one that asks included.
    pub async fn in_flight(&self, requests: usize) {
        let wanted = format!("cofer_http_requests_in_flight {requests}");
        until(&wanted, async || self.get("/metrics").await.text.lines().any(|line| line == wanted)).await;
    }

    /// The mark on everything of it in the engines: the label `cofer.instance` has this value.
    pub fn instance(&self) -> &str {
        &self.start.variables["COFER_INSTANCE"]
    }

    /// How much memory it has now.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes << 10
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub fn data_dir(&self) -> PathBuf {
        self.start.data_dir()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.stderr.text()
    }

    /// Waits until the log has this text.
    pub async fn logged(&self, text: &str) -> String {
        let found = tokio::time::timeout(COMMAND_DEADLINE, self.stderr.find(text)).await;
        found.ok().flatten().unwrap_or_else(|| panic!("`{text}` was not logged: {}", self.log()))
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).timeout(COMMAND_DEADLINE)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, text: response.text().await.expect("its body") }
    }

    /// As the admin, or as whoever holds this token.
    pub async fn call(&self, method: Method, path: &str, token: &str, body: Option<&Value>) -> Answer {
        let request = self.request(method, path).bearer_auth(token);
        self.send(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &self.token, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, &self.token, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::PUT, path, &self.token, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::PATCH, path, &self.token, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &self.token, None).await
    }

    /// The command line on the same machine.
    pub async fn cofer(&self, args: &[&str]) -> Ran {
        self.start.cofer(args).await
    }

    /// The same, to be talked to.
    pub fn command(&self, args: &[&str]) -> Command {
        command(&self.start.program, &self.start.variables, args)
    }

    pub async fn cofer_with_input(&self, args: &[&str], input: &str) -> Ran {
        run(&self.start.program, &self.start.variables, args, Some(input)).await
    }

    pub async fn cofer_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Ran {
        let mut all = self.start.variables.clone();
        all.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        run(&self.start.program, &all, args, None).await
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("a signal");
    }

    /// SIGTERM. It must exit with 0, and nothing may be left. Gives back how it could be started again.
    pub async fn stop(self) -> Start {
        self.signal(rustix::process::Signal::TERM);
        let (start, ran) = self.wait().await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        start
    }

    /// SIGKILL, in the middle of whatever it does.
    pub async fn kill(self) -> Start {
        self.signal(rustix::process::Signal::KILL);
        self.wait().await.0
    }

    /// Waits for its end.
    pub async fn wait(self) -> (Start, Ran) {
        let Self { start, mut child, stdout, stderr, .. } = self;
        let status = tokio::time::timeout(STOP_DEADLINE, child.wait()).await;
        let Ok(status) = status else { panic!("it did not end in time; its log: {}", stderr.text()) };
        stderr.ended().await;
        let ran = Ran { code: status.expect("its end").code(), stdout: stdout.text(), stderr: stderr.text() };
        (start, ran)
    }
}

fn command(program: &Path, variables: &BTreeMap<String, String>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(variables).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(
    program: &Path,
    variables: &BTreeMap<String, String>,
    args: &[&str],
    input: Option<&str>,
) -> Ran {
    use tokio::io::AsyncWriteExt;
    let mut child = command(program, variables, args).spawn().expect("cofer starts");
    let mut stdin = child.stdin.take().expect("piped");
    // It may well end without reading.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes()).await;
    drop(stdin);
    let ended = tokio::time::timeout(COMMAND_DEADLINE, child.wait_with_output()).await;
    ended
        .unwrap_or_else(|_| panic!("`cofer {}` did not end in time", args.join(" ")))
        .expect("its output")
        .into()
}

/// Lines of a stream as they come, kept for whoever asks.
#[derive(Clone, Debug)]
struct Lines {
    text: Arc<Mutex<String>>,
    /// How many bytes there are; `None` once the stream has ended.
    grown: tokio::sync::watch::Receiver<Option<usize>>,
}

impl Lines {
    fn of(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let (growing, grown) = tokio::sync::watch::channel(Some(0));
        let kept = text.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let length = {
                    let mut text = kept.lock().expect("not poisoned");
                    text.push_str(&line);
                    text.push('\n');
                    text.len()
                };
                growing.send_replace(Some(length));
            }
            growing.send_replace(None);
        });
        Self { text, grown }
    }

    fn text(&self) -> String {
        self.text.lock().expect("not poisoned").clone()
    }

    /// The first line with this text, or `None` when the stream ended without one.
    async fn find(&self, wanted: &str) -> Option<String> {
        let mut grown = self.grown.clone();
        loop {
            let ended = grown.borrow_and_update().is_none();
            if let Some(line) = self.text().lines().find(|line| line.contains(wanted)) {
                return Some(line.to_owned());
            }
            if ended || grown.changed().await.is_err() {
                return None;
            }
        }
    }

    async fn ended(&self) {
        // An error says that the reader is gone, which is an end too.
        let _ = self.grown.clone().wait_for(Option::is_none).await;
    }
}
