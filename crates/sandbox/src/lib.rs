//! How do I run this in isolation?
//!
//! So far this room finds the container engines of a machine and asks what they can do; running things in them comes
//! next. Engines and their API are known in this room only.

pub mod engine;

pub use engine::{Engine, EngineKind, NoEngine};
