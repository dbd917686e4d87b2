//! How do I run this in isolation?
//!
//! [`provider`] says what every way of running a sandbox can do; [`providers`] knows all ways by name and picks one. [`containers`] is
//! the way over a container engine, which [`engine`] finds and asks what it can do. Engines and their API are known in this room only.
//! [`workshop`] runs commands in a container that stays, through a helper of ours inside it (`crates/inside`). [`child`] runs a program on this machine without isolation, but owns all of its processes.

mod channel;
mod checkpoints;
pub mod child;
pub mod command;
mod connection;
pub mod containers;
mod disk;
mod disk_watch;
mod ending;
pub mod engine;
mod exits;
mod freezer;
mod gauge;
mod helper;
mod images;
mod launch;
mod making;
mod networks;
mod plain;
pub mod provider;
pub mod providers;
mod sightings;
mod stdin;
mod streams;
mod usage;
mod volumes;
pub mod workshop;

pub use child::{ChildEnd, ChildError, ChildProcess, ChildSpec, HowEnded};
pub use command::{
    CommandEnd, CommandInput, CommandSpec, HowCommandEnded, RunningCommand, Said, TerminalSize,
};
pub use connection::{EngineSettings, Variable};
pub use containers::EngineProvider;
pub use engine::{Engine, EngineKind, NoEngine};
pub use provider::*;
pub use providers::{Pick, PickError, ProviderReport, Providers};
pub use workshop::{Changed, Workshop};
