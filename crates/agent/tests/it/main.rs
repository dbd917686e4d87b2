//! The client of the model's API against a real HTTP server that behaves like the real one, well and badly.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use cofer_agent::{Answer, Claude, Message, Model, ModelError, Question, Role, Trouble};
use cofer_testkit::model_api::{ModelApi, Reply};
use serde_json::json;
use serde_json::value::RawValue;

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// Asks once; what was heard on the way.
async fn ask(api: &ModelApi) -> (Result<Answer, ModelError>, String) {
    let claude =
        Claude::new(http(), &api.url, "sk-test".into()).unwrap().with_silence_max(Duration::from_millis(500));
    let messages =
        [Message { role: Role::User, content: vec![raw(&json!({"type": "text", "text": "hello"}))] }];
    let tools = raw(&json!([]));
    let question = Question {
        model: "claude-x",
        system: Some("Be brief."),
        tools: &tools,
        messages: &messages,
        answer_tokens_max: 77,
    };
    let mut heard = String::new();
    let answer = claude.answer(&question, &mut |text: &str| heard.push_str(text)).await;
    (answer, heard)
}

async fn said(reply: Reply) -> (Result<Answer, ModelError>, String) {
    ask(&ModelApi::scripted(vec![reply]).await).await
}

fn passes(answer: Result<Answer, ModelError>) -> bool {
    matches!(answer.unwrap_err().trouble, Trouble::Passing { .. })
}

#[tokio::test]
async fn a_question_is_asked_as_the_api_wants_it() {
    let api = ModelApi::scripted(vec![Reply::text("well then")]).await;
    let (answer, heard) = ask(&api).await;
    assert_eq!((answer.unwrap().text.as_str(), heard.as_str()), ("well then", "well then"));
    let heard = &api.heard()[0];
    assert_eq!(heard.header("x-api-key"), Some("sk-test"));
    assert_eq!(heard.header("anthropic-version"), Some("2023-06-01"));
    let remembered = json!({"type": "ephemeral"});
    assert_eq!(
        heard.body,
        json!({
            "model": "claude-x",
            "max_tokens": 77,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": remembered}],
            "tools": [],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": remembered}]}],
            "stream": true,
        })
    );
}

#[tokio::test]
async fn tools_that_are_wanted_come_whole() {
    let long = "x".repeat(100_000);
    let (answer, _) =
        said(Reply::tools(&[("a", "one", json!({"text": long})), ("b", "two", json!({}))])).await;
    let answer = answer.unwrap();
    let inputs: Vec<_> =
        answer.tool_uses.iter().map(|tool| tool.input.as_ref().unwrap().get().len()).collect();
    assert_eq!((answer.stop_reason.as_str(), inputs), ("tool_use", vec![100_011, 2]));
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (100, 20));
}

#[tokio::test]
async fn a_connection_that_breaks_at_any_byte_is_an_error_that_passes() {
    for bytes in [0, 1, 40, 300, 500, 700, 900] {
        assert!(passes(said(Reply::text("a few words of text").cut_at(bytes)).await.0), "{bytes}");
    }
}

#[tokio::test]
async fn an_answer_that_comes_slowly_is_heard_as_it_comes_and_one_that_stops_is_given_up() {
    let (answer, heard) = said(Reply::text("slow but sure").slowly(Duration::from_millis(20))).await;
    assert_eq!((answer.unwrap().text.as_str(), heard.as_str()), ("slow but sure", "slow but sure"));
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let (answer, heard) = said(Reply::text("never done").end_held_by(&gate)).await;
    assert_eq!(heard, "never done");
    assert!(answer.as_ref().unwrap_err().message.contains("said nothing for 500ms"), "{answer:?}");
    assert!(passes(answer));
    assert!(passes(said(Reply::text("x").after(Duration::from_mins(1))).await.0));
}

#[tokio::test]
async fn refusals_pass_or_last_and_say_when_to_come_back() {
    let (answer, _) = said(Reply::overloaded().header("retry-after", "3")).await;
    let trouble = Trouble::Passing { retry_after: Some(Duration::from_secs(3)) };
    assert_eq!(answer.unwrap_err().trouble, trouble);
    let (answer, _) = said(Reply::refusal(400, "invalid_request_error", "messages: too long")).await;
    let error = answer.unwrap_err();
    assert_eq!(error.trouble, Trouble::Lasting);
    assert_eq!(error.message, "the model's API answered 400: messages: too long (invalid_request_error)");
    assert!(passes(said(Reply::text("begun").failing_with("overloaded_error")).await.0));
}

#[tokio::test]
async fn an_api_that_is_not_there_may_come() {
    let url = ModelApi::scripted(vec![Reply::text("")]).await.url.clone();
    let claude = Claude::new(http(), &url, "k".into()).unwrap();
    let tools = raw(&json!([]));
    let question = Question { model: "m", system: None, tools: &tools, messages: &[], answer_tokens_max: 1 };
    let error = claude.answer(&question, &mut |_: &str| ()).await.unwrap_err();
    assert!(
        matches!(error.trouble, Trouble::Passing { .. }) && error.message.contains("cannot be reached"),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_longer_than_any_is_given_up_for_good() {
    let endless = "x".repeat(33 << 20);
    let (answer, _) = said(Reply::text(&endless)).await;
    let error = answer.unwrap_err();
    assert_eq!(error.trouble, Trouble::Lasting);
    assert!(error.message.contains("more than any answer has"), "{error}");
}
