//! The loop against a model, tools, a journal and a person that are made up, on a clock that stands still.

#![expect(clippy::unnecessary_wraps, reason = "a script is a list of answers and failures")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{CallStatus, RunStatus, Speaker, Usage};
use cofer_testkit::until;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Answer, Hear, Model, ModelError, Question, ToolUse, Trouble};
use crate::run::{
    Asked, Call, Called, Event, Journal, Outcome, Person, Rules, Said, Tools, Wishes, World, run,
};
use crate::{Limits, Message, Patterns, RetryRules, Role, Tool, transcript};

type Answered = Result<Answer, ModelError>;

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

/// A whole made-up world. What happens in it is one list of words, in order.
#[derive(Debug, Default)]
struct Stage {
    answers: Mutex<VecDeque<Answered>>,
    story: Mutex<Vec<String>>,
    /// The messages of the last question.
    shown: Mutex<Value>,
    offered: Mutex<Value>,
    allows: Option<bool>,
    tool_takes: Duration,
    journal_fails: bool,
}

impl Stage {
    fn answering(answers: Vec<Answered>) -> Self {
        Self { answers: Mutex::new(answers.into()), ..Self::default() }
    }

    fn happens(&self, what: impl Into<String>) {
        self.story.lock().unwrap().push(what.into());
    }

    fn story(&self) -> String {
        self.story.lock().unwrap().join("\n")
    }

    async fn turn(&self, wishes: Wishes) -> Outcome {
        self.turn_until(wishes, &CancellationToken::new()).await
    }

    async fn turn_until(&self, wishes: Wishes, stop: &CancellationToken) -> Outcome {
        let hello =
            Message { role: Role::User, content: vec![raw(&json!({"type": "text", "text": "hello"}))] };
        let world = World { model: self, tools: self, journal: self, person: self };
        let rules = Rules {
            retry: RetryRules { jitter: false, ..RetryRules::default() },
            approval_timeout: Duration::from_mins(5),
            result_bytes_max: 100,
        };
        run(world, &wishes, &rules, vec![hello], stop).await
    }
}

fn wishes() -> Wishes {
    Wishes {
        model: "claude".to_owned(),
        system: None,
        tools: Patterns::default(),
        approve: None,
        limits: Limits { steps: 10, tokens: 1000, time: Duration::from_hours(1) },
        steps_before: 0,
    }
}

fn patterns(texts: &[&str]) -> Patterns {
    Patterns::try_from(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn says(text: &str) -> Answered {
    Ok(Answer {
        content: vec![raw(&json!({"type": "text", "text": text}))],
        text: text.to_owned(),
        tool_uses: vec![],
        stop_reason: "end_turn".to_owned(),
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
    })
}

fn wants(tools: &[(&str, &str)]) -> Answered {
    let block =
        |(id, name): &(&str, &str)| raw(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
    let tool_use = |(id, name): &(&str, &str)| ToolUse {
        id: (*id).to_owned(),
        name: (*name).to_owned(),
        input: Ok(raw(&json!({}))),
    };
    Ok(Answer {
        content: tools.iter().map(block).collect(),
        text: String::new(),
        tool_uses: tools.iter().map(tool_use).collect(),
        stop_reason: "tool_use".to_owned(),
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
    })
}

fn overloaded(retry_after: Option<u64>) -> Answered {
    let retry_after = retry_after.map(Duration::from_secs);
    Err(ModelError { message: "overloaded".to_owned(), trouble: Trouble::Passing { retry_after } })
}

#[async_trait]
impl Model for Stage {
    async fn answer(&self, question: &Question<'_>, hear: &mut Hear<'_>) -> Answered {
        *self.shown.lock().unwrap() = serde_json::to_value(question.messages).unwrap();
        *self.offered.lock().unwrap() = serde_json::from_str(question.tools.get()).unwrap();
        self.happens("asked");
        let next = self.answers.lock().unwrap().pop_front();
        let Some(answer) = next else { std::future::pending().await };
        if let Ok(answer) = &answer {
            hear(&answer.text);
        }
        answer
    }
}

#[async_trait]
impl Tools for Stage {
    async fn list(&self) -> Vec<Tool> {
        let tool = |name: &str, server: &str| Tool {
            name: name.to_owned(),
            server: server.to_owned(),
            description: String::new(),
            input_schema: None,
            is_read_only: name.starts_with("read"),
            is_display: server == "native",
        };
        vec![tool("read.file", "fs"), tool("write", "fs"), tool("show", "native"), tool("long", "fs")]
    }

    async fn call(&self, call: &Call<'_>) -> Called {
        self.happens(format!("call {} in step {}", call.tool, call.step));
        tokio::time::sleep(self.tool_takes).await;
        self.happens(format!("done {}", call.tool));
        let text = if call.tool == "long" { "x".repeat(150) } else { format!("result of {}", call.tool) };
        let result = raw(&json!({"content": [{"type": "text", "text": text}]}));
        Called { status: CallStatus::Completed, result }
    }

    async fn decline(&self, call: &Call<'_>, words: &str) {
        self.happens(format!("declined {}: {words}", call.tool));
    }
}

#[async_trait]
impl Journal for Stage {
    fn note(&self, said: Said) {
        self.happens(format!("noted {} of step {}", said.speaker, said.step));
    }

    async fn settled(&self) -> Result<(), String> {
        if self.journal_fails { Err("the disk is full".to_owned()) } else { Ok(()) }
    }
}

#[async_trait]
impl Person for Stage {
    fn tell(&self, event: Event) {
        match event {
            Event::Display { name, .. } => self.happens(format!("shown {name}")),
            Event::Retry { wait, .. } => self.happens(format!("again in {wait:?}")),
            Event::Text { .. } | Event::ToolCall { .. } | Event::ToolResult { .. } => {}
        }
    }

    async fn allows(&self, asked: Asked) -> bool {
        self.happens(format!("may {}?", asked.name));
        match self.allows {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tools_are_called_at_once_and_only_after_the_answer_is_written_down() {
    let mut stage = Stage::answering(vec![wants(&[("1", "read_file"), ("2", "write")]), says("done")]);
    stage.tool_takes = Duration::from_secs(10);
    let began = Instant::now();
    let outcome = stage.turn(wishes()).await;
    assert_eq!(began.elapsed(), Duration::from_secs(10), "both at once");
    insta::assert_snapshot!(stage.story(), @r"
    asked
    noted assistant of step 1
    call read.file in step 1
    call write in step 1
    done read.file
    noted tool of step 1
    done write
    noted tool of step 1
    asked
    noted assistant of step 2
    ");
    assert_eq!((outcome.status, outcome.reason.as_str()), (RunStatus::Completed, "end_turn"));
    assert_eq!((outcome.text.as_str(), outcome.usage.tokens()), ("done", 30));
    let results = stage.shown.lock().unwrap()[2]["content"].clone();
    assert_eq!(results[0]["tool_use_id"], "1");
    assert_eq!(results[0]["content"][0]["text"], "result of read.file");
    assert_eq!(results[1]["tool_use_id"], "2");
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_api_is_asked_again_when_it_says_and_no_tool_is_called_twice() {
    let stage = Stage::answering(vec![
        overloaded(None),
        wants(&[("1", "write")]),
        overloaded(Some(40)),
        overloaded(None),
        says("done"),
    ]);
    let began = Instant::now();
    let outcome = stage.turn(wishes()).await;
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(began.elapsed(), Duration::from_millis(500 + 40_000 + 1000));
    let story = stage.story();
    assert_eq!(story.matches("call write").count(), 1, "{story}");
    assert_eq!(story.matches("again in").count(), 3, "{story}");
}

#[tokio::test(start_paused = true)]
async fn what_will_not_pass_ends_the_turn_and_so_does_trying_too_often() {
    let stage = Stage::answering(vec![Err(ModelError::lasting("no such model"))]);
    let outcome = stage.turn(wishes()).await;
    assert_eq!((outcome.status, outcome.reason.as_str()), (RunStatus::Failed, "error"));
    assert_eq!(outcome.error.unwrap().to_string(), "no such model");
    let stage = Stage::answering((0..10).map(|_| overloaded(None)).collect());
    assert_eq!(stage.turn(wishes()).await.status, RunStatus::Failed);
    assert_eq!(stage.story().matches("asked").count(), 6);
}

#[tokio::test(start_paused = true)]
async fn unknown_tools_and_those_that_are_not_offered_are_error_results() {
    let stage = Stage::answering(vec![wants(&[("1", "made_up"), ("2", "write")]), says("sorry")]);
    let outcome = stage.turn(Wishes { tools: patterns(&["!write"]), ..wishes() }).await;
    assert_eq!(outcome.status, RunStatus::Completed);
    let results = stage.shown.lock().unwrap()[2]["content"].clone();
    for (at, name) in ["made_up", "write"].iter().enumerate() {
        assert_eq!(results[at]["content"][0]["text"], format!("Unknown tool: {name}"));
        assert_eq!(results[at]["is_error"], true);
    }
    assert!(stage.story().contains("declined made_up: Unknown tool: made_up"));
    assert!(!stage.offered.lock().unwrap().to_string().contains("\"write\""));
}

#[tokio::test(start_paused = true)]
async fn a_person_decides_and_silence_is_a_no() {
    for (allows, words) in
        [(Some(true), "result of write"), (Some(false), "did not allow"), (None, "did not answer")]
    {
        let mut stage =
            Stage::answering(vec![wants(&[("1", "write"), ("2", "read_file"), ("3", "show")]), says("ok")]);
        stage.allows = allows;
        let began = Instant::now();
        stage.turn(Wishes { approve: Some(patterns(&["*"])), ..wishes() }).await;
        let results = stage.shown.lock().unwrap()[2]["content"].clone();
        assert!(results[0]["content"][0]["text"].as_str().unwrap().contains(words), "{results}");
        assert_eq!(
            stage.story().matches("may ").count(),
            1,
            "only what writes is asked for: {}",
            stage.story()
        );
        assert_eq!(stage.story().contains("call write"), allows == Some(true));
        assert_eq!(began.elapsed(), if allows.is_none() { Duration::from_mins(5) } else { Duration::ZERO });
    }
    let mut stage = Stage::answering(vec![wants(&[("1", "read_file")]), says("ok")]);
    stage.allows = Some(true);
    stage.turn(Wishes { approve: Some(patterns(&["read.file"])), ..wishes() }).await;
    assert!(stage.story().contains("may read.file?"), "one that is named is asked for in any case");
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_shown_is_shown() {
    let stage = Stage::answering(vec![wants(&[("1", "show")]), says("there")]);
    stage.turn(wishes()).await;
    assert!(stage.story().contains("shown show"), "{}", stage.story());
}

#[tokio::test(start_paused = true)]
async fn every_limit_has_its_name() {
    let ended = async |answers: Vec<Answered>, limits: Limits| {
        let stage = Stage::answering(answers);
        let outcome = stage.turn(Wishes { limits, ..wishes() }).await;
        assert_eq!(outcome.status, RunStatus::Limited);
        assert!(!stage.story().contains("call"), "{}", stage.story());
        (outcome.reason, stage.story().matches("noted tool").count())
    };
    let limits = wishes().limits;
    let calling = || vec![wants(&[("1", "write"), ("2", "write")])];
    assert_eq!(ended(calling(), Limits { steps: 1, ..limits }).await, ("max_steps".to_owned(), 2));
    assert_eq!(ended(calling(), Limits { tokens: 15, ..limits }).await, ("max_tokens".to_owned(), 2));
    assert_eq!(ended(vec![], limits).await, ("max_time".to_owned(), 0));
    let cut = says("I was say").map(|answer| Answer { stop_reason: "max_tokens".to_owned(), ..answer });
    assert_eq!(ended(vec![cut], limits).await, ("max_tokens".to_owned(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_cancelled_in_the_middle_of_a_call() {
    let mut stage = Stage::answering(vec![wants(&[("1", "write")])]);
    stage.tool_takes = Duration::from_mins(30);
    let stage = Arc::new(stage);
    let stop = CancellationToken::new();
    let turn = tokio::spawn({
        let (stage, stop) = (stage.clone(), stop.clone());
        async move { stage.turn_until(wishes(), &stop).await }
    });
    until("the call", async || stage.story().ends_with("call write in step 1")).await;
    stop.cancel();
    let outcome = turn.await.unwrap();
    assert_eq!((outcome.status, outcome.reason.as_str()), (RunStatus::Cancelled, "cancelled"));
    assert!(stage.story().ends_with("call write in step 1"), "{}", stage.story());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_that_cannot_be_recorded() {
    let mut stage = Stage::answering(vec![wants(&[("1", "write")])]);
    stage.journal_fails = true;
    let outcome = stage.turn(wishes()).await;
    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.error.unwrap().to_string().contains("the disk is full"));
    assert!(!stage.story().contains("call"), "{}", stage.story());
}

#[tokio::test(start_paused = true)]
async fn a_long_result_is_cut_and_read_on() {
    let read = |id: &str, offset: u64| {
        wants(&[(id, "read_rest")]).map(|mut answer| {
            answer.tool_uses[0].input = Ok(raw(&json!({"result": 1, "offset": offset})));
            answer
        })
    };
    let stage = Stage::answering(vec![wants(&[("1", "long")]), read("2", 100), read("3", 900), says("read")]);
    stage.turn(wishes()).await;
    let shown = stage.shown.lock().unwrap().clone();
    let text = |at: usize| shown[at]["content"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text(2).contains(r#"call read_rest with {"result":1,"offset":100}"#), "{shown}");
    assert_eq!(text(4), "x".repeat(50));
    assert_eq!(shown[6]["content"][0]["is_error"], true);
}

#[test]
fn what_was_written_down_reads_back_as_a_conversation() {
    let text = |text: &str| vec![raw(&json!({"type": "text", "text": text}))];
    let wanted = |ids: &[&str]| -> Vec<_> {
        ids.iter().map(|id| raw(&json!({"type": "tool_use", "id": id, "name": "n", "input": {}}))).collect()
    };
    let result = |id: &str| vec![raw(&json!({"type": "tool_result", "tool_use_id": id, "content": "ok"}))];
    let (user, assistant, tool) = (Speaker::User, Speaker::Assistant, Speaker::Tool);
    let shape = |said: Vec<(Speaker, Vec<Box<RawValue>>)>| {
        let messages = serde_json::to_value(transcript(said)).unwrap();
        let block = |block: &Value| match block["type"].as_str().unwrap() {
            "tool_result" if block["is_error"] == true => format!("interrupted {}", block["tool_use_id"]),
            "tool_result" => format!("result {}", block["tool_use_id"]),
            "tool_use" => format!("use {}", block["id"]),
            _ => block["text"].as_str().unwrap().to_owned(),
        };
        let message = |message: &Value| {
            let blocks: Vec<_> = message["content"].as_array().unwrap().iter().map(block).collect();
            format!("{}: {}", message["role"].as_str().unwrap(), blocks.join(", "))
        };
        messages.as_array().unwrap().iter().map(message).collect::<Vec<_>>().join(" | ")
    };
    assert_eq!(
        shape(vec![
            (user, text("a")),
            (assistant, wanted(&["1", "2"])),
            (tool, result("2")),
            (tool, result("1")),
            (assistant, text("b"))
        ]),
        r#"user: a | assistant: use "1", use "2" | user: result "2", result "1" | assistant: b"#
    );
    // Killed before one of two had answered, and spoken to again.
    assert_eq!(
        shape(vec![
            (user, text("a")),
            (assistant, wanted(&["1", "2"])),
            (tool, result("1")),
            (user, text("go on"))
        ]),
        r#"user: a | assistant: use "1", use "2" | user: result "1", interrupted "2", go on"#
    );
    assert_eq!(
        shape(vec![(user, text("a")), (assistant, wanted(&["1"]))]),
        r#"user: a | assistant: use "1" | user: interrupted "1""#
    );
    // As a caller may send it.
    assert_eq!(
        shape(vec![(assistant, wanted(&["1"])), (user, result("1")), (user, text("b"))]),
        r#"assistant: use "1" | user: result "1", b"#
    );
    assert_eq!(shape(vec![(user, text("a")), (assistant, vec![]), (user, text("b"))]), "user: a, b");
}
