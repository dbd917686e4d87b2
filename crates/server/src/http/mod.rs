//! The HTTP door: how requests come in and how answers, good and bad, look.
//!
//! ```text
//!   listen ─► observe ─► limit ─► catch panics ─► routes
//!  (sockets)  (trace id, (503)                      │ body, path, query: extractors that answer in our envelope
//!             metrics,                              │ Caller: who is asking (auth)
//!             envelope)                             └ Result<_, ApiError>
//! ```

pub mod error;
pub mod extract;
pub mod listen;
mod observe;
mod patience;
mod router;

pub use error::ApiError;
pub use router::router;
