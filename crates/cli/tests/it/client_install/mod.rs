//! Cofer in the configuration of other programs: what their files look like afterwards (`written`), and that nothing of them is
//! lost and everything can be taken back (`changed`).

mod changed;
mod written;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use cofer_testkit::app::{App, Ran, Start};

use crate::start;

/// Each client, and where it has its file below the home directory.
const CLIENTS: [(&str, &str); 7] = [
    ("claude", ".config/Claude/claude_desktop_config.json"),
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".config/Code/User/mcp.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("gemini", ".gemini/settings.json"),
    ("codex", ".codex/config.toml"),
];

const OTHERS: &str =
    "{\n  // mine\n  \"mcpServers\": {\"files\": {\"command\": \"npx\"}},\n  \"theme\": \"dark\"\n}\n";

fn home(app: &App) -> PathBuf {
    app.data_dir().parent().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// With what is another on each machine replaced.
fn told_alike(text: &str, home: &Path) -> String {
    text.replace(env!("CARGO_BIN_EXE_cofer"), "/bin/cofer").replace(&home.display().to_string(), "~")
}

/// A machine where no Cofer runs, with this in Cursor's file.
fn with_cursor(text: &str) -> (Start, PathBuf) {
    let start = start();
    let file = start.path().join(".cursor/mcp.json");
    write(&file, text);
    (start, file)
}

async fn in_folder(start: &Start, folder: &Path, args: &[&str]) -> Ran {
    let mut command = start.command(args);
    command.current_dir(folder).stdin(Stdio::null());
    command.output().await.unwrap().into()
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn token_in(text: &str) -> &str {
    let start = text.find("cofer_").unwrap_or_else(|| panic!("no token: {text}"));
    text[start..].split('"').next().unwrap()
}

async fn tokens_of_clients(app: &App) -> Vec<String> {
    let tokens = app.get("/api/v1/tokens").await.json();
    let names = tokens.as_array().unwrap().iter().filter_map(|token| token["name"].as_str());
    names.filter(|name| name.starts_with("client-")).map(ToOwned::to_owned).collect()
}
