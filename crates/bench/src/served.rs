//! A Cofer to be measured: a process of its own, on a data directory of its own.

use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::process::sibling;

pub struct Served {
    child: Child,
    pub data: TempDir,
    /// `HOST:PORT`.
    pub address: String,
    pub token: String,
    http: reqwest::Client,
}

impl Served {
    /// The release binary, with the engines of the bed.
    pub async fn cofer() -> Self {
        Self::cofer_on(tempfile::tempdir().expect("a directory")).await
    }

    pub async fn cofer_on(data: TempDir) -> Self {
        Self::cofer_with(data, &[]).await
    }

    /// With these variables besides.
    pub async fn cofer_with(data: TempDir, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(sibling("cofer"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "error", "--data-dir"]).arg(data.path());
        command.envs(variables.iter().copied());
        for engine in ["DOCKER", "PODMAN"] {
            if let Ok(host) = std::env::var(format!("COFER_TEST_{engine}_HOST")) {
                command.env(format!("COFER_{engine}_HOST"), host);
            }
        }
        Self::started(command, data).await
    }

    /// Another of this program's own, which has no data.
    pub async fn other(what: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(what);
        Self::started(command, tempfile::tempdir().expect("a directory")).await
    }

    /// Our own trivial server, as a child.
    pub async fn register_external(&self, name: &str, args: &[&str]) {
        let config = json!({"command": sibling("misbehaving-mcp-server"), "args": args});
        let body = json!({"name": name, "transport": "stdio", "config": config});
        let url = format!("http://{}/api/v1/projects/default/mcp-servers", self.address);
        let answer =
            self.http.post(url).bearer_auth(&self.token).json(&body).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 201, "{}", answer.text().await.unwrap_or_default());
    }

    /// From now on every tool is called after its server, so that servers alike have tools that are not.
    pub async fn qualify_names(&self) {
        let url = format!("http://{}/api/v1/projects/default", self.address);
        let request = self.http.patch(url).bearer_auth(&self.token).json(&json!({"namespacing": "always"}));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200, "{}", answer.text().await.unwrap_or_default());
    }

    /// The id of a new client's session.
    pub async fn open_session(&self) -> String {
        let client = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let request =
            self.http.post(format!("http://{}/mcp", self.address)).bearer_auth(&self.token).json(&body);
        let answer = request.send().await.expect("an answer");
        let session = answer.headers().get("mcp-session-id").expect("a session").to_str().expect("text");
        session.to_owned()
    }

    /// Any command that says `listening on http://…`.
    pub async fn started(mut command: Command, data: TempDir) -> Self {
        command.stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await.expect("its output").expect("a line");
        let address = line.rsplit("//").next().unwrap_or_default().to_owned();
        let token =
            std::fs::read_to_string(data.path().join("admin.token")).unwrap_or_default().trim().to_owned();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { child, data, address, token, http }
    }

    pub async fn register(&self, name: &str, more: Value) -> Value {
        let mut body = json!({"name": name, "image": "cofer-test/misbehaving"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let url = format!("http://{}/api/v1/mcp/hosted", self.address);
        let answer =
            self.http.post(url).bearer_auth(&self.token).json(&body).send().await.expect("an answer");
        let (status, text) = (answer.status().as_u16(), answer.text().await.expect("its body"));
        assert_eq!(status, 201, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    pub async fn servers(&self) -> Vec<Value> {
        let url = format!("http://{}/api/v1/mcp/hosted", self.address);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await.expect("an answer");
        answer.json().await.expect("JSON")
    }

    /// Comes back when every call so far is a row of the database: so whoever is measured next does not pay for it.
    pub async fn made_rows(&self) {
        let url = format!("http://{}/api/v1/projects/default/tool-calls?limit=1", self.address);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    }

    /// A chat's answer, as it streams.
    pub async fn chat(&self, message: &str) -> reqwest::Response {
        let url = format!("http://{}/api/v1/projects/default/chat", self.address);
        let request = self.http.post(url).bearer_auth(&self.token).json(&json!({"message": message}));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
        answer
    }

    /// Below the hosted servers; whatever the answer.
    pub async fn post(&self, path: &str) {
        let url = format!("http://{}/api/v1/mcp/hosted/{path}", self.address);
        let request = self.http.post(url).bearer_auth(&self.token).json(&json!({}));
        request.send().await.expect("an answer").bytes().await.expect("its body");
    }

    /// Calls a tool; whatever comes of it.
    pub async fn post_call(&self, name: &str, params: &str) {
        let url = format!("http://{}/api/v1/mcp/hosted/{name}/call", self.address);
        let body = format!("{{\"method\":\"tools/call\",\"params\":{params}}}");
        let request = self.http.post(url).bearer_auth(&self.token).header("content-type", "application/json");
        request.body(body).send().await.expect("an answer").bytes().await.expect("its body");
    }

    pub async fn caller(&self, name: &str, params: &str) -> crate::client::Caller {
        let body = format!("{{\"method\":\"tools/call\",\"params\":{params}}}");
        let path = format!("/api/v1/mcp/hosted/{name}/call");
        crate::client::Caller::new(&self.address, &path, &self.token, &body).await
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub fn resident_kib(&self) -> u64 {
        resident_kib(self.pid())
    }

    /// What it has asked for itself. By this it is told what one more of something costs: pages of the program, which come in with the first
    /// of a kind, are not among it.
    pub fn own_kib(&self) -> u64 {
        memory_kib(self.pid(), "RssAnon:")
    }

    /// What the largest of its guardians shares with nobody.
    pub fn guardian_kib(&self) -> u64 {
        let children: String = self.of_threads("children").collect();
        let own =
            children.split_whitespace().filter_map(|pid| Some(memory_kib(pid.parse().ok()?, "RssAnon:")));
        own.max().expect("a guardian")
    }

    /// What its threads have used of the processors so far.
    pub fn processor_micros(&self) -> f64 {
        self.of_threads("schedstat")
            .map(|text| text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).expect("a number"))
            .sum::<f64>()
            / 1e3
    }

    /// What the kernel tells of each thread. One that has ended since it was listed is left out.
    fn of_threads(&self, what: &'static str) -> impl Iterator<Item = String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        threads.flatten().filter_map(move |thread| std::fs::read_to_string(thread.path().join(what)).ok())
    }

    /// SIGTERM, and its end. Gives back the data.
    pub async fn stop(mut self) -> TempDir {
        let pid = self.pid().to_string();
        Command::new("kill").arg(pid).status().await.expect("a signal");
        self.child.wait().await.expect("its end");
        self.data
    }
}

pub fn resident_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS:")
}

fn memory_kib(pid: u32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix(which)).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
