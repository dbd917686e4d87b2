//! `${…}` as other programs write it, in our words: `${env:X}` and `${input:X}` become `${X}`, a secret of the project.

use cofer_model::SecretName;
use serde_json::Value;

use super::Notes;

/// What an editor puts in by itself, and Cofer cannot.
const OF_THE_EDITOR: [&str; 7] =
    ["workspaceFolder", "workspaceFolderBasename", "userHome", "cwd", "file", "pathSeparator", "/"];

/// What VS Code would ask the person for.
pub(super) fn note_inputs(inputs: Option<&Value>, notes: &mut Notes) {
    for input in inputs.and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| input.get(field).and_then(Value::as_str);
        if let (Some(id), Some(description)) = (text("id"), text("description")) {
            notes.hints.insert(secret_name(id), description.to_owned());
        }
    }
}

/// The text in our words.
pub(super) fn translate(server: &str, text: &str, notes: &mut Notes) -> String {
    let mut translated = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let Some(length) = rest[at..].find('}') else { break };
        let (before, variable) = (&rest[..at], &rest[at + 2..at + length]);
        translated.push_str(before);
        translated.push_str(&in_our_words(server, variable, notes));
        rest = &rest[at + length + 1..];
    }
    translated + rest
}

fn in_our_words(server: &str, variable: &str, notes: &mut Notes) -> String {
    if let Some(name) = variable.strip_prefix("env:").or_else(|| variable.strip_prefix("input:")) {
        return format!("${{{}}}", secret_name(name));
    }
    if let Some((name, default)) = variable.split_once(":-") {
        if !default.is_empty() {
            notes.warn(format!(
                "server `{server}`: the default of `${{{name}}}` is not taken over; set the secret"
            ));
        }
        return format!("${{{}}}", secret_name(name));
    }
    if OF_THE_EDITOR.contains(&variable) {
        notes.warn(format!(
            "server `{server}`: `${{{variable}}}` is known to the editor alone; write the path itself"
        ));
    }
    format!("${{{variable}}}")
}

/// The name as a secret may have it: what does not fit becomes `_`.
pub(super) fn secret_name(text: &str) -> SecretName {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name: String = text.chars().take(100).map(plain).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    // It was just made so that it is one.
    SecretName::try_from(name).unwrap_or_else(|_| unreachable!("letters, digits and `_`, the first no digit"))
}
