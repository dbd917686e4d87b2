//! A person's own shell in an environment.

use cofer_model::Moment;
use cofer_sandbox::{RunningCommand, TerminalSize};
use secrecy::SecretString;

use crate::environment::Environment;
use crate::error::Result;
use crate::git::{Commit, LogEntry};
use crate::state::LastCommand;

/// The better of the two shells that an image may have.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";
const TOLD: &str = "Changes made in a terminal";

impl Environment {
    /// Starts a shell on a terminal of this size, which is of this type. Who drops it ends it.
    pub async fn start_terminal(
        &mut self,
        size: TerminalSize,
        kind: Option<String>,
    ) -> Result<RunningCommand> {
        let clear =
            crate::secrets::read(&self.state.config, self.house.settings(), &*self.house.vault).await?;
        let mut variables = clear.variables;
        variables.extend(kind.map(|kind| ("TERM".to_owned(), SecretString::from(kind))));
        let argv = ["sh", "-c", SHELL].map(ToOwned::to_owned).to_vec();
        let mut spec = crate::run::command(argv, variables);
        spec.terminal = Some(size);
        spec.stdin = true;
        self.start(&spec).await
    }

    /// Commits what was changed, when the shell has ended.
    pub async fn keep_terminal(&self, exit_code: Option<i32>) -> Result<Commit> {
        self.note_last_command(&LastCommand {
            command: "(terminal)".to_owned(),
            exit_code,
            at: Moment::now(),
        });
        self.keep(TOLD, &LogEntry::Note("Terminal")).await
    }
}
