//! The smallest HTTP client that can call a tool: one connection, one request at a time.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct Caller {
    connection: TcpStream,
    request: Vec<u8>,
    received: Vec<u8>,
    /// Once its head is there.
    expected: Option<Expected>,
}

/// How it is told where an answer ends.
#[derive(Clone, Copy)]
enum Expected {
    /// It will have so many bytes.
    Bytes(usize),
    /// The last chunk of it is empty.
    Chunks,
}

impl Caller {
    /// To `HOST:PORT`, for a POST of this body.
    pub async fn new(address: &str, path: &str, token: &str, body: &str) -> Self {
        Self::with_headers(address, path, token, "", body).await
    }

    /// With these headers besides, each with its line break.
    pub async fn with_headers(address: &str, path: &str, token: &str, headers: &str, body: &str) -> Self {
        let connection = TcpStream::connect(address).await.expect("a connection");
        connection.set_nodelay(true).expect("no delay");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             {headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { connection, request: request.into_bytes(), received: Vec::new(), expected: None }
    }

    pub async fn call(&mut self) -> Duration {
        let began = Instant::now();
        self.connection.write_all(&self.request).await.expect("the request is sent");
        self.received.clear();
        self.expected = None;
        while !self.is_whole() {
            let read = self.connection.read_buf(&mut self.received).await.expect("an answer");
            assert!(read > 0, "the connection ended");
        }
        assert!(self.received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.received));
        began.elapsed()
    }

    /// How long the last answer was.
    pub fn received_bytes(&self) -> usize {
        self.received.len()
    }

    fn is_whole(&mut self) -> bool {
        if self.expected.is_none() {
            self.expected = self.announced();
        }
        match self.expected {
            None => false,
            Some(Expected::Bytes(bytes)) => self.received.len() >= bytes,
            Some(Expected::Chunks) => self.received.ends_with(b"\r\n0\r\n\r\n"),
        }
    }

    fn announced(&self) -> Option<Expected> {
        let text = String::from_utf8_lossy(&self.received);
        let (head, _) = text.split_once("\r\n\r\n")?;
        let head_lower = head.to_ascii_lowercase();
        if head_lower.contains("\r\ntransfer-encoding: chunked") {
            return Some(Expected::Chunks);
        }
        let length =
            head_lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        Some(Expected::Bytes(head.len() + 4 + length.unwrap_or(0_usize)))
    }
}

/// So many callers at once for so long: calls a second, and the median time of one.
pub async fn load(callers: Vec<Caller>, seconds: f64) -> (Vec<Caller>, f64, f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let work = callers.into_iter().map(|mut caller| {
        tokio::spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < until {
                times.push(caller.call().await);
            }
            (caller, times)
        })
    });
    let began = Instant::now();
    let mut callers = Vec::new();
    let mut times = Vec::new();
    for ended in futures_util::future::join_all(work).await {
        let (caller, more) = ended.expect("a caller");
        callers.push(caller);
        times.extend(more);
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    (callers, rate, crate::figures::median_micros(&times))
}
