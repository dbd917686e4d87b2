//! `cofer env diff`: bytes that `git apply` takes when piped, colours on a terminal.

use std::io::{self, IsTerminal, Write as _};

use clap::Args;
use serde_json::json;

use super::{Place, Which, failure};
use crate::exit::Failure;
use crate::output::{Format, forgive_closed_pipe, harmless, print_line};

/// Show what an environment has changed
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    which: Which,
}

impl Diff {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let patch = environment.patch().await.map_err(failure)?;
        let text = String::from_utf8_lossy(&patch);
        match place.format {
            Format::Json => place.format.print(&json!({"id": environment.id(), "diff": text}), String::new),
            Format::Text if io::stdout().is_terminal() => print_line(&shown(text.trim_end())),
            Format::Text => {
                let mut stdout = io::stdout().lock();
                forgive_closed_pipe(stdout.write_all(&patch).and_then(|()| stdout.flush()))
            }
        }
    }
}

/// As it may stand on a terminal, with git's colours; untouched when it goes elsewhere.
pub(super) fn shown(text: &str) -> String {
    if !io::stdout().is_terminal() {
        return text.to_owned();
    }
    text.lines().map(coloured).collect::<Vec<_>>().join("\n")
}

fn coloured(line: &str) -> String {
    // Tabs move the cursor where everybody expects it.
    let harmless = line.split('\t').map(harmless).collect::<Vec<_>>().join("\t");
    let colour = match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => "1",
        [b'+', ..] => "32",
        [b'-', ..] => "31",
        [b'@', b'@', ..] => "36",
        _ if line.starts_with("diff --git ") => "1",
        _ => return harmless,
    };
    format!("\x1b[{colour}m{harmless}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_cannot_move_the_cursor_and_keeps_its_tabs() {
        assert_eq!(coloured("+\tx\u{1b}[2J"), "\x1b[32m+\tx [2J\x1b[0m");
        assert_eq!(coloured(" \tplain"), " \tplain");
    }
}
