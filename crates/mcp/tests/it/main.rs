//! The pump against a server that does everything wrong, over real pipes; and against one of ours in the same process where
//! the order of things matters. `wire` is about upstreams over HTTP.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod scripted;
mod torture;
mod wire;
