//! `cofer completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell to complete in
    shell: Shell,
}

impl Completions {
    pub fn run(self) {
        clap_complete::generate(self.shell, &mut Cli::command(), "cofer", &mut std::io::stdout());
    }
}
