//! `cofer client`: Cofer in the configuration of the MCP clients that people use.
//!
//! ```text
//!   known      which file, which spelling        entry      what is written, and how it is known again
//!   document   the text, and servers in it       file       the file on disk, backed up and replaced as a whole
//!   workpiece  the two together                  history    what we did, so that it can be undone
//! ```
//!
//! The files belong to others: nothing of them is lost, whatever happens in between, and what cannot be understood is left alone.

mod document;
mod entry;
mod file;
mod history;
mod install;
mod known;
mod list;
mod token;
mod undo;
mod uninstall;
mod workpiece;

use clap::{Args, Subcommand};

use crate::client::Target;
use crate::exit::Failure;
use crate::output::Format;

#[derive(Debug, Args)]
pub struct Client {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    Install(install::Install),
    Uninstall(uninstall::Uninstall),
    Undo(undo::Undo),
    /// List the clients that are known, and in which of them Cofer is
    #[command(alias = "list")]
    Ls,
}

impl Client {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        match self.action {
            Action::Install(install) => install.run(&self.server, format).await,
            Action::Uninstall(uninstall) => uninstall.run(&self.server, format).await,
            Action::Undo(undo) => undo.run(&self.server, format).await,
            Action::Ls => list::list(format),
        }
    }
}
