//! What do MCP bytes mean?
//!
//! ```text
//!   callers ─► Pump (handle) ─► router task ─► writer task ─► stdin
//!                    ▲               │
//!                    └── replies ────┘◄── lines ◄───────────── stdout
//! ```
//!
//! An upstream over HTTP is made two streams of lines by [`wire`], so that the pump serves it as well.
//!
//! Messages are carried, not re-typed: of a message only its id, method and kind are looked at; `params` and `result` stay
//! the bytes they were. JSON-RPC is known in this room only.

pub mod client;
mod ear;
pub mod era;
mod handshake;
pub mod lines;
pub mod message;
pub mod mirror;
mod pump;
pub mod raw;
mod router;
mod spotter;
mod voice;
pub mod wire;

pub use ear::{Ear, Question};
pub use era::Era;
pub use handshake::{Face, Handshake, discover, shake_hands};
pub use message::{Notification, Reply, RpcError};
pub use pump::{Awaited, CallError, Ended, Limits, Pump};
