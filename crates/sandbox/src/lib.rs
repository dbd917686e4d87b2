//! How do I run this in isolation?
//!
//! [`provider`] says what every way of running a sandbox can do; [`engine`] finds the container engines of a machine and asks
//! what they can do. Engines and their API are known in this room only.

pub mod engine;
pub mod provider;

pub use engine::{Engine, EngineKind, NoEngine};
pub use provider::*;
