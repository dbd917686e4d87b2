//! The HTTP door: how requests come in and how answers, good and bad, look.
//!
//! ```text
//!   listen ─► observe ─► catch panics ─► see through ─► limit ─► routes
//!  (sockets)  (trace id,                 (changes are   (503)     │ Reader, Writer: who is asking (auth)
//!             metrics,                    finished)               │ Path, Body: extractors that answer in our envelope
//!             envelope)                                           └ Result<_, ApiError>
//! ```
//!
//! Calls of tools take a shorter way: `plain` reads and writes them, `express` hands them to their routes.

pub mod error;
pub(crate) mod express;
pub mod extract;
pub mod listen;
pub(crate) mod observe;
pub(crate) mod paging;
mod patience;
mod plain;
mod router;

pub use error::ApiError;
pub use router::router;
