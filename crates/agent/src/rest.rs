//! What did not fit: the model is shown the beginning of a long text, and can read on with a tool of ours as long as the turn lasts.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

pub(crate) const NAME: &str = "read_rest";
/// So much is kept of a turn; what is older goes first.
const KEPT_BYTES_MAX: usize = 4 << 20;

pub(crate) fn description() -> String {
    "Reads on in a tool's result that was too long to be shown whole. The note at the end of such a result says with which input."
        .to_owned()
}

pub(crate) fn schema() -> Box<RawValue> {
    let schema = json!({
        "type": "object",
        "properties": {
            "result": {"type": "integer", "description": "The number in the note"},
            "offset": {"type": "integer", "minimum": 0, "description": "From which byte on"},
        },
        "required": ["result", "offset"],
    });
    serde_json::value::to_raw_value(&schema).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Long texts of one turn.
#[derive(Debug)]
pub(crate) struct Rest {
    /// So much is shown at once.
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    texts: VecDeque<(u64, String)>,
    next_number: u64,
    bytes: usize,
}

#[derive(Deserialize)]
struct Wanted {
    result: u64,
    offset: usize,
}

impl Rest {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max: bytes_max.max(1), kept: Mutex::default() }
    }

    /// The text, or as much of it as is left of a budget, with a note.
    pub(crate) fn shown(&self, text: String, budget: &mut usize) -> String {
        if text.len() <= *budget {
            *budget -= text.len();
            return text;
        }
        let end = text.floor_char_boundary(*budget);
        *budget = 0;
        let beginning = text[..end].to_owned();
        let note = self.keep(text, end);
        format!("{beginning}{note}")
    }

    pub(crate) fn budget(&self) -> usize {
        self.bytes_max
    }

    fn keep(&self, text: String, shown: usize) -> String {
        let bytes = text.len();
        if bytes > KEPT_BYTES_MAX {
            return format!(
                "\n[cut here: {shown} of {bytes} bytes are shown, and the rest is too long to be kept; ask the tool for less at a time]"
            );
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.next_number += 1;
        let number = kept.next_number;
        kept.bytes += bytes;
        kept.texts.push_back((number, text));
        while kept.bytes > KEPT_BYTES_MAX {
            let Some((_, old)) = kept.texts.pop_front() else { break };
            kept.bytes -= old.len();
        }
        note(number, shown, bytes)
    }

    /// Answers the tool: a piece, or what was wrong.
    pub(crate) fn read(&self, input: &RawValue) -> Result<String, String> {
        let wanted: Wanted =
            serde_json::from_str(input.get()).map_err(|error| format!("the input is wrong: {error}"))?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, text)) = kept.texts.iter().find(|(number, _)| *number == wanted.result) else {
            return Err("this result is not kept any more; call the tool that gave it again".to_owned());
        };
        if wanted.offset >= text.len() {
            return Err(format!("the result has {} bytes", text.len()));
        }
        let start = text.floor_char_boundary(wanted.offset);
        let end = text.ceil_char_boundary((start + self.bytes_max).min(text.len()));
        let note = if end < text.len() { note(*number, end, text.len()) } else { String::new() };
        Ok(format!("{}{note}", &text[start..end]))
    }
}

fn note(number: u64, shown: usize, bytes: usize) -> String {
    let input = json!({"result": number, "offset": shown});
    format!("\n[cut here: {shown} of {bytes} bytes are shown; call {NAME} with {input} for more]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(result: u64, offset: usize) -> Box<RawValue> {
        serde_json::value::to_raw_value(&json!({"result": result, "offset": offset})).unwrap()
    }

    #[test]
    fn a_long_text_is_shown_in_pieces_that_make_the_whole() {
        let rest = Rest::new(10);
        let text = "ä".repeat(16);
        let mut budget = rest.budget();
        let shown = rest.shown(text.clone(), &mut budget);
        assert!(
            shown.contains("10 of 32 bytes") && shown.contains(r#"read_rest with {"result":1,"offset":10}"#),
            "{shown}"
        );
        let mut read = shown.split("\n[cut").next().unwrap().to_owned();
        while read.len() < text.len() {
            read.push_str(rest.read(&input(1, read.len())).unwrap().split("\n[cut").next().unwrap());
        }
        assert_eq!(read, text);
        assert!(rest.read(&input(1, 32)).unwrap_err().contains("32 bytes"));
        assert!(rest.read(&input(9, 0)).unwrap_err().contains("not kept"));
        assert!(rest.read(RawValue::NULL).unwrap_err().contains("wrong"));
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let rest = Rest::new(10);
        for _ in 0..5 {
            rest.shown("x".repeat(1 << 20), &mut 10);
        }
        assert!(rest.read(&input(1, 0)).is_err());
        assert!(rest.read(&input(2, 0)).is_ok());
        assert!(rest.shown("x".repeat(5 << 20), &mut 10).contains("too long to be kept"));
    }
}
