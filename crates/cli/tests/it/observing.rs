//! What an operator sees: health, metrics, logs, traces.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{serving, start};

#[tokio::test]
async fn health_and_readiness_need_no_token() {
    let app = serving().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(app.send(app.request(Method::GET, path)).await.status, 200, "{path}");
    }
    let ready = app.get("/readyz").await.json();
    assert_eq!(ready, json!({"ready": true, "parts": [{"name": "database", "ready": true}]}));
    app.stop().await;
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_strangers_cannot_make_up_new_ones() {
    let app = serving().await;
    app.get("/api/v1/projects/default").await;
    for n in 0..20 {
        app.get(&format!("/made/up/{n}")).await;
    }
    for n in 0..20 {
        let method = Method::from_bytes(format!("MADEUP{n}").as_bytes()).unwrap();
        app.send(app.request(method, "/api/v1/projects")).await;
    }
    app.send(app.request(Method::GET, "/api/v1/projects")).await;
    let metrics = app.get("/metrics").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in [
        r#"cofer_http_requests_total{method="GET",route="/api/v1/projects/{project}",status="200"} 1"#,
        r#"cofer_http_requests_total{method="GET",route="unmatched",status="404"} 20"#,
        r#"cofer_http_requests_total{method="other",route="/api/v1/projects",status="405"} 20"#,
        r#"cofer_auth_failures_total{reason="missing"} 1"#,
        r#"cofer_http_request_duration_seconds_count{route="/api/v1/projects/{project}"} 1"#,
    ] {
        assert!(metrics.text.lines().any(|found| found == line), "{line} is not in\n{}", metrics.text);
    }
    assert!(
        metrics.text.contains("process_resident_memory_bytes ") && metrics.text.contains("process_open_fds ")
    );
    assert!(!metrics.text.contains("made/up") && !metrics.text.contains("MADEUP"));
    app.stop().await;
}

#[tokio::test]
async fn a_made_up_method_of_any_length_is_refused_in_few_words() {
    let app = serving().await;
    let method = Method::from_bytes(&b"X".repeat(20_000)).unwrap();
    let refused = app.send(app.request(method, "/api/v1/projects")).await;
    assert_eq!(refused.refusal(), "405 method_not_allowed");
    assert!(refused.text.len() < 500, "{} bytes", refused.text.len());
    app.stop().await;
}

#[tokio::test]
async fn log_lines_are_json_when_asked_and_never_hold_a_token() {
    let app = start().arg("--log-format=json").arg("--log=trace").serve().await;
    app.post("/api/v1/projects", &json!({"name": "web"})).await;
    app.post("/api/v1/tokens", &json!({"name": "ci", "scopes": ["admin:read"]})).await;
    let line: Value = serde_json::from_str(&app.logged("project web created").await).unwrap();
    assert_eq!((&line["level"], &line["span"]["route"]), (&json!("INFO"), &json!("/api/v1/projects")));
    assert_eq!(line["span"]["trace_id"].as_str().unwrap().len(), 32);
    for line in app.log().lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    assert!(!app.log().contains(app.token.trim_start_matches("cofer_")));
    app.stop().await;
}

#[tokio::test]
async fn traces_are_exported_to_where_the_standard_variables_say() {
    let collector = Collector::start().await;
    let app = start()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.clone())
        .variable("OTEL_SERVICE_NAME", "my-cofer")
        .variable("OTEL_BSP_SCHEDULE_DELAY", "100")
        .serve()
        .await;
    app.post("/api/v1/projects", &json!({"name": "said-in-a-log-line"})).await;
    app.logged("said-in-a-log-line").await;
    let sent = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = app.request(Method::GET, "/api/v1/projects").bearer_auth(&app.token);
    let traced = app.send(request.header("traceparent", format!("00-{sent}-00f067aa0ba902b7-01"))).await;
    assert_eq!(traced.status, 200);
    let refused = app.send(app.request(Method::GET, "/api/v1/projects")).await;
    let own = refused.json()["error"]["trace_id"].as_str().unwrap().to_owned();
    let token = app.token.clone();
    app.stop().await;
    let received = collector.received();
    let bytes = |hex: &str| {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect::<Vec<_>>()
    };
    let has = |wanted: &[u8]| received.windows(wanted.len()).any(|window| window == wanted);
    assert!(has(b"GET /api/v1/projects") && has(b"my-cofer"), "no span arrived");
    assert!(has(&bytes(sent)), "the caller's trace goes on");
    assert!(has(&bytes(&own)), "the trace id in the envelope is the one that is exported");
    assert!(
        !has(token.as_bytes()) && !has(b"said-in-a-log-line"),
        "log lines are masked, so they are not exported"
    );
}

/// Takes whatever is sent and says thank you.
struct Collector {
    url: String,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    async fn start() -> Self {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = received.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = socket.accept().await {
                let kept = kept.clone();
                tokio::spawn(async move {
                    let mut part = vec![0; 64 << 10];
                    while let Ok(length @ 1..) = client.read(&mut part).await {
                        kept.lock().unwrap().extend_from_slice(&part[..length]);
                        let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    }
                });
            }
        });
        Self { url, received }
    }

    fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }
}
