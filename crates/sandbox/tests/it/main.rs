//! What every provider must do, tried on real engines: the same tests for Docker, gVisor and Podman.
//!
//! A test is a function of a [`bed::Bed`]; `conformance!` makes three tests of it, one for each provider. What they make bears
//! their own instance as a label, and whatever is left of it at the end fails the test. `children` needs no engine: it is about programs
//! beside Cofer.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a helper of a test fails as a test does")]

#[macro_use]
mod bed;

mod attaching;
mod background;
mod children;
mod command_cost;
mod commands;
mod disk;
mod ending;
mod engines;
mod hardening;
mod images;
mod launching;
mod networks;
mod round_trip;
mod trees;
mod usage;
mod volumes;
mod workbench;
mod workshops;
