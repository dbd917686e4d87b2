//! One turn of a conversation, from what a person said to where it ends: asks, writes down, calls, tells. `talk` decides.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{CallStatus, Kind, RunStatus, Speaker, Usage};
use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::{Answer, Model, ModelError, Question, ToolUse};
use crate::content::{self, Block};
use crate::offer::{Offer, Tool};
use crate::patterns::Patterns;
use crate::rest::{self, Rest};
use crate::retry::RetryRules;
use crate::talk::{Ending, Limits, Message, Next, Talk, refusal};

/// So many tools of one answer are called at once.
const CALLS_AT_ONCE: usize = 16;

/// What a conversation can do.
#[async_trait]
pub trait Tools: Send + Sync + fmt::Debug {
    async fn list(&self) -> Vec<Tool>;

    /// Calls a tool of the list. Whatever goes wrong is a result, too.
    async fn call(&self, call: &Call<'_>) -> Called;

    /// Writes down that it was not called, and why.
    async fn decline(&self, call: &Call<'_>, words: &str);
}

#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What the project calls it; for one that is not there, what the model does.
    pub tool: &'a str,
    pub input: &'a RawValue,
    pub step: i64,
}

#[derive(Clone, Debug)]
pub struct Called {
    pub status: CallStatus,
    /// As `tools/call` has it.
    pub result: Box<RawValue>,
}

/// Where a conversation is remembered.
#[async_trait]
pub trait Journal: Send + Sync + fmt::Debug {
    /// Takes it down, in this order. Must not wait.
    fn note(&self, said: Said);

    /// Comes back when everything taken down so far is kept for good.
    async fn settled(&self) -> Result<(), String>;
}

#[derive(Clone, Debug)]
pub struct Said {
    pub step: i64,
    pub speaker: Speaker,
    pub content: Vec<Box<RawValue>>,
    /// What an answer of the model cost.
    pub usage: Usage,
}

/// Who watches, and is asked.
#[async_trait]
pub trait Person: Send + Sync + fmt::Debug {
    /// Must not wait.
    fn tell(&self, event: Event);

    /// Whether this may be called. Nobody waits longer than the rules say.
    async fn allows(&self, asked: Asked) -> bool;
}

#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    pub approval_id: Uuid,
    pub name: String,
    pub input: Box<RawValue>,
}

/// What happens, as it happens.
#[derive(Clone, Debug)]
pub enum Event {
    Text {
        delta: String,
    },
    ToolCall {
        id: String,
        name: String,
        server: String,
        input: Box<RawValue>,
    },
    ToolResult {
        id: String,
        name: String,
        status: CallStatus,
        duration: Duration,
        content: Box<RawValue>,
    },
    Display {
        name: String,
        input: Box<RawValue>,
    },
    /// The answer broke off; its text so far is void, and the model is asked again after this wait.
    Retry {
        wait: Duration,
        reason: String,
    },
}

/// What is wanted of a turn.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub model: String,
    pub system: Option<String>,
    pub tools: Patterns,
    /// Tools that a person must agree to: those meant by a pattern unless they are read-only, and those named exactly.
    pub approve: Option<Patterns>,
    pub limits: Limits,
    /// Answers of turns before this one.
    pub steps_before: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub retry: RetryRules,
    pub approval_timeout: Duration,
    /// So much of a tool's result is shown to the model.
    pub result_bytes_max: usize,
}

/// How a turn ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub status: RunStatus,
    pub reason: String,
    /// What the model said last.
    pub text: String,
    pub usage: Usage,
    pub error: Option<Failure>,
}

/// Why a turn failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("what was said could not be recorded: {0}")]
    Journal(String),
    /// Told by whoever ends the process.
    #[error("Cofer ended in the middle of this run; go on with it by its `run_id`")]
    Interrupted,
}

impl Failure {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Model(_) => Kind::Upstream,
            Self::Journal(_) | Self::Interrupted => Kind::Unavailable,
        }
    }
}

/// Those without whom there is no turn.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    pub model: &'a dyn Model,
    pub tools: &'a dyn Tools,
    pub journal: &'a dyn Journal,
    pub person: &'a dyn Person,
}

/// Runs a turn to its end: the model's, a limit, or when told to stop. What was noted is kept when this comes back, if it can be.
pub async fn run(
    world: World<'_>,
    wishes: &Wishes,
    rules: &Rules,
    messages: Vec<Message>,
    stop: &CancellationToken,
) -> Outcome {
    let mut talk = Talk::begin(messages, wishes.limits);
    let turn = Turn { world, wishes, rules };
    let ended = tokio::select! {
        ended = turn.drive(&mut talk) => ended,
        () = stop.cancelled() => Ok(Ending { status: RunStatus::Cancelled, reason: "cancelled".to_owned() }),
        () = tokio::time::sleep(wishes.limits.time) => Ok(Ending::limited("max_time")),
    };
    let kept = world.journal.settled().await.map_err(Failure::Journal);
    let (ending, error) = match ended.and_then(|ending| kept.map(|()| ending)) {
        Ok(ending) => (ending, None),
        Err(failure) => (Ending { status: RunStatus::Failed, reason: "error".to_owned() }, Some(failure)),
    };
    let Ending { status, reason } = ending;
    Outcome { status, reason, text: talk.text, usage: talk.usage, error }
}

#[derive(Clone, Copy)]
struct Turn<'a> {
    world: World<'a>,
    wishes: &'a Wishes,
    rules: &'a Rules,
}

impl Turn<'_> {
    async fn drive(&self, talk: &mut Talk) -> Result<Ending, Failure> {
        let offer = Offer::of(self.world.tools.list().await, &self.wishes.tools);
        let rest = Rest::new(self.rules.result_bytes_max);
        let mut next = talk.next();
        loop {
            next = match next {
                Next::Ask { answer_tokens_max } => {
                    let answer = self.ask(talk, &offer, answer_tokens_max).await?;
                    let (content, usage) = (answer.content.clone(), answer.usage);
                    let next = talk.answered(answer);
                    self.world.journal.note(self.said(talk, Speaker::Assistant, content, usage));
                    // Before anything of it is done.
                    self.world.journal.settled().await.map_err(Failure::Journal)?;
                    next
                }
                Next::Call(uses) => {
                    let step = self.step(talk);
                    let calls: Vec<_> =
                        uses.iter().map(|tool_use| self.call(tool_use, &offer, &rest, step)).collect();
                    let results: Vec<_> = stream::iter(calls).buffered(CALLS_AT_ONCE).collect().await;
                    talk.results(results)
                }
                Next::End(ending) => {
                    for id in talk.unanswered() {
                        let words = format!("This was not called: the turn had ended ({}).", ending.reason);
                        let said =
                            self.said(talk, Speaker::Tool, vec![refusal(&id, &words)], Usage::default());
                        self.world.journal.note(said);
                    }
                    return Ok(ending);
                }
            }
        }
    }

    fn step(&self, talk: &Talk) -> i64 {
        self.wishes.steps_before.saturating_add_unsigned(talk.steps)
    }

    fn said(&self, talk: &Talk, speaker: Speaker, content: Vec<Box<RawValue>>, usage: Usage) -> Said {
        Said { step: self.step(talk), speaker, content, usage }
    }

    /// Asks until there is an answer, or no hope of one. Nothing of an answer is used before it is whole, so asking again repeats nothing.
    async fn ask(&self, talk: &Talk, offer: &Offer, answer_tokens_max: u64) -> Result<Answer, ModelError> {
        let question = Question {
            model: &self.wishes.model,
            system: self.wishes.system.as_deref(),
            tools: &offer.json,
            messages: &talk.messages,
            answer_tokens_max,
        };
        for failed in 1.. {
            let mut hear = |text: &str| self.world.person.tell(Event::Text { delta: text.to_owned() });
            let error = match self.world.model.answer(&question, &mut hear).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(wait) = self.rules.retry.wait(failed, error.trouble) else { return Err(error) };
            tracing::info!("the model is asked again in {wait:?}: {error}");
            self.world.person.tell(Event::Retry { wait, reason: error.to_string() });
            tokio::time::sleep(wait).await;
        }
        unreachable!("attempts have a limit")
    }

    /// One call, told and written down; the block that the model gets.
    async fn call(&self, tool_use: &ToolUse, offer: &Offer, rest: &Rest, step: i64) -> Box<RawValue> {
        let began = Instant::now();
        let tool = offer.tool(&tool_use.name);
        let (name, server) = tool.map_or((tool_use.name.as_str(), ""), |tool| (&tool.name, &tool.server));
        let input = tool_use.input.as_ref().map_or_else(|_| RawValue::NULL.to_owned(), Clone::clone);
        self.world.person.tell(Event::ToolCall {
            id: tool_use.id.clone(),
            name: name.to_owned(),
            server: server.to_owned(),
            input: input.clone(),
        });
        let call = Call { tool: name, input: &input, step };
        let (status, blocks) = self.answer_of(tool_use, tool, call, rest).await;
        if let Some(tool) = tool.filter(|tool| tool.is_display && status == CallStatus::Completed) {
            self.world.person.tell(Event::Display { name: tool.name.clone(), input: input.clone() });
        }
        let content = serde_json::value::to_raw_value(&blocks).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let result = result_block(&tool_use.id, &content, status);
        let usage = Usage::default();
        self.world.journal.note(Said { step, speaker: Speaker::Tool, content: vec![result.clone()], usage });
        let (id, name) = (tool_use.id.clone(), name.to_owned());
        self.world.person.tell(Event::ToolResult { id, name, status, duration: began.elapsed(), content });
        result
    }

    async fn answer_of(
        &self,
        tool_use: &ToolUse,
        tool: Option<&Tool>,
        call: Call<'_>,
        rest: &Rest,
    ) -> (CallStatus, Vec<Block>) {
        if let (None, rest::NAME, Ok(input)) = (tool, tool_use.name.as_str(), &tool_use.input) {
            return match rest.read(input) {
                Ok(text) => (CallStatus::Completed, content::text(text)),
                Err(words) => (CallStatus::Error, content::text(words)),
            };
        }
        let refused = match (&tool_use.input, tool) {
            (_, None) => Some(format!("Unknown tool: {}", tool_use.name)),
            (Err(words), _) => Some(words.clone()),
            (Ok(input), Some(tool)) => self.disallowed(tool, input).await,
        };
        if let Some(words) = refused {
            self.world.tools.decline(&call, &words).await;
            return (CallStatus::Error, content::text(words));
        }
        let called = self.world.tools.call(&call).await;
        (called.status, content::blocks(&called.result, rest))
    }

    /// Why a person does not want this called, if one is to be asked.
    async fn disallowed(&self, tool: &Tool, input: &RawValue) -> Option<String> {
        let approve = self.wishes.approve.as_ref()?;
        let (server, name) = (&tool.server, &tool.name);
        let is_asked_for =
            approve.mean(server, name) && (!tool.is_read_only || approve.name_exactly(server, name));
        if !is_asked_for || tool.is_display {
            return None;
        }
        let asked = Asked { approval_id: Uuid::now_v7(), name: name.clone(), input: input.to_owned() };
        match timeout(self.rules.approval_timeout, self.world.person.allows(asked)).await {
            Ok(true) => None,
            Ok(false) => Some("The user did not allow this call.".to_owned()),
            Err(_) => {
                Some("The user was asked to allow this call and did not answer; that is a no.".to_owned())
            }
        }
    }
}

fn result_block(id: &str, content: &RawValue, status: CallStatus) -> Box<RawValue> {
    let (id, is_error) = (json!(id), status != CallStatus::Completed);
    let block =
        format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{content},"is_error":{is_error}}}"#);
    RawValue::from_string(block).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
