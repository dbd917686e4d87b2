//! Servers in TOML: a table for each.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

use super::Servers;

pub struct Toml {
    document: DocumentMut,
    key: &'static str,
    /// The tree writes plain line ends, whatever it read.
    has_crlf: bool,
}

impl Toml {
    pub fn read(text: &str, key: &'static str) -> Result<Self, String> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            let place = error.span().map(|span| place(text, span.start)).unwrap_or_default();
            format!("{place}{}", error.message())
        })?;
        if document.get(key).is_some_and(|servers| !servers.is_table_like()) {
            return Err(format!("`{key}` is not a table"));
        }
        let has_crlf = text.contains("\r\n") && !text.replace("\r\n", "").contains('\n');
        Ok(Self { document, key, has_crlf })
    }

    fn servers(&self) -> Option<&dyn TableLike> {
        self.document.get(self.key)?.as_table_like()
    }

    fn servers_mut(&mut self) -> Option<&mut dyn TableLike> {
        let nothing_yet = || {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        };
        self.document.entry(self.key).or_insert_with(nothing_yet).as_table_like_mut()
    }
}

fn place(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: ")
}

impl Servers for Toml {
    fn entries(&self) -> Vec<(String, Value)> {
        let Some(servers) = self.servers() else { return Vec::new() };
        servers.iter().map(|(name, entry)| (name.to_owned(), seen(entry))).collect()
    }

    fn put(&mut self, name: &str, entry: &Value) {
        let fields = entry.as_object().into_iter().flatten();
        let table: Table =
            fields.map(|(field, value)| (field.as_str(), Item::Value(written(value)))).collect();
        let Some(servers) = self.servers_mut() else { return };
        match servers.get_mut(name) {
            // What stands around the old one, such as a comment above it, stays.
            Some(Item::Table(there)) => {
                let mut table = table;
                table.decor_mut().clone_from(there.decor());
                table.set_position(there.position());
                *there = table;
            }
            _ => _ = servers.insert(name, Item::Table(table)),
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(servers) = self.document.get_mut(self.key).and_then(Item::as_table_like_mut) {
            servers.remove(name);
        }
    }

    fn text(&self) -> String {
        let text = self.document.to_string();
        if self.has_crlf { text.replace("\r\n", "\n").replace('\n', "\r\n") } else { text }
    }
}

/// As much of it as we have to recognise.
fn seen(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        return table.iter().map(|(name, item)| (name.to_owned(), seen(item))).collect();
    }
    match item.as_value() {
        Some(toml_edit::Value::String(text)) => Value::String(text.value().clone()),
        Some(toml_edit::Value::Array(items)) => {
            items.iter().map(|item| seen(&Item::Value(item.clone()))).collect()
        }
        _ => Value::Null,
    }
}

fn written(value: &Value) -> toml_edit::Value {
    match value {
        Value::Array(items) => items.iter().map(written).collect::<Array>().into(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), written(value)));
            fields.collect::<InlineTable>().into()
        }
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}
