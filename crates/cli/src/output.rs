//! What a command shows: tables with colour on a terminal, plain text when piped, JSON when asked.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use cofer_model::Kind;
use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;

use crate::exit::Failure;

/// After this long, a person is shown that something is going on.
const SPINNER_AFTER: Duration = Duration::from_secs(1);
const SPINNER_TICK: Duration = Duration::from_millis(100);
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

impl Format {
    /// JSON as it is, or whatever the text form makes of it.
    pub fn print(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        forgive_closed_pipe(self.deliver(value, text))
    }

    /// The same for what must not be lost: a reader who has left is an error like any other.
    pub fn deliver(self, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
        match self {
            Self::Json => write_line(&harmless_json(&serde_json::to_string_pretty(value)?)),
            Self::Text => write_line(&text()),
        }
    }
}

pub fn print_line(text: &str) -> Result<(), Failure> {
    forgive_closed_pipe(write_line(text))
}

/// A closed pipe (`cofer token ls | head -1`) is no error of ours. A full disk is.
pub fn forgive_closed_pipe(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Kind::Internal, format!("the output could not be written: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_line(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// Rows of a JSON array under the given headings, each naming a field.
pub fn table(rows: &Value, columns: &[(&str, &str)]) -> String {
    let on_terminal = io::stdout().is_terminal();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let heading = |title: &&str| {
        if on_terminal { Cell::new(title).add_attribute(Attribute::Bold) } else { Cell::new(title) }
    };
    table.set_header(columns.iter().map(|(title, _)| title).map(heading));
    for row in rows.as_array().into_iter().flatten() {
        table.add_row(columns.iter().map(|(_, field)| cell(&row[*field])));
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Every field that says something, one a line.
pub fn fields(object: &Value) -> String {
    let Some(fields) = object.as_object() else { return String::new() };
    let told = fields.iter().filter(|(_, value)| !is_empty(value));
    let width = fields.keys().map(String::len).max().unwrap_or_default();
    told.map(|(name, value)| format!("{name:width$}  {}", shown(name, value))).collect::<Vec<_>>().join("\n")
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Number(bytes) if name.ends_with("_bytes") => bytes.as_u64().map_or(bytes.to_string(), size),
        Value::String(text) => harmless(text),
        Value::Array(items) => items.iter().map(|item| shown("", item)).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let told = fields.iter().filter(|(_, value)| !is_empty(value));
            told.map(|(name, value)| format!("{name}={}", shown(name, value))).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

/// A value as a person reads it; what others wrote cannot move the cursor.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    harmless(&text)
}

/// Text of others, as it may stand on a terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { ' ' } else { c }).collect()
}

/// The same for what has several lines.
pub fn harmless_lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n")
}

/// JSON that means the same and does nothing to a terminal. Its own line ends stay; whatever else is left by those who
/// write JSON can only stand in a string, where it can be escaped.
pub fn harmless_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => shown.push(c),
            c if is_harmful(c) => _ = write!(shown, "\\u{:04x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    shown
}

/// Moves the cursor, changes colours, or turns the direction of what follows.
fn is_harmful(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Waits, showing a spinner on a terminal if it takes a while.
pub async fn with_spinner<T>(doing: &'static str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(SPINNER_AFTER, &mut work).await {
        return done;
    }
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(SPINNER_TICK);
    let done = work.await;
    spinner.finish_and_clear();
    done
}

/// The same, with what is going on as the server tells it, asked for now and then.
pub async fn with_progress<T>(
    doing: &str,
    work: impl Future<Output = T>,
    ask: impl AsyncFn() -> Option<String>,
) -> T {
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(SPINNER_AFTER, &mut work).await {
        return done;
    }
    let spinner = ProgressBar::new_spinner().with_message(doing.to_owned());
    spinner.enable_steady_tick(SPINNER_TICK);
    let watching = async {
        loop {
            if let Some(progress) = ask().await {
                spinner.set_message(harmless(&progress));
            }
            tokio::time::sleep(PROGRESS_EVERY).await;
        }
    };
    let done = tokio::select! { done = &mut work => done, () = watching => unreachable!("it never ends") };
    spinner.finish_and_clear();
    done
}

/// How long ago, in the largest unit: `42s`, `5m`, `3h`, `12d`.
pub fn age(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let unit = UNITS.iter().find(|(_, unit)| seconds >= *unit);
    unit.map_or_else(|| "0s".to_owned(), |(name, unit)| format!("{}{name}", seconds / unit))
}

/// Bytes as a person reads them: `45.2M`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes}B"),
        |(name, unit)| format!("{}.{}{name}", bytes / unit, bytes % unit * 10 / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ages_are_short() {
        assert_eq!([0, 59, 60, 7199, 90_000].map(age), ["0s", "59s", "1m", "1h", "1d"]);
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1023, 1024, 45 << 20, 1536 << 20].map(size);
        assert_eq!(shown, ["0B", "1023B", "1.0K", "45.0M", "1.5G"]);
    }

    #[test]
    fn json_of_others_is_harmless_and_means_the_same() {
        let said = json!({"a\u{9b}2J": "\u{1b}[31m \u{7f} \u{202e} ü\n"});
        let shown = harmless_json(&serde_json::to_string_pretty(&said).unwrap());
        assert!(!shown.contains(|c| is_harmful(c) && c != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), said);
    }

    #[test]
    fn a_table_is_plain_when_piped_and_harmless_whatever_it_shows() {
        let rows = json!([{"name": "a\u{1b}[31m", "scopes": ["x", "y"], "end": null}, {"name": "longer name", "scopes": [], "end": 7}]);
        insta::assert_snapshot!(table(&rows, &[("NAME", "name"), ("SCOPES", "scopes"), ("END", "end")]), @r"
        NAME         SCOPES  END
        a [31m       x,y     -
        longer name          7
        ");
    }
}
