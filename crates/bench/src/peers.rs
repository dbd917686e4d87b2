//! Cofer beside others that put HTTP before a stdio server, in the same run: calls a second, the median time of one, memory.
//!
//! Cofer asks for a token, has sessions and records every call; the others here do neither of the first and last. They are installed by
//! `bench/peers`; one that is not there is left out.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::client::{Caller, load};
use crate::figures::{median, row};
use crate::process::sibling;
use crate::served::Served;

const CLIENTS: usize = 16;
const ROUNDS: usize = 5;
const ROUND_SECONDS: f64 = 2.0;
const START_MAX: Duration = Duration::from_secs(30);

pub async fn measure() {
    let (floor, cofer) = (Served::other("raw-proxy").await, Served::cofer().await);
    cofer.register_external("echo", &[]).await;
    let installed = PathBuf::from(std::env::var_os("COFER_BENCH_PEERS").unwrap_or_default());
    let mut measured = vec![
        Measured::new("a bare proxy: the floor", floor.pid(), at_floor(&floor).await),
        Measured::new("Cofer: token, sessions, record", cofer.pid(), of_cofer(&cofer).await),
    ];
    let mut peers = Vec::new();
    for peer in [rust_proxy(&installed).await, npm_proxy(&installed).await].into_iter().flatten() {
        measured.push(Measured::new(peer.name, peer.pid(), peer.callers().await));
        peers.push(peer);
    }
    for _ in 0..ROUNDS {
        for one in &mut measured {
            one.round().await;
            cofer.made_rows().await;
        }
    }
    let floor_rate = median(measured[0].rates.clone());
    for one in measured {
        one.tell(floor_rate);
    }
    floor.stop().await;
    cofer.stop().await;
}

struct Measured {
    name: &'static str,
    pid: u32,
    callers: Vec<Caller>,
    rates: Vec<f64>,
    times: Vec<f64>,
}

impl Measured {
    fn new(name: &'static str, pid: u32, callers: Vec<Caller>) -> Self {
        Self { name, pid, callers, rates: Vec::new(), times: Vec::new() }
    }

    async fn round(&mut self) {
        let callers = std::mem::take(&mut self.callers);
        let (callers, rate, time) = load(callers, ROUND_SECONDS).await;
        self.callers = callers;
        self.rates.push(rate);
        self.times.push(time);
    }

    fn tell(self, floor_rate: f64) {
        let rate = median(self.rates);
        let memory = crate::served::resident_kib(self.pid) / 1024;
        let figure = format!(
            "{rate:.0}/s ({:.0} % of the floor), p50 {:.0} µs, {memory} MiB",
            100.0 * rate / floor_rate,
            median(self.times)
        );
        row(&format!("peers, {CLIENTS} clients: {}", self.name), &figure, "");
    }
}

fn call(tool: &str) -> String {
    let params = json!({"name": tool, "arguments": {"text": "hello"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

async fn at_floor(floor: &Served) -> Vec<Caller> {
    let mut callers = Vec::new();
    for _ in 0..CLIENTS {
        let headers = in_session("0123456789abcdef0123456789abcdef");
        callers.push(Caller::with_headers(&floor.address, "/", "", &headers, &call("echo")).await);
    }
    callers
}

async fn of_cofer(cofer: &Served) -> Vec<Caller> {
    let mut callers = Vec::new();
    for _ in 0..CLIENTS {
        let headers = in_session(&cofer.open_session().await);
        callers
            .push(Caller::with_headers(&cofer.address, "/mcp", &cofer.token, &headers, &call("echo")).await);
    }
    callers
}

fn in_session(session: &str) -> String {
    format!("Mcp-Session-Id: {session}\r\nAccept: application/json, text/event-stream\r\n")
}

/// Somebody else's program before our trivial server.
struct Peer {
    name: &'static str,
    child: Child,
    /// `HOST:PORT`.
    address: String,
    path: &'static str,
    tool: &'static str,
    _folder: TempDir,
}

/// The crate `mcp-proxy`.
async fn rust_proxy(installed: &Path) -> Option<Peer> {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port().await);
    let config = folder.path().join("proxy.toml");
    let server = sibling("misbehaving-mcp-server").display().to_string();
    let text = format!(
        "[proxy]\nname = \"bench\"\nversion = \"1\"\nseparator = \"_\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n\
         [[backends]]\nname = \"echo\"\ntransport = \"stdio\"\ncommand = {server:?}\n"
    );
    std::fs::write(&config, text).expect("its configuration");
    let mut command = Command::new(installed.join("bin/mcp-proxy"));
    command.arg("--config").arg(config).env("RUST_LOG", "error");
    Peer::start("mcp-proxy 0.6.0 (Rust)", command, port, "/", "echo_echo", folder).await
}

/// The npm package `mcp-proxy`.
async fn npm_proxy(installed: &Path) -> Option<Peer> {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port().await);
    let mut command = Command::new(installed.join("node_modules/.bin/mcp-proxy"));
    command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--"]);
    command.arg(sibling("misbehaving-mcp-server"));
    Peer::start("mcp-proxy 6.7.19 (npm)", command, port, "/mcp", "echo", folder).await
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("its address").port()
}

impl Peer {
    async fn start(
        name: &'static str,
        mut command: Command,
        port: u16,
        path: &'static str,
        tool: &'static str,
        folder: TempDir,
    ) -> Option<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let Ok(child) = command.spawn() else {
            row(&format!("peers: {name}"), "not installed; see bench/peers", "");
            return None;
        };
        let address = format!("127.0.0.1:{port}");
        let listens = async {
            while TcpStream::connect(&address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START_MAX, listens).await.expect("it listens");
        Some(Self { name, child, address, path, tool, _folder: folder })
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    async fn callers(&self) -> Vec<Caller> {
        let mut callers = Vec::new();
        for _ in 0..CLIENTS {
            let headers = in_session(&self.open_session().await);
            let call = call(self.tool);
            callers.push(Caller::with_headers(&self.address, self.path, "", &headers, &call).await);
        }
        callers
    }

    async fn open_session(&self) -> String {
        let client = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let url = format!("http://{}{}", self.address, self.path);
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let accept = ("accept", "application/json, text/event-stream");
        let answer = http.post(&url).header(accept.0, accept.1).json(&hello).send().await.expect("an answer");
        let session = answer.headers().get("mcp-session-id").expect("a session").clone();
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let told = http.post(&url).header(accept.0, accept.1).header("mcp-session-id", &session).json(&done);
        told.send().await.expect("an answer");
        session.to_str().expect("text").to_owned()
    }
}
