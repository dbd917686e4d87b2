//! `cofer client ls`: the clients that we know, and in which of them Cofer is.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::entry::ours;
use super::known::{Known, Scope, Surroundings};
use super::workpiece::Workpiece;
use crate::exit::Failure;
use crate::output::{Format, table};

const COLUMNS: [(&str, &str); 5] =
    [("CLIENT", "client"), ("SCOPE", "scope"), ("FOUND", "found"), ("COFER", "entries"), ("FILE", "file")];

pub fn list(format: Format) -> Result<(), Failure> {
    let around = Surroundings::look()?;
    let mut rows = Vec::new();
    for known in Known::value_variants() {
        rows.extend(row(*known, Scope::User, &around));
        // Of what may be in this directory, only what is.
        rows.extend(row(*known, Scope::Project, &around).filter(|row| row["found"] == true));
    }
    let rows = Value::Array(rows);
    format.print(&rows, || {
        let shown = rows.as_array().into_iter().flatten().map(in_words).collect();
        table(&Value::Array(shown), &COLUMNS)
    })
}

fn row(known: Known, scope: Scope, around: &Surroundings) -> Option<Value> {
    let file = known.file(scope, around)?;
    let (entries, problem) = match Workpiece::open(known, scope) {
        Ok(work) => (own_entries(&work), Value::Null),
        Err(failure) => (json!([]), json!(failure.message)),
    };
    Some(json!({
        "client": known.as_str(),
        "title": known.title(),
        "scope": scope.as_str(),
        "file": file.display().to_string(),
        "found": file.exists(),
        "entries": entries,
        "problem": problem,
    }))
}

fn own_entries(work: &Workpiece) -> Value {
    let own = work.servers.entries().into_iter();
    own.filter_map(|(name, entry)| Some(json!({"name": name, "by": ours(&entry)?}))).collect()
}

/// A row as a person reads it.
fn in_words(row: &Value) -> Value {
    let mut shown = row.clone();
    shown["found"] = json!(if row["found"] == true { "yes" } else { "no" });
    let entries = row["entries"].as_array().into_iter().flatten();
    let entries: Vec<_> = entries
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            format!("{} ({})", text("name"), text("by"))
        })
        .collect();
    shown["entries"] = match (row["problem"].is_null(), entries.is_empty()) {
        (false, _) => json!("unreadable"),
        (true, true) => Value::Null,
        (true, false) => json!(entries.join(", ")),
    };
    shown
}
