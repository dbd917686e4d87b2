//! OAuth on both sides, against a real authorization server: logins at servers elsewhere (`upstream`), tokens of an issuer at our own
//! endpoint (`inbound`), authorization servers that mean no good (`hostile`), and the conformance suite's scenarios (`conformance`).

mod conformance;
mod hostile;
mod inbound;
mod upstream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cofer_testkit::app::{Answer, App};
use cofer_testkit::engines;
use reqwest::{Client, redirect};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use url::Url;

const SERVERS: &str = "/api/v1/projects/default/mcp-servers";
const TOOLS: &str = "/api/v1/projects/default/tools";

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/oauth").join(name)
}

/// `testbed/oauth/authority.mjs`: an authorization server, and an MCP server that takes its tokens.
struct Authority {
    process: Child,
    issuer: String,
    mcp: String,
    http: Client,
}

impl Authority {
    async fn start(token_seconds: u32) -> Option<Self> {
        let tools = engines::tools()?;
        let mut process = Command::new(tools.join("bin/node"));
        process.arg(script("authority.mjs")).arg(tools.join("npm/node_modules"));
        process.env("TOKEN_SECONDS", token_seconds.to_string());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = process.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let text = |field: &str| told[field].as_str().unwrap().to_owned();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().no_proxy().build().unwrap();
        Some(Self { process, issuer: text("issuer"), mcp: text("mcp"), http })
    }

    async fn control(&self, what: &str, body: Value) -> Value {
        let answer =
            self.http.post(format!("{}/control/{what}", self.issuer)).json(&body).send().await.unwrap();
        answer.json().await.unwrap()
    }

    /// How often something happened there.
    async fn count(&self, of: &str) -> u64 {
        let answer = self.http.get(format!("{}/control/counts", self.issuer)).send().await.unwrap();
        answer.json::<Value>().await.unwrap()[of].as_u64().unwrap()
    }

    /// It ends with its stdin.
    async fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().await.unwrap().success());
    }
}

/// A person's browser: keeps cookies, and follows redirects.
struct Browser {
    http: Client,
    cookies: BTreeMap<String, String>,
}

/// The page that a browser comes to in the end.
#[derive(Debug)]
struct Page {
    status: u16,
    content_type: String,
    text: String,
}

impl Browser {
    fn new() -> Self {
        let http = Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap();
        Self { http, cookies: BTreeMap::new() }
    }

    async fn open(&mut self, address: &str) -> Page {
        let mut url = Url::parse(address).unwrap();
        for _ in 0..10 {
            let cookies: Vec<_> =
                self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let request = self.http.get(url.clone()).header("cookie", cookies.join("; "));
            let response = request.send().await.unwrap();
            for cookie in response.headers().get_all("set-cookie") {
                let pair = cookie.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap();
                self.cookies.insert(pair.0.to_owned(), pair.1.to_owned());
            }
            let header = |name: &str| Some(response.headers().get(name)?.to_str().unwrap().to_owned());
            let Some(location) = header("location") else {
                let (status, content_type) = (response.status().as_u16(), header("content-type"));
                let text = response.text().await.unwrap();
                return Page { status, content_type: content_type.unwrap_or_default(), text };
            };
            url = url.join(&location).unwrap();
        }
        panic!("redirects without end, at {url}");
    }
}

/// Registers a server at this address.
async fn register(app: &App, name: &str, url: &str) {
    register_with(app, name, json!({"url": url})).await;
}

async fn register_with(app: &App, name: &str, config: Value) {
    let answer = app.post(SERVERS, &json!({"name": name, "transport": "http", "config": config})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

async fn status(app: &App, name: &str) -> Value {
    app.get(&format!("{SERVERS}/{name}")).await.json()
}

async fn login_status(app: &App, name: &str) -> Value {
    app.get(&format!("{SERVERS}/{name}/login")).await.json()
}

/// Begins a login, whatever comes of it.
async fn begin(app: &App, name: &str) -> Answer {
    app.call(reqwest::Method::POST, &format!("{SERVERS}/{name}/login"), &app.token, None).await
}

/// Logs in as a person would.
async fn log_in(app: &App, name: &str) -> Page {
    let begun = begin(app, name).await;
    assert_eq!(begun.status, 200, "{begun:?}; log: {}", app.log());
    Browser::new().open(begun.json()["authorize_url"].as_str().unwrap()).await
}

async fn logged_in(app: &App, name: &str) {
    let page = log_in(app, name).await;
    assert_eq!(
        (page.status, page.text.as_str()),
        (200, "You are logged in. This page can be closed.\n"),
        "{page:?}"
    );
}

/// Calls a tool by REST, whatever comes of it.
async fn call(app: &App, tool: &str) -> Answer {
    app.post(&format!("{TOOLS}/call"), &json!({"name": tool, "arguments": {}})).await
}

/// The first text of its result.
async fn text(app: &App, tool: &str) -> String {
    let answer = call(app, tool).await;
    assert_eq!(answer.status, 200, "{tool}: {answer:?}; log: {}", app.log());
    answer.json()["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// Whether anything that Cofer has on disk or said to its log has this in it.
fn is_anywhere(app: &App, text: &str) -> bool {
    let files = std::fs::read_dir(app.data_dir()).unwrap().flatten().map(|entry| entry.path());
    let in_file = |path: PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    app.log().contains(text) || files.filter(|path| path.is_file()).any(in_file)
}
