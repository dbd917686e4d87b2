//! A real browser (Debian's `chromium`, without a window), for what only a browser can tell: that scripts run, that the page's policy
//! forbids none of them, and that nothing runs which should not.
//!
//! It is spoken to by its debugging protocol over a pipe: JSON, each message ended by a zero byte. The browser wants that pipe as
//! descriptors 3 and 4, and a shell makes its stdin and stdout these. It ends with the pipe, so a test that dies leaves none behind.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const DEADLINE: Duration = Duration::from_mins(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
const START: &str = r#"exec "$0" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking --remote-debugging-pipe --user-data-dir="$1" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    said: ChildStdin,
    heard: BufReader<ChildStdout>,
    session: Option<String>,
    commands: u64,
    complaints: Vec<String>,
    /// Its profile, which ends with it.
    _profile: TempDir,
}

impl Browser {
    /// A browser that shows this page. `engines::browser` knows the program.
    pub async fn open(program: &Path, url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a directory for the browser");
        let mut command = Command::new("sh");
        command.args(["-c", START]).arg(program).arg(profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut process = command.spawn().expect("a browser");
        let said = process.stdin.take().expect("its stdin is ours");
        let heard = BufReader::new(process.stdout.take().expect("its stdout is ours"));
        let mut browser = Self {
            process,
            said,
            heard,
            session: None,
            commands: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let page = browser.command("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(ToOwned::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.command(domain, json!({})).await;
        }
        browser.command("Page.navigate", json!({"url": url})).await;
        browser
    }

    /// As wide as a telephone, say.
    pub async fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// What this expression is, in the page.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.command("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns once this expression is true in the page.
    pub async fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + DEADLINE;
        while self.evaluate(&format!("Boolean({expression})")).await != true {
            if Instant::now() > deadline {
                let page = self.evaluate("document.body.innerText").await;
                panic!("this never came: {expression}; the page: {page}; complaints: {:?}", self.complaints);
            }
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Ends it. Errors that no script caught, and what the page's policy forbade, come out here.
    pub async fn close(mut self) -> Vec<String> {
        self.session = None;
        self.command("Browser.close", json!({})).await;
        let ended = tokio::time::timeout(DEADLINE, self.process.wait()).await;
        ended.expect("a browser that ends when told").expect("a browser that can be waited for");
        self.complaints
    }

    async fn command(&mut self, method: &str, params: Value) -> Value {
        self.commands += 1;
        let mut message = json!({"id": self.commands, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.said.write_all(&bytes).await.expect("a browser that listens");
        let answer = tokio::time::timeout(DEADLINE, self.answer(self.commands)).await;
        answer.unwrap_or_else(|_| panic!("the browser did not answer {method}"))
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let mut bytes = Vec::new();
            self.heard.read_until(0, &mut bytes).await.expect("a browser that answers");
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let message: Value = serde_json::from_slice(&bytes).expect("JSON of a browser");
            self.complaints.extend(complaint(&message));
            if message["id"] == id {
                assert!(message["error"].is_null(), "{}", message["error"]);
                return message["result"].clone();
            }
        }
    }
}

fn complaint(message: &Value) -> Option<String> {
    let params = &message["params"];
    match message["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        // A refused request is told, too, and is not a mistake of the page.
        "Log.entryAdded" if params["entry"]["source"] != "network" => {
            Some(params["entry"]["text"].to_string())
        }
        _ => None,
    }
}
