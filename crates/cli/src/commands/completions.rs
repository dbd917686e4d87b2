//! `cofer completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;
use crate::exit::Failure;
use crate::output::print_line;

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell to complete in
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<(), Failure> {
        // Into memory first: written anywhere else, an error is a panic.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "cofer", &mut script);
        print_line(String::from_utf8_lossy(&script).trim_end())
    }
}
