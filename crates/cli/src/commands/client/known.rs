//! The clients that we know: where each keeps its servers on this machine, and how it spells an entry.
//!
//! Everything here is from the clients' own documentation. Nothing is read or written; `file` and `document` do that.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use cofer_model::Kind;

use crate::exit::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Known {
    /// Claude Desktop
    Claude,
    /// Claude Code
    ClaudeCode,
    /// Cursor
    Cursor,
    /// Visual Studio Code
    Vscode,
    /// Windsurf
    Windsurf,
    /// Gemini CLI
    Gemini,
    /// Codex
    Codex,
}

/// For whom an entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// This user, wherever they work
    #[default]
    User,
    /// Whoever works in the current directory
    Project,
}

impl Scope {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// With the comments and trailing commas that many clients allow.
    Json,
    Toml,
}

/// How a client wants to be told of a server at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpSpelling {
    pub url: &'static str,
    pub headers: &'static str,
}

/// Where a client's files may be: the parts of the environment that decide it.
#[derive(Debug)]
pub struct Surroundings {
    home: PathBuf,
    /// Where programs with windows keep their settings.
    config: PathBuf,
    codex: PathBuf,
    here: PathBuf,
}

impl Surroundings {
    pub fn look() -> Result<Self, Failure> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let homeless =
            || Failure::new(Kind::Invalid, "no HOME to look for clients in; set HOME to your home directory");
        let home = absolute("HOME").ok_or_else(homeless)?;
        let config = if cfg!(target_os = "macos") {
            home.join("Library/Application Support")
        } else {
            absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"))
        };
        let codex = absolute("CODEX_HOME").unwrap_or_else(|| home.join(".codex"));
        let here = std::env::current_dir().map_err(Failure::internal)?;
        Ok(Self { home, config, codex, here })
    }
}

impl Known {
    pub const fn title(self) -> &'static str {
        match self {
            Self::Claude => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::Cursor => "Cursor",
            Self::Vscode => "Visual Studio Code",
            Self::Windsurf => "Windsurf",
            Self::Gemini => "Gemini CLI",
            Self::Codex => "Codex",
        }
    }

    /// As it is typed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::ClaudeCode => "claude-code",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Windsurf => "windsurf",
            Self::Gemini => "gemini",
            Self::Codex => "codex",
        }
    }

    pub const fn language(self) -> Language {
        match self {
            Self::Codex => Language::Toml,
            _ => Language::Json,
        }
    }

    /// What its servers are listed under.
    pub const fn servers_key(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Codex => "mcp_servers",
            _ => "mcpServers",
        }
    }

    /// Whether an entry says of which type it is.
    pub const fn says_type(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::Vscode)
    }

    /// None for a client whose file takes programs alone.
    pub fn http(self) -> Option<HttpSpelling> {
        let spelled = |url, headers| HttpSpelling { url, headers };
        match self {
            Self::Claude => None,
            Self::ClaudeCode | Self::Cursor | Self::Vscode => Some(spelled("url", "headers")),
            Self::Windsurf => Some(spelled("serverUrl", "headers")),
            Self::Gemini => Some(spelled("httpUrl", "headers")),
            Self::Codex => Some(spelled("url", "http_headers")),
        }
    }

    /// None where there is no such file.
    pub fn file(self, scope: Scope, around: &Surroundings) -> Option<PathBuf> {
        match scope {
            Scope::User => Some(self.users_file(around)),
            Scope::Project => self.projects_file().map(|file| around.here.join(file)),
        }
    }

    fn users_file(self, around: &Surroundings) -> PathBuf {
        match self {
            Self::Claude => around.config.join("Claude/claude_desktop_config.json"),
            Self::ClaudeCode => around.home.join(".claude.json"),
            Self::Cursor => around.home.join(".cursor/mcp.json"),
            Self::Vscode => around.config.join("Code/User/mcp.json"),
            Self::Windsurf => around.home.join(".codeium/windsurf/mcp_config.json"),
            Self::Gemini => around.home.join(".gemini/settings.json"),
            Self::Codex => around.codex.join("config.toml"),
        }
    }

    fn projects_file(self) -> Option<&'static Path> {
        let file = match self {
            Self::Claude | Self::Windsurf => return None,
            Self::ClaudeCode => ".mcp.json",
            Self::Cursor => ".cursor/mcp.json",
            Self::Vscode => ".vscode/mcp.json",
            Self::Gemini => ".gemini/settings.json",
            Self::Codex => ".codex/config.toml",
        };
        Some(Path::new(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_typed_as_it_is_told() {
        for known in Known::value_variants() {
            assert_eq!(known.to_possible_value().unwrap().get_name(), known.as_str());
        }
    }
}
