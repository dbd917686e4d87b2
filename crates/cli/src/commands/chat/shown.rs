//! How a conversation looks: text as it is said, calls and their ends in one dim line each, cards for what is to be shown. What models and
//! tools wrote does nothing to the terminal but stand there.

use std::io::{IsTerminal, Write};

use serde_json::Value;

use crate::output::{harmless, harmless_lines};

/// So much of an input or a reason stands in a line.
const LINE_CHARS_MAX: usize = 160;
const CARD_LINES_MAX: usize = 100;

/// Where a turn is shown. Text goes to standard output, everything else to standard error.
#[derive(Debug)]
pub struct Screen {
    is_watched: bool,
    /// Text stands in the last line.
    in_line: bool,
}

impl Screen {
    pub fn new(is_watched: bool) -> Self {
        Self { is_watched, in_line: false }
    }

    pub fn show(&mut self, name: &str, data: &Value) {
        if !self.is_watched {
            return;
        }
        let text = |field: &str| data[field].as_str().unwrap_or_default();
        match name {
            "text" => self.say(text("delta")),
            "tool_call" => self.note(&format!("→ {} {}", text("name"), short(&data["input"]))),
            "tool_result" if text("status") == "completed" => {
                self.note(&format!("← {} {} ms", text("name"), data["duration_ms"]));
            }
            "tool_result" => {
                let (status, words) = (text("status"), short(&data["content"][0]["text"]));
                self.note(&format!("← {} {status}: {words}", text("name")));
            }
            "display" => {
                self.end();
                line(&card(text("name"), &data["input"]));
            }
            "retry" => self.note(&format!("the model is asked again: {}", text("reason"))),
            _ => {}
        }
    }

    fn say(&mut self, text: &str) {
        // Tabs and line ends are text; nothing else that is not seen is.
        let clean: String = text
            .split_inclusive(['\n', '\t'])
            .map(|part| match part.char_indices().next_back() {
                Some((at, end @ ('\n' | '\t'))) => format!("{}{end}", harmless(&part[..at])),
                _ => harmless(part),
            })
            .collect();
        let mut out = std::io::stdout().lock();
        // A reader who has left is no reason to stop the turn.
        let _ = out.write_all(clean.as_bytes()).and_then(|()| out.flush());
        self.in_line = !text.ends_with('\n') && (self.in_line || !text.is_empty());
    }

    pub fn note(&mut self, text: &str) {
        if self.is_watched {
            self.end();
            line(&dim(&harmless(text)));
        }
    }

    /// Whatever comes next begins a line.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.in_line) {
            let _ = writeln!(std::io::stdout());
        }
    }
}

fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn dim(text: &str) -> String {
    if std::io::stderr().is_terminal() { format!("\u{1b}[2m{text}\u{1b}[0m") } else { text.to_owned() }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut short: String = text.chars().take(LINE_CHARS_MAX).collect();
    if text.chars().nth(LINE_CHARS_MAX).is_some() {
        short.push('…');
    }
    harmless(&short)
}

pub fn greeting() {
    if std::io::stdin().is_terminal() {
        hint("Ctrl-C interrupts an answer, Ctrl-D ends the conversation.");
    }
}

pub fn hint(text: &str) {
    line(&dim(&harmless(text)));
}

pub fn trouble(text: &str) {
    line(&format!("error: {}", harmless_lines(text)));
}

/// Says how a turn ended, where that is not plain.
pub fn ending(done: &Value) {
    if done["status"] != "completed" {
        let text = |field: &str| done[field].as_str().unwrap_or_default();
        hint(&format!("({}: {})", text("status"), text("reason")));
    }
}

pub fn question(asked: &Value) -> String {
    format!("call {} {}?", short(&asked["name"]), short(&asked["input"]))
}

/// A thing with its fields, in a frame.
fn card(name: &str, input: &Value) -> String {
    let mut lines = Vec::new();
    fields(input, 0, &mut lines);
    if lines.len() > CARD_LINES_MAX {
        lines.truncate(CARD_LINES_MAX);
        lines.push("…".to_owned());
    }
    let body: Vec<_> = lines.iter().map(|line| format!("│ {line}")).collect();
    format!("╭─ {}\n{}\n╰─", harmless(name), body.join("\n"))
}

fn fields(value: &Value, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(all) => {
            for (key, value) in all {
                match value {
                    Value::Object(_) | Value::Array(_) => {
                        lines.push(format!("{indent}{}:", harmless(key)));
                        fields(value, depth + 1, lines);
                    }
                    value => lines.push(format!("{indent}{}: {}", harmless(key), in_words(value))),
                }
            }
        }
        Value::Array(all) => {
            for value in all {
                match value {
                    Value::Object(_) | Value::Array(_) => fields(value, depth + 1, lines),
                    value => lines.push(format!("{indent}- {}", in_words(value))),
                }
            }
        }
        value => lines.push(format!("{indent}{}", in_words(value))),
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::String(text) => harmless(text),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_card_shows_every_field_and_harms_nobody() {
        let recipe = json!({"title": "Soup\u{1b}[2J", "steps": ["boil", "eat"], "for": {"people": 4}});
        insta::assert_snapshot!(card("display_recipe", &recipe), @r"
        ╭─ display_recipe
        │ title: Soup [2J
        │ steps:
        │   - boil
        │   - eat
        │ for:
        │   people: 4
        ╰─
        ");
    }

    #[test]
    fn what_stands_in_a_line_is_short() {
        assert_eq!(short(&json!({"a": 1})), r#"{"a":1}"#);
        assert_eq!(short(&json!("x".repeat(10_000))).chars().count(), LINE_CHARS_MAX + 1);
    }
}
