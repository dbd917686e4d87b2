//! An attach made by hand: what a call to a container costs without Cofer.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub struct Attach {
    stream: UnixStream,
    received: Vec<u8>,
    next: u64,
}

impl Attach {
    /// `host` as in `DOCKER_HOST`.
    pub async fn new(host: &str, container: &str) -> Self {
        let path = host.strip_prefix("unix://").expect("a unix socket");
        let mut stream = UnixStream::connect(path).await.expect("the engine");
        let request = format!(
            "POST /v1.40/containers/{container}/attach?stream=1&stdin=1&stdout=1&detachKeys= HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\n\
             Upgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut received = Vec::new();
        while !received.windows(4).any(|end| end == b"\r\n\r\n") {
            stream.read_buf(&mut received).await.expect("an answer");
        }
        assert!(received.starts_with(b"HTTP/1.1 101") || received.starts_with(b"HTTP/1.1 200"));
        Self { stream, received: Vec::new(), next: 0 }
    }

    /// One line there and its answer back, found by the id.
    pub async fn call(&mut self, params: &str) -> Duration {
        self.next += 1;
        let id = format!("\"by-hand-{}\"", self.next);
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}\n");
        let began = Instant::now();
        self.stream.write_all(line.as_bytes()).await.expect("the line is sent");
        self.received.clear();
        while !self.received.windows(id.len()).any(|part| part == id.as_bytes())
            || !self.received.ends_with(b"\n")
        {
            let read = self.stream.read_buf(&mut self.received).await.expect("an answer");
            assert!(read > 0, "the stream ended");
        }
        began.elapsed()
    }
}
