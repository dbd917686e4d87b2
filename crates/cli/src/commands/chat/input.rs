//! What a person types: lines with editing and a history on a terminal, plain lines otherwise. Reading is done by a thread, so that
//! nothing else has to wait for a person.

use std::fs::DirBuilder;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use cofer_model::Kind;
use cofer_server::settings::default_data_dir;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::exit::Failure;

const HISTORY_FILE: &str = "chat.history";

#[derive(Debug)]
pub enum Line {
    Text(String),
    Interrupted,
    End,
}

/// Who types. The editor is with the thread that reads while it does.
pub struct Input {
    editor: Option<DefaultEditor>,
    history: Option<PathBuf>,
}

impl Input {
    pub fn open() -> Self {
        let history = default_data_dir(&|name| std::env::var(name).ok()).map(|dir| dir.join(HISTORY_FILE));
        let mut editor = DefaultEditor::new().ok();
        if let (Some(editor), Some(history)) = (&mut editor, &history) {
            // None yet is no trouble.
            let _ = editor.load_history(history);
        }
        Self { editor, history }
    }

    /// The next message.
    pub async fn message(&mut self) -> Result<Line, Failure> {
        let line = self.read("› ").await?;
        if let (Line::Text(text), Some(editor)) = (&line, &mut self.editor)
            && !text.trim().is_empty()
        {
            let _ = editor.add_history_entry(text.as_str());
            if let Some(history) = self.history.as_ref().filter(|_| std::io::stdin().is_terminal()) {
                // A conversation without a history is still one.
                let _ = history.parent().map(|dir| DirBuilder::new().recursive(true).mode(0o700).create(dir));
                let _ = editor.save_history(history);
            }
        }
        Ok(line)
    }

    /// Whether the answer to this is yes.
    pub async fn agrees(&mut self, question: &str) -> Result<bool, Failure> {
        let line = self.read(&format!("{question} [y/N] ")).await?;
        let is_yes = |text: &str| ["y", "yes"].contains(&text.trim().to_lowercase().as_str());
        Ok(matches!(line, Line::Text(text) if is_yes(&text)))
    }

    async fn read(&mut self, prompt: &str) -> Result<Line, Failure> {
        let broken = || Failure::new(Kind::Internal, "the terminal cannot be read");
        let mut editor = self.editor.take().ok_or_else(broken)?;
        let prompt = prompt.to_owned();
        let is_terminal = std::io::stdin().is_terminal();
        if !is_terminal {
            // Whoever pipes lines in may be watching.
            let _ = write!(std::io::stderr(), "{prompt}");
        }
        let reading = tokio::task::spawn_blocking(move || {
            let line = editor.readline(if is_terminal { prompt.as_str() } else { "" });
            (editor, line)
        });
        let (editor, line) = reading.await.map_err(|_| broken())?;
        self.editor = Some(editor);
        match line {
            Ok(text) => Ok(Line::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(_) => Err(broken()),
        }
    }
}
