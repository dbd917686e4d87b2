//! An answer, put together of the events that stream in: cut anywhere, of bounded size. Events and parts that nobody knows yet are passed
//! over, as the API asks of its clients.

use cofer_model::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::ErrorWords;
use crate::api::{Answer, Hear, ModelError, ToolUse};

/// Far more than any answer has.
const ANSWER_BYTES_MAX: usize = 32 << 20;
const BLOCKS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Stream {
    line: Vec<u8>,
    data: Vec<u8>,
    bytes: usize,
    blocks: Vec<Block>,
    stop_reason: Option<String>,
    usage: Usage,
}

/// A block under way: as it began, with what has been added to it.
struct Block {
    start: Map<String, Value>,
    /// What a tool is to be given, in pieces of JSON.
    input: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Started,
    },
    ContentBlockStart {
        index: usize,
        content_block: Map<String, Value>,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta,
    },
    MessageDelta {
        delta: Stopped,
        #[serde(default)]
        usage: Counts,
    },
    MessageStop,
    Error {
        error: ErrorWords,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    usage: Counts,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "citations_delta")]
    Citations { citation: Value },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Stopped {
    #[serde(default)]
    stop_reason: Option<String>,
}

/// Figures that grow while the answer does: the last of each holds.
#[derive(Default, Deserialize)]
#[expect(clippy::struct_field_names, reason = "these are the API's names")]
struct Counts {
    #[serde(default)]
    input_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: Option<u64>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u64>,
    #[serde(default)]
    cache_read_input_tokens: Option<u64>,
}

impl Stream {
    /// Takes what has come; the answer, if it is complete with it.
    pub(super) fn take(&mut self, bytes: &[u8], hear: &mut Hear<'_>) -> Result<Option<Answer>, ModelError> {
        self.bytes += bytes.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(ModelError::lasting("the model's API answered with more than any answer has"));
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.pop_if(|byte| *byte == b'\n').is_none() {
                break;
            }
            self.line.pop_if(|byte| *byte == b'\r');
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data:") {
                self.data.extend_from_slice(data);
            } else if line.is_empty() && !self.data.is_empty() {
                let data = std::mem::take(&mut self.data);
                if self.event(&data, hear)? {
                    return self.finish().map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Whether it was the last one.
    fn event(&mut self, data: &[u8], hear: &mut Hear<'_>) -> Result<bool, ModelError> {
        let event = serde_json::from_slice(data).map_err(|error| {
            ModelError::passing(format!("the model's API sent an event that cannot be read: {error}"))
        })?;
        match event {
            Event::MessageStart { message } => self.count(&message.usage),
            Event::ContentBlockStart { index, content_block } => self.begin(index, content_block, hear)?,
            Event::ContentBlockDelta { index, delta } => self.add(index, delta, hear)?,
            Event::MessageDelta { delta, usage } => {
                self.count(&usage);
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
            }
            Event::Error { error } => return Err(in_the_middle(&error)),
            Event::MessageStop => return Ok(true),
            Event::Unknown => {}
        }
        Ok(false)
    }

    fn count(&mut self, counts: &Counts) {
        let usage = &mut self.usage;
        usage.input_tokens = counts.input_tokens.unwrap_or(usage.input_tokens);
        usage.output_tokens = counts.output_tokens.unwrap_or(usage.output_tokens);
        usage.cache_creation_input_tokens =
            counts.cache_creation_input_tokens.unwrap_or(usage.cache_creation_input_tokens);
        usage.cache_read_input_tokens =
            counts.cache_read_input_tokens.unwrap_or(usage.cache_read_input_tokens);
    }

    fn begin(
        &mut self,
        index: usize,
        start: Map<String, Value>,
        hear: &mut Hear<'_>,
    ) -> Result<(), ModelError> {
        if index != self.blocks.len() || index >= BLOCKS_MAX {
            return Err(out_of_order());
        }
        if let Some(text) = start.get("text").and_then(Value::as_str).filter(|text| !text.is_empty()) {
            hear(text);
        }
        self.blocks.push(Block { start, input: String::new() });
        Ok(())
    }

    fn add(&mut self, index: usize, delta: Delta, hear: &mut Hear<'_>) -> Result<(), ModelError> {
        let block = self.blocks.get_mut(index).ok_or_else(out_of_order)?;
        match delta {
            Delta::Text { text } => {
                hear(&text);
                append(&mut block.start, "text", &text);
            }
            Delta::Thinking { thinking } => append(&mut block.start, "thinking", &thinking),
            Delta::Signature { signature } => append(&mut block.start, "signature", &signature),
            Delta::InputJson { partial_json } => block.input.push_str(&partial_json),
            Delta::Citations { citation } => {
                let citations = block.start.entry("citations").or_insert_with(|| json!([]));
                if let Value::Array(citations) = citations {
                    citations.push(citation);
                } else {
                    *citations = json!([citation]);
                }
            }
            Delta::Unknown => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Answer, ModelError> {
        let Some(stop_reason) = self.stop_reason.take() else {
            return Err(ModelError::passing("the model's API did not say why the answer ended"));
        };
        let (mut content, mut text, mut tool_uses) = (Vec::new(), String::new(), Vec::new());
        for block in self.blocks.drain(..) {
            match block.start.get("type").and_then(Value::as_str) {
                Some("text") => {
                    let said = block.start.get("text").and_then(Value::as_str).unwrap_or_default();
                    text.push_str(said);
                    if said.is_empty() {
                        // The API does not take back a text without a character.
                        continue;
                    }
                    content.push(raw(&block.start));
                }
                Some("tool_use") => {
                    let (tool_use, shown) = tool_use(&block);
                    tool_uses.push(tool_use);
                    content.push(shown);
                }
                _ => content.push(with_input(block)),
            }
        }
        Ok(Answer { content, text, tool_uses, stop_reason, usage: self.usage })
    }
}

fn append(block: &mut Map<String, Value>, field: &str, more: &str) {
    match block.get_mut(field) {
        Some(Value::String(text)) => text.push_str(more),
        _ => _ = block.insert(field.to_owned(), more.into()),
    }
}

fn raw(value: &impl serde::Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// A tool to be called, and the block that is shown to the model again: its input to the letter where it is JSON.
fn tool_use(block: &Block) -> (ToolUse, Box<RawValue>) {
    let field = |name: &str| block.start.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (id, name) = (field("id"), field("name"));
    let input = match block.input.trim() {
        "" => Ok(raw(&block.start.get("input").filter(|input| input.is_object()).unwrap_or(&json!({})))),
        text => RawValue::from_string(text.to_owned())
            .map_err(|error| format!("the input is not JSON: {error}"))
            .and_then(|input| {
                if text.starts_with('{') {
                    Ok(input)
                } else {
                    Err("the input is not a JSON object".to_owned())
                }
            }),
    };
    let written = json!({"INVALID_JSON": block.input});
    let shown = input.as_ref().map_or_else(|_| raw(&written), Clone::clone);
    let shown = RawValue::from_string(format!(
        r#"{{"type":"tool_use","id":{},"name":{},"input":{}}}"#,
        raw(&id),
        raw(&name),
        shown
    ));
    (ToolUse { id, name, input }, shown.unwrap_or_else(|_| raw(&block.start)))
}

/// For blocks of tools that the API runs itself.
fn with_input(mut block: Block) -> Box<RawValue> {
    if let Ok(input) = serde_json::from_str::<Value>(&block.input) {
        block.start.insert("input".to_owned(), input);
    }
    raw(&block.start)
}

fn out_of_order() -> ModelError {
    ModelError::passing("the model's API sent parts of its answer out of order")
}

fn in_the_middle(error: &ErrorWords) -> ModelError {
    let message =
        format!("the model's API failed in the middle of its answer: {} ({})", error.message, error.kind);
    match error.kind.as_str() {
        "invalid_request_error"
        | "authentication_error"
        | "permission_error"
        | "not_found_error"
        | "request_too_large"
        | "billing_error" => ModelError::lasting(message),
        _ => ModelError::passing(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Trouble;
    use proptest::prelude::*;

    fn event(data: &Value) -> String {
        format!("event: {}\r\ndata: {data}\r\n\r\n", data["type"].as_str().unwrap())
    }

    fn start(index: usize, block: &Value) -> String {
        event(&json!({"type": "content_block_start", "index": index, "content_block": block}))
    }

    fn delta(index: usize, delta: &Value) -> String {
        event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    }

    fn end(reason: &str) -> String {
        let delta =
            json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}});
        event(&delta) + &event(&json!({"type": "message_stop"}))
    }

    fn read(stream: &str, size: usize) -> (Result<Option<Answer>, ModelError>, String) {
        let (mut reader, mut heard) = (Stream::default(), String::new());
        for piece in stream.as_bytes().chunks(size) {
            match reader.take(piece, &mut |text| heard.push_str(text)) {
                Ok(None) => {}
                done => return (done, heard),
            }
        }
        (Ok(None), heard)
    }

    fn whole() -> String {
        let usage = json!({"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1});
        [
            event(&json!({"type": "message_start", "message": {"id": "m", "usage": usage}})),
            event(&json!({"type": "ping"})),
            start(0, &json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, &json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, &json!({"type": "signature_delta", "signature": "s1"})),
            event(&json!({"type": "content_block_stop", "index": 0})),
            start(1, &json!({"type": "text", "text": ""})),
            delta(1, &json!({"type": "text_delta", "text": "Let me "})),
            delta(1, &json!({"type": "text_delta", "text": "löök"})),
            delta(1, &json!({"type": "of_tomorrow", "x": 1})),
            start(2, &json!({"type": "tool_use", "id": "t1", "name": "read", "input": {}})),
            delta(2, &json!({"type": "input_json_delta", "partial_json": "{\"n\": 123456789012345678"})),
            delta(2, &json!({"type": "input_json_delta", "partial_json": "90123}"})),
            start(3, &json!({"type": "tool_use", "id": "t2", "name": "list", "input": {}})),
            event(&json!({"type": "event_of_tomorrow"})),
            end("tool_use"),
        ]
        .concat()
    }

    #[test]
    fn an_answer_is_put_together_to_the_letter() {
        let (answer, heard) = read(&whole(), usize::MAX);
        let answer = answer.unwrap().unwrap();
        assert_eq!((heard.as_str(), answer.text.as_str()), ("Let me löök", "Let me löök"));
        assert_eq!(answer.stop_reason, "tool_use");
        let usage =
            Usage { input_tokens: 5, output_tokens: 9, cache_read_input_tokens: 3, ..Usage::default() };
        assert_eq!(answer.usage, usage);
        let shown: Vec<_> = answer.content.iter().map(|block| block.get()).collect();
        assert_eq!(
            shown,
            [
                r#"{"type":"thinking","thinking":"hm","signature":"s1"}"#,
                r#"{"type":"text","text":"Let me löök"}"#,
                r#"{"type":"tool_use","id":"t1","name":"read","input":{"n": 12345678901234567890123}}"#,
                r#"{"type":"tool_use","id":"t2","name":"list","input":{}}"#,
            ]
        );
        let inputs: Vec<_> = answer.tool_uses.iter().map(|tool| tool.input.as_ref().unwrap().get()).collect();
        assert_eq!(inputs, [r#"{"n": 12345678901234567890123}"#, "{}"]);
    }

    #[test]
    fn an_input_that_is_no_json_is_told_to_the_model_and_spoils_nothing() {
        for text in ["{\"a\":", "[1]", "\"x\""] {
            let stream = start(0, &json!({"type": "tool_use", "id": "t", "name": "n", "input": {}}))
                + &delta(0, &json!({"type": "input_json_delta", "partial_json": text}))
                + &end("tool_use");
            let answer = read(&stream, usize::MAX).0.unwrap().unwrap();
            assert!(answer.tool_uses[0].input.is_err(), "{text}");
            let shown: Value = serde_json::from_str(answer.content[0].get()).unwrap();
            assert_eq!(shown["input"], json!({"INVALID_JSON": text}));
        }
    }

    #[test]
    fn errors_in_the_middle_pass_or_last() {
        for (kind, passes) in
            [("overloaded_error", true), ("api_error", true), ("invalid_request_error", false)]
        {
            let error = event(&json!({"type": "error", "error": {"type": kind, "message": "so"}}));
            let trouble = read(&error, usize::MAX).0.unwrap_err().trouble;
            assert_eq!(trouble != Trouble::Lasting, passes, "{kind}");
        }
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_panic() {
        for stream in [
            "data: {\n\n".to_owned(),
            start(7, &json!({})),
            delta(0, &json!({"type": "text_delta", "text": "x"})),
            event(&json!({"type": "message_stop"})),
        ] {
            assert!(read(&stream, usize::MAX).0.is_err(), "{stream}");
        }
    }

    proptest! {
        #[test]
        fn however_the_bytes_arrive_the_answer_is_the_same(size in 1_usize..40) {
            let (answer, heard) = read(&whole(), size);
            prop_assert_eq!(heard, "Let me löök");
            prop_assert_eq!(answer.unwrap().unwrap().content.len(), 4);
        }

        #[test]
        fn no_bytes_whatever_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stream::default().take(&bytes, &mut |_| ());
        }
    }
}
