//! The Claude Messages API, as far as a client can tell: a real HTTP server that streams what a test makes it say, refuses, delays,
//! breaks off at a given byte, or waits in the middle until told to go on. It keeps every request.
//!
//! ```no_run
//! # async fn test() {
//! use cofer_testkit::model_api::{ModelApi, Reply};
//! use serde_json::json;
//! let api = ModelApi::scripted(vec![Reply::tool("t1", "echo", &json!({"text": "x"})), Reply::text("done")]).await;
//! // … a client asks `api.url` twice …
//! assert_eq!(api.requests()[0]["stream"], true);
//! # }
//! ```

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

const BODY_BYTES_MAX: usize = 64 << 20;

type Script = dyn Fn(&Value) -> Reply + Send + Sync;

/// A running API. It ends, with all its connections, when this is dropped.
#[derive(Debug)]
pub struct ModelApi {
    /// For `ANTHROPIC_BASE_URL`.
    pub url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    task: JoinHandle<()>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub at: Instant,
    /// When the first and the last byte of the answer had been written.
    pub answered: Option<(Instant, Instant)>,
}

impl Heard {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What it says to one request.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    /// Events of the stream, or the body of a refusal.
    parts: Vec<String>,
    before: Duration,
    between: Duration,
    /// Breaks off after so many bytes of the body.
    cut_at: Option<usize>,
    /// Waits for a permit before the last part but so many.
    gate: Option<(Arc<Semaphore>, usize)>,
}

impl Reply {
    /// Says this, word by word, and is done.
    pub fn text(text: &str) -> Self {
        Self::message(&[json!({"type": "text", "text": text})], "end_turn")
    }

    pub fn tool(id: &str, name: &str, input: &Value) -> Self {
        Self::message(&[json!({"type": "tool_use", "id": id, "name": name, "input": input})], "tool_use")
    }

    /// Wants several tools called: id, name, input.
    pub fn tools(tools: &[(&str, &str, Value)]) -> Self {
        let block = |(id, name, input): &(&str, &str, Value)| json!({"type": "tool_use", "id": id, "name": name, "input": input});
        Self::message(&tools.iter().map(block).collect::<Vec<_>>(), "tool_use")
    }

    /// Any blocks, streamed as the API does.
    pub fn message(blocks: &[Value], stop_reason: &str) -> Self {
        let usage = json!({"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 50});
        let message = json!({
            "id": "msg_01", "type": "message", "role": "assistant", "model": "claude-scripted",
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        let mut parts = vec![
            event(&json!({"type": "message_start", "message": message})),
            event(&json!({"type": "ping"})),
        ];
        for (index, block) in blocks.iter().enumerate() {
            parts.extend(block_events(index, block));
        }
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": null});
        parts.push(event(&json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}})));
        parts.push(event(&json!({"type": "message_stop"})));
        let headers = vec![("content-type".to_owned(), "text/event-stream; charset=utf-8".to_owned())];
        Self {
            status: 200,
            headers,
            parts,
            before: Duration::ZERO,
            between: Duration::ZERO,
            cut_at: None,
            gate: None,
        }
    }

    /// Refuses as the API does.
    pub fn refusal(status: u16, kind: &str, message: &str) -> Self {
        let body =
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"});
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self { status, headers, parts: vec![body.to_string()], ..Self::text("") }
    }

    pub fn overloaded() -> Self {
        Self::refusal(529, "overloaded_error", "Overloaded")
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Fails with an event in the middle of the stream.
    #[must_use]
    pub fn failing_with(mut self, kind: &str) -> Self {
        self.parts.truncate(self.parts.len() - 2);
        self.parts.push(event(&json!({"type": "error", "error": {"type": kind, "message": "so it goes"}})));
        self
    }

    /// Takes so long to begin.
    #[must_use]
    pub fn after(self, before: Duration) -> Self {
        Self { before, ..self }
    }

    /// Takes so long between two events.
    #[must_use]
    pub fn slowly(self, between: Duration) -> Self {
        Self { between, ..self }
    }

    /// Hangs up after so many bytes of the body.
    #[must_use]
    pub fn cut_at(self, bytes: usize) -> Self {
        Self { cut_at: Some(bytes), ..self }
    }

    /// Says nothing at all before the gate has a permit for it.
    #[must_use]
    pub fn held_by(self, gate: &Arc<Semaphore>) -> Self {
        let parts = self.parts.len();
        Self { gate: Some((gate.clone(), parts)), ..self }
    }

    /// Says everything but the end, and then waits for a permit.
    #[must_use]
    pub fn end_held_by(self, gate: &Arc<Semaphore>) -> Self {
        Self { gate: Some((gate.clone(), 2)), ..self }
    }
}

/// A piece of text, a call, and whatever else, in as many events as the API makes of them.
fn block_events(index: usize, block: &Value) -> Vec<String> {
    let mut start = block.clone();
    let deltas: Vec<Value> = match block["type"].as_str() {
        Some("text") => {
            start["text"] = json!("");
            let words = block["text"].as_str().unwrap_or_default().split_inclusive(' ');
            words.map(|text| json!({"type": "text_delta", "text": text})).collect()
        }
        Some("tool_use") => {
            start["input"] = json!({});
            let input: Vec<char> = block["input"].to_string().chars().collect();
            let pieces = input.chunks(1024).map(|piece| piece.iter().collect::<String>());
            pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece})).collect()
        }
        _ => Vec::new(),
    };
    let delta = |delta: Value| event(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
    let begin = event(&json!({"type": "content_block_start", "index": index, "content_block": start}));
    let end = event(&json!({"type": "content_block_stop", "index": index}));
    std::iter::once(begin).chain(deltas.into_iter().map(delta)).chain(std::iter::once(end)).collect()
}

fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().expect("a type"))
}

impl ModelApi {
    /// One reply after the other; the last one again and again.
    pub async fn scripted(replies: Vec<Reply>) -> Self {
        let next = Mutex::new(0);
        Self::start(move |_| {
            let mut next = next.lock().expect("not poisoned");
            let reply = replies[(*next).min(replies.len() - 1)].clone();
            *next += 1;
            reply
        })
        .await
    }

    /// Whatever this says to the body of each request.
    pub async fn start(script: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        let task = tokio::spawn(accept(listener, heard.clone(), Arc::new(script)));
        Self { url, heard, task }
    }

    /// The bodies of all requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.heard().into_iter().map(|heard| heard.body).collect()
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

impl Drop for ModelApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, heard: Arc<Mutex<Vec<Heard>>>, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, heard.clone(), script.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One request after the other, until the client leaves or a reply breaks off.
async fn serve(stream: TcpStream, heard: Arc<Mutex<Vec<Heard>>>, script: Arc<Script>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let reply = script(&request.body);
        let number = {
            let mut heard = heard.lock().expect("not poisoned");
            heard.push(request);
            heard.len() - 1
        };
        let Some(answered) = write(stream.get_mut(), reply).await else { return };
        heard.lock().expect("not poisoned")[number].answered = Some(answered);
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Heard> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    assert!(lines.first()?.starts_with("POST /v1/messages "), "the API has no {lines:?}");
    let header = |line: &String| {
        line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
    };
    let headers: Vec<_> = lines.iter().skip(1).filter_map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").expect("a length");
    let length: usize = length.1.parse().expect("a number");
    assert!(length <= BODY_BYTES_MAX, "a request of {length} bytes");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let at = Instant::now();
    Some(Heard { headers, body: serde_json::from_slice(&body).expect("JSON"), at, answered: None })
}

/// When the first and the last byte had been written; `None` when the connection is not to be used again.
async fn write(stream: &mut TcpStream, reply: Reply) -> Option<(Instant, Instant)> {
    if !reply.before.is_zero() {
        tokio::time::sleep(reply.before).await;
    }
    let headers: String =
        reply.headers.iter().map(|(name, value)| [name, ": ", value, "\r\n"].concat()).collect();
    let head = format!("HTTP/1.1 {} Scripted\r\ntransfer-encoding: chunked\r\n{headers}\r\n", reply.status);
    let (mut written, parts) = (0, reply.parts.len());
    let (mut head, mut first) = (Some(head), None);
    for (at, part) in reply.parts.iter().enumerate() {
        if let Some((gate, _)) = reply.gate.as_ref().filter(|(_, left)| at + left == parts) {
            gate.acquire().await.ok()?.forget();
        }
        let left = reply.cut_at.map_or(usize::MAX, |cut| cut - written);
        let piece = &part.as_bytes()[..part.len().min(left)];
        written += piece.len();
        let mut bytes = head.take().unwrap_or_default().into_bytes();
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(piece);
        if piece.len() < part.len() {
            // In the middle of a chunk, as when a connection breaks.
            stream.write_all(&bytes).await.ok()?;
            return None;
        }
        bytes.extend_from_slice(b"\r\n");
        stream.write_all(&bytes).await.ok()?;
        first.get_or_insert_with(Instant::now);
        if !reply.between.is_zero() {
            tokio::time::sleep(reply.between).await;
        }
    }
    let last = Instant::now();
    stream.write_all(b"0\r\n\r\n").await.ok()?;
    Some((first.unwrap_or(last), last))
}
