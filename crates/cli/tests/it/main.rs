//! The real binary, from outside: started as a person would, asked over HTTP and by the command line.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod client_install;
mod command_line;
mod console;
mod databases;
mod doctor;
mod documents;
mod doors;
mod environments;
mod gateway;
mod hostile_clients;
mod hosting;
mod keys;
mod life;
mod oauth;
mod observing;
mod plain;
mod projects;
mod registry;
mod secrets;
mod settings;
mod tokens;

use cofer_testkit::app::{App, Start};

fn start() -> Start {
    Start::new(env!("CARGO_BIN_EXE_cofer"))
}

async fn serving() -> App {
    start().serve().await
}

/// What a longer run is told by a variable, such as how long.
fn told(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}
