//! One file a command.

pub mod completions;
pub mod doctor;
pub mod project;
pub mod secret;
pub mod serve;
pub mod token;
pub mod version;
