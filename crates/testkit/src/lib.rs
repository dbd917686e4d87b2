//! How do we break it on purpose, and how do we know that nothing was left behind?
//!
//! - `app` runs the real `cofer` as a process of its own.
//! - `engines` says what the test bed offers (Docker, Podman, `PostgreSQL`), and skips aloud what it does not.
//! - `browser` is a real one, without a window, that shows the console.
//! - `chaos_proxy` stands between a client and a server and cuts, freezes or delays what flows.
//! - `leaks` fails a test that leaves processes, containers, worktrees or descriptors behind.
//! - `fixture` finds the program of `crates/fixture`, an MCP server that has everything the conformance suites ask for.
//! - `model_api` is the API of a model, saying what the test wants it to.
//! - `misbehaving` finds the program of `crates/misbehaving`, an MCP server that does everything wrong on request.
//!
//! Everything here panics when it cannot do its part: it runs in tests, and a panic is how a test fails.

#![expect(clippy::expect_used, reason = "a test kit that cannot do its part must fail the test")]

pub mod app;
mod aside;
pub mod browser;
mod built;
pub mod chaos_proxy;
pub mod engines;
pub mod fixture;
pub mod leaks;
pub mod misbehaving;
pub mod model_api;
mod until;

pub use until::{until, until_seen};
