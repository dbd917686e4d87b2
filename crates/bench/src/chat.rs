//! Chats, with a model that answers at once: what Cofer itself takes for a tool step, what many chats weigh, and how soon a client hears.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofer_testkit::model_api::{ModelApi, Reply};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::figures::{median_micros, row};
use crate::served::Served;

const RUNS: usize = 20;
const STEPS: usize = 40;
const FIRSTS: usize = 100;
const CHATS: usize = 200;

pub async fn measure() {
    let hold = Arc::new(Semaphore::new(0));
    let gate_of_words = hold.clone();
    let api = ModelApi::start(move |request| reply(request, &gate_of_words)).await;
    let variables = [("ANTHROPIC_BASE_URL", api.url.as_str()), ("ANTHROPIC_API_KEY", "none")];
    let cofer = Served::cofer_with(tempfile::tempdir().expect("a directory"), &variables).await;
    cofer.register_external("echo", &[]).await;
    tool_steps(&cofer, &api).await;
    first_events(&cofer, &api).await;
    many(&cofer, &api, &hold).await;
    cofer.stop().await;
}

fn reply(request: &Value, hold: &Arc<Semaphore>) -> Reply {
    let messages = request["messages"].as_array().expect("messages");
    let wanted = messages[0]["content"][0]["text"].as_str().expect("a text");
    let steps = messages.iter().filter(|message| message["role"] == "assistant").count();
    match wanted {
        "steps" if steps < STEPS => Reply::tool(&format!("t{steps}"), "echo", &json!({"text": "hello"})),
        "held" if steps < 2 => Reply::tool(&format!("t{steps}"), "echo", &json!({"text": "hello"})),
        "held" => Reply::text("said so far").end_held_by(hold),
        _ => Reply::text("done"),
    }
}

/// From the last byte of an answer that wants a tool to the arrival of the request with its result, the tool's own time included.
async fn tool_steps(cofer: &Served, api: &ModelApi) {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let before = api.heard().len();
        cofer.chat("steps").await.bytes().await.expect("its end");
        let heard = api.heard();
        let asked = heard[before..].windows(2);
        times.extend(asked.filter_map(|pair| Some(pair[1].at.duration_since(pair[0].answered?.1))));
    }
    let figure = format!("p50 {:.2} ms, p99 {:.2} ms", median_micros(&times) / 1000.0, worst(&mut times));
    row("chat, a tool step, a child process's answer included", &figure, "aim p50 < 2 ms");
}

fn worst(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() * 99 / 100].as_secs_f64() * 1000.0
}

/// From the model's first byte to the first text that the client has.
async fn first_events(cofer: &Served, api: &ModelApi) {
    let mut times = Vec::new();
    for _ in 0..FIRSTS {
        let mut answer = cofer.chat("hello").await;
        let mut received = Vec::new();
        while !received.windows(11).any(|part| part == b"event: text") {
            received.extend_from_slice(&answer.chunk().await.expect("a stream").expect("a text"));
        }
        let heard = Instant::now();
        while answer.chunk().await.expect("a stream").is_some() {}
        let said = api.heard().last().and_then(|last| last.answered).expect("an answer").0;
        times.push(heard.duration_since(said));
    }
    let figure = format!("p50 {:.2} ms, p99 {:.2} ms", median_micros(&times) / 1000.0, worst(&mut times));
    row("chat, first event after the model's first byte", &figure, "aim < 20 ms");
}

/// All of them in the middle of an answer, after two tool steps each.
async fn many(cofer: &Served, api: &ModelApi, hold: &Semaphore) {
    let before = api.heard().len();
    let chats = futures_util::future::join_all((0..CHATS).map(|_| cofer.chat("held"))).await;
    while api.heard().len() < before + CHATS * 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    let memory = cofer.resident_kib() as f64 / 1024.0;
    row(&format!("chat, memory with {CHATS} at once"), &format!("{memory:.1} MiB"), "aim < 150 MB");
    hold.add_permits(CHATS);
    for chat in chats {
        let said = chat.text().await.expect("its end");
        assert!(said.contains("\"completed\""), "{said}");
    }
}
