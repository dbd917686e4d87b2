//! The text of a client's file, as a list of servers that can be changed without losing anything else of it.
//!
//! Comments, order, formatting, line ends and whatever we know nothing of stay to the letter: each language has a tree that
//! keeps them (`json`, `toml`). What cannot be understood is refused before anything is changed.

mod json;
mod toml;

use serde_json::Value;

use super::known::{Known, Language};

/// The servers in a text. Whoever made one has seen that the text has a place for them.
pub trait Servers {
    fn entries(&self) -> Vec<(String, Value)>;

    /// Puts one in the place of one with the same name, else after all others.
    fn put(&mut self, name: &str, entry: &Value);

    fn remove(&mut self, name: &str);

    fn text(&self) -> String;

    fn entry(&self, name: &str) -> Option<Value> {
        self.entries().into_iter().find(|(there, _)| there == name).map(|(_, entry)| entry)
    }
}

/// Says what is wrong, and where.
pub fn read(text: &str, known: Known) -> Result<Box<dyn Servers>, String> {
    let key = known.servers_key();
    Ok(match known.language() {
        Language::Json => Box::new(json::Json::read(text, key)?),
        Language::Toml => Box::new(toml::Toml::read(text, key)?),
    })
}

#[cfg(test)]
mod tests;
