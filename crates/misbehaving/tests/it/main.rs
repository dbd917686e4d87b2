//! Proves that each misbehaviour is what it says, by driving the program over its pipes as a bridge would.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a helper of a test fails as a test does")]

mod answers;
mod endings;
mod handshake;
mod host;
mod lines;
mod peer;
mod processes;
mod streams;
