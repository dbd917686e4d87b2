//! Clients that are huge, slow, many or malicious. The answer is a clear refusal, and nobody else notices.

use std::time::{Duration, Instant};

use cofer_testkit::app::App;
use cofer_testkit::leaks::Descriptors;
use cofer_testkit::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::{serving, start};

async fn connect(app: &App) -> TcpStream {
    TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap()
}

/// A client that asks for far more than the kernel would keep for it, and reads none of it.
pub async fn ask_without_reading(app: &App) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(app.url.trim_start_matches("http://").parse().unwrap()).await.unwrap();
    let head =
        format!("GET /api/openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", app.token);
    client.write_all(head.repeat(1_000).as_bytes()).await.unwrap();
    client
}

/// What comes back before the server hangs up.
async fn answer_until_closed(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut answer)).await;
    // A reset is a way of hanging up, too.
    let _ = read.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_body_of_100_megabytes_is_refused_without_being_kept() {
    let app = serving().await;
    let before = resident_kib(app.pid());
    let body = vec![b' '; 100 << 20];
    let request = app.request(reqwest::Method::POST, "/api/v1/projects").bearer_auth(&app.token);
    let sent = request.header("content-type", "application/json").body(body).send().await;
    // The refusal may come while the client still sends; then it sees the refusal or a broken pipe.
    if let Ok(answer) = sent {
        assert_eq!(answer.status(), 413);
    }
    let grown = resident_kib(app.pid()).saturating_sub(before);
    assert!(grown < 64 << 10, "it kept {grown} KiB");
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_by_its_length_and_by_its_bytes() {
    let app = start().arg("--body-bytes-max=1000").serve().await;
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(2_000));
    let request = || {
        app.request(reqwest::Method::POST, "/api/v1/projects")
            .bearer_auth(&app.token)
            .header("content-type", "application/json")
    };
    assert_eq!(app.send(request().body(large.clone())).await.refusal(), "413 payload_too_large");
    let parts = futures_util::stream::iter(
        large.into_bytes().chunks(100).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect::<Vec<_>>(),
    );
    assert_eq!(
        app.send(request().body(reqwest::Body::wrap_stream(parts))).await.refusal(),
        "413 payload_too_large"
    );
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_its_head_too_slowly_is_hung_up_on() {
    let app = start().arg("--header-timeout-ms=300").serve().await;
    let mut slow = connect(&app).await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let began = Instant::now();
    answer_until_closed(&mut slow).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    let mut idle = connect(&app).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(
        answer_until_closed(&mut idle).await.starts_with("HTTP/1.1 200"),
        "an idle connection is not kept for ever"
    );
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_its_body_too_slowly_gets_a_timeout() {
    let app = start().arg("--body-timeout-ms=200").serve().await;
    let mut slow = connect(&app).await;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        app.token
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let answer = answer_until_closed(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains(r#""code":"timeout""#), "{answer}");
    app.stop().await;
}

#[tokio::test]
async fn slow_clients_who_take_every_place_give_it_back_soon() {
    let app = start().arg("--connections-max=8").arg("--header-timeout-ms=500").serve().await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut client = connect(&app).await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        slow.push(client);
    }
    let answer = tokio::time::timeout(Duration::from_secs(20), app.get("/healthz")).await;
    assert_eq!(answer.expect("an honest client gets its turn").status, 200);
    app.stop().await;
}

#[tokio::test]
async fn clients_who_take_every_place_and_say_nothing_or_half_a_greeting_give_it_back_soon() {
    let app = start().arg("--connections-max=8").arg("--header-timeout-ms=300").serve().await;
    let mut silent = Vec::new();
    for length in 0..8 {
        let mut client = connect(&app).await;
        client.write_all(&b"PRI * HTTP/2.0"[..length]).await.unwrap();
        silent.push(client);
    }
    let answer = tokio::time::timeout(Duration::from_secs(20), app.get("/healthz")).await;
    assert_eq!(answer.expect("an honest client gets its turn").status, 200);
    app.stop().await;
}

#[tokio::test]
async fn clients_who_take_every_place_and_never_read_give_it_back_soon() {
    let app = start().arg("--connections-max=4").arg("--header-timeout-ms=300").serve().await;
    let mut deaf = Vec::new();
    for _ in 0..4 {
        deaf.push(ask_without_reading(&app).await);
    }
    let answer = tokio::time::timeout(Duration::from_secs(20), app.get("/healthz")).await;
    assert_eq!(answer.expect("an honest client gets its turn").status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_its_body_in_small_parts_is_waited_for() {
    let app = start().arg("--header-timeout-ms=300").serve().await;
    let mut slow = connect(&app).await;
    let body = br#"{"name": "patience"}"#;
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        app.token,
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    for byte in body {
        // Not to wait for something: being slow is what is tested.
        tokio::time::sleep(Duration::from_millis(100)).await;
        slow.write_all(&[*byte]).await.unwrap();
    }
    let answer = answer_until_closed(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    app.stop().await;
}

#[tokio::test]
async fn an_http2_client_that_asks_nothing_is_told_to_go_and_pings_do_not_help_it() {
    let app = start().arg("--header-timeout-ms=300").serve().await;
    let mut idle = Http2::connect(&app, 65_535).await;
    let mut told_to_go = false;
    let until_closed = async {
        while let Some(frame) = idle.next().await {
            told_to_go |= frame.kind == GO_AWAY;
            if frame.kind == PING && frame.flags & ACK == 0 {
                idle.send(PING, 0, 0, &[7; 8]).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until_closed).await.expect("it is hung up on");
    assert!(told_to_go);
    app.stop().await;
}

#[tokio::test]
async fn an_http2_client_that_leaves_no_room_for_the_answer_is_hung_up_on() {
    let app = start().arg("--header-timeout-ms=300").serve().await;
    let mut deaf = Http2::connect(&app, 0).await;
    deaf.ask(1, "/healthz").await;
    let mut kinds = Vec::new();
    let until_closed = async {
        while let Some(frame) = deaf.next().await {
            kinds.push(frame.kind);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until_closed).await.expect("it is hung up on");
    assert!(kinds.contains(&HEADERS) && !kinds.contains(&DATA), "{kinds:?}");
    app.stop().await;
}

#[tokio::test]
async fn an_http2_client_that_reads_slowly_gets_the_whole_answer() {
    const ANSWERS: usize = 30;
    let app = start().arg("--open-openapi").arg("--header-timeout-ms=500").serve().await;
    let whole = app.get("/api/openapi.json").await.text.len();
    let mut slow = Http2::connect(&app, 1 << 20).await;
    for stream in 0..ANSWERS {
        slow.ask(u32::try_from(stream).unwrap() * 2 + 1, "/api/openapi.json").await;
    }
    let (began, mut got, mut ended) = (Instant::now(), 0, 0);
    while ended < ANSWERS {
        let frame = slow.next().await.expect("it is not hung up on");
        if frame.kind != DATA {
            continue;
        }
        got += frame.payload.len();
        ended += usize::from(frame.flags & END_STREAM);
        // Not to wait for something: being slow is what is tested.
        let pace = Duration::from_millis(frame.payload.len() as u64 / 200);
        tokio::time::sleep(pace).await;
        let length = u32::try_from(frame.payload.len()).unwrap();
        slow.send(WINDOW_UPDATE, 0, 0, &length.to_be_bytes()).await;
    }
    assert_eq!(got, whole * ANSWERS);
    assert!(began.elapsed() > Duration::from_millis(1_500), "that was not slow: {whole} bytes each");
    app.stop().await;
}

#[tokio::test]
async fn more_requests_than_can_be_answered_are_refused_at_once_and_health_is_not() {
    let app = start().arg("--requests-max=2").serve().await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = connect(&app).await;
        let head = format!(
            "POST /api/v1/projects HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n",
            app.token
        );
        client.write_all(head.as_bytes()).await.unwrap();
        // It is asked for its body once it has a place.
        let mut go_on = [0; 12];
        client.read_exact(&mut go_on).await.unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100");
        clients.push(client);
    }
    let refused = app.get("/api/v1/projects").await;
    assert_eq!(refused.refusal(), "503 unavailable");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(app.get("/healthz").await.status, 200);
    drop(clients);
    until("room for another request", async || app.get("/api/v1/projects").await.status == 200).await;
    app.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_http_harm_nobody() {
    let app = serving().await;
    for bytes in [
        b"\0\x01\x02\x03\r\n\r\n".as_slice(),
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut client = connect(&app).await;
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let answer = answer_until_closed(&mut client).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let mut client = connect(&app).await;
    let many = "x-header: value\r\n".repeat(10_000);
    client.write_all(format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{many}\r\n").as_bytes()).await.ok();
    let answer = answer_until_closed(&mut client).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn clients_that_vanish_leave_no_descriptor_behind() {
    let app = serving().await;
    for _ in 0..3 {
        app.get("/api/v1/projects").await;
    }
    let descriptors = Descriptors::of(app.pid());
    for n in 0..200 {
        let mut client = connect(&app).await;
        if n % 2 == 0 {
            client
                .write_all(b"POST /api/v1/projects HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
                .await
                .unwrap();
        }
    }
    app.in_flight(1).await;
    descriptors.assert_grown_by_at_most(4);
    app.stop().await;
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// HTTP/2 by hand, so that it can be rude.
struct Http2(TcpStream);

struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

impl Http2 {
    /// `window` is how many bytes of each answer may come unasked.
    async fn connect(app: &App, window: u32) -> Self {
        let mut client = Self(connect(app).await);
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let initial_window_size = [[0, 4].as_slice(), &window.to_be_bytes()].concat();
        client.send(SETTINGS, 0, 0, &initial_window_size).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        // Whoever was hung up on hears of it by the next read.
        let _ = self.0.write_all(&frame).await;
    }

    async fn ask(&mut self, stream: u32, path: &str) {
        // By HPACK's static table: `GET`, `http`, then path and authority in full.
        let path_length = u8::try_from(path.len()).unwrap();
        let head = [&[0x82, 0x86, 0x04, path_length], path.as_bytes(), &[0x01, 1, b'x']].concat();
        self.send(HEADERS, END_STREAM | END_HEADERS, stream, &head).await;
    }

    /// The next frame, or `None` when it was hung up on. Pings are answered, so it does not look dead.
    async fn next(&mut self) -> Option<Frame> {
        let read = tokio::time::timeout(Duration::from_secs(20), self.read()).await;
        let frame = read.unwrap().ok()?;
        if frame.kind == PING && frame.flags & ACK == 0 {
            self.send(PING, ACK, 0, &frame.payload).await;
        }
        Some(frame)
    }

    async fn read(&mut self) -> std::io::Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload).await?;
        Ok(Frame { kind, flags, payload })
    }
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
