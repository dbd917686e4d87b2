//! The floor: HTTP in front of a child process, with no tokens, no routes, no sessions, no record. It matches ids, and that is all. It takes
//! both forms of a call that Cofer takes, and answers in the same one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::ChildStdin;
use tokio::sync::{mpsc, oneshot};

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Box<RawValue>>>>>;

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: &'a str,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct Answer {
    id: u64,
    result: Box<RawValue>,
}

struct Proxy {
    waiting: Waiting,
    next: AtomicU64,
    lines: mpsc::Sender<String>,
}

pub async fn serve() {
    let mut child = crate::process::child().spawn().expect("the server");
    let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let waiting = Waiting::default();
    let (lines, to_write) = mpsc::channel(1024);
    tokio::spawn(write(stdin, to_write));
    let answers = waiting.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(answer) = serde_json::from_str::<Answer>(&line) else { continue };
            let waiter = answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&answer.id);
            if let Some(waiter) = waiter {
                let _ = waiter.send(answer.result);
            }
        }
    });
    let proxy = Arc::new(Proxy { waiting, next: AtomicU64::new(1), lines });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("listening on http://{}", listener.local_addr().expect("its address"));
    loop {
        let (connection, _) = listener.accept().await.expect("a connection");
        connection.set_nodelay(true).expect("no delay");
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(proxy.clone(), request));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service)
                .await;
        });
    }
}

async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>) {
    while let Some(line) = lines.recv().await {
        stdin.write_all(line.as_bytes()).await.expect("stdin");
    }
}

async fn answer(proxy: Arc<Proxy>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let call: Call<'_> = serde_json::from_slice(&body).expect("a call");
    let id = proxy.next.fetch_add(1, Ordering::Relaxed);
    let (waiter, answer) = oneshot::channel();
    proxy.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, waiter);
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\",\"params\":{}}}\n",
        call.method, call.params
    );
    proxy.lines.send(line).await.expect("the writer");
    let result = answer.await.expect("an answer");
    let body = match call.id {
        Some(id) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"),
        None => format!("{{\"result\":{result},\"error\":null}}"),
    };
    Ok(Response::builder()
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .expect("a response"))
}
