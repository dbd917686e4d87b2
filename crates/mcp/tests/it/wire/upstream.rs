//! An HTTP server by hand: each request is given to the test, with the connection it came on, and the test writes what it likes.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use url::Url;

use super::reply_to;

pub struct Upstream {
    pub url: Url,
    requests: mpsc::UnboundedReceiver<Asked>,
    accepting: JoinHandle<()>,
}

/// A request, and the connection to answer it on.
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Value,
    pub connection: BufReader<TcpStream>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Some(asked) = Asked::read(connection).await {
                        let _ = sender.send(asked);
                    }
                });
            }
        });
        Self { url, requests, accepting }
    }

    pub async fn next(&mut self) -> Asked {
        tokio::time::timeout(super::SECONDS, self.requests.recv()).await.unwrap().unwrap()
    }

    /// Lets everything under way arrive, and says whether anything did.
    pub async fn hears_nothing_for(&mut self, time: std::time::Duration) -> bool {
        tokio::time::timeout(time, self.requests.recv()).await.is_err()
    }

    /// Takes no more connections.
    pub async fn close(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Asked {
    async fn read(connection: TcpStream) -> Option<Self> {
        let mut connection = BufReader::new(connection);
        let mut first = String::new();
        connection.read_line(&mut first).await.ok().filter(|read| *read > 0)?;
        let mut words = first.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.ok()?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Some(Self { method, path, headers, body, connection })
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub async fn says(&mut self, text: &str) {
        // Whoever asked may have hung up.
        let _ = self.connection.write_all(text.as_bytes()).await;
    }

    /// A whole answer; the connection ends with it.
    pub async fn answers_with(mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        self.says(&format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ))
        .await;
        let _ = self.connection.shutdown().await;
    }

    pub async fn answers(self, result: &Value) {
        let body = reply_to(&self.body, result).to_string();
        self.answers_with("200 OK", "Content-Type: application/json\r\n", &body).await;
    }

    pub async fn answers_in_session(self, session: &str, result: &Value) {
        let body = reply_to(&self.body, result).to_string();
        let headers =
            format!("Content-Type: application/json; charset=utf-8\r\nMcp-Session-Id: {session}\r\n");
        self.answers_with("200 OK", &headers, &body).await;
    }

    pub async fn accepts(self) {
        self.answers_with("202 Accepted", "", "").await;
    }

    /// A stream of events begins; it ends with the connection.
    pub async fn begins_stream(&mut self) {
        self.says("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n").await;
    }

    pub async fn streams_answer(mut self, result: &Value) {
        let reply = reply_to(&self.body, result);
        self.says(&format!("event: message\ndata: {reply}\n\n")).await;
        let _ = self.connection.shutdown().await;
    }

    /// Waits until whoever asked hangs up.
    pub async fn sees_them_leave(mut self) {
        let read = tokio::time::timeout(super::SECONDS, self.connection.read(&mut [0; 16])).await;
        assert!(matches!(read.unwrap(), Ok(0) | Err(_)));
    }
}

/// A message that nobody asked for.
pub fn notification(text: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}})
}
