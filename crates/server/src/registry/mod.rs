//! The registry: external servers as people register, change and look at them.
//!
//! ```text
//!   routes ─► request (the rules) ─► rows ──────┐
//!      │                                        ├─► status (what callers see)
//!      └────► gateway (what is so now) ─────────┘
//! ```
//!
//! A row says what is wanted. Rows are written first, and the gateway, which connects, hears of it after ([`App::registry_changed`]).
//!
//! [`App::registry_changed`]: crate::app::App::registry_changed

mod request;
mod status;
mod tool;

pub(crate) use request::check_config;
pub use request::{Change, Registration};
pub use status::ExternalServerStatus;
pub use tool::ToolStatus;
