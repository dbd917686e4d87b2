//! The words that Cofer and its helper inside an environment's container say to each other.
//!
//! A connection is for one request: a command, or a small deed. It is carried by the socket in the channel directory or, where that cannot be
//! reached, by the standard streams of the engine's own exec; the words are the same.
//!
//! ```text
//!   frame   = kind (1 byte)  length (4 bytes, big-endian)  payload
//!
//!   Cofer   ── Run ──────────────── Stdin* CloseStdin? Resize* End? ──────►  helper
//!           ◄─ Started │ Refused ── Stdout* Stderr* Taken* ── Ended ─┤
//! ```
//!
//! Of stdin no more is under way than [`STDIN_WINDOW_BYTES`]; `Taken` makes room again. So `End` never waits behind bytes that a command does
//! not read. Output waits until Cofer reads: a command that prints a lot is held up, and nobody keeps what it prints.
//!
//! Each side takes the other for hostile: lengths are limited before anything is kept, and what cannot be understood ends the connection.

mod codec;
pub mod guarding;
pub mod tree;
mod words;

pub use codec::{Garbled, frame, header, parse_header};
pub use words::{Deed, End, How, Order, Reason, Run, Size, Word};

/// Told in every request: a container may be older than the Cofer that comes back to it.
pub const VERSION: u8 = 1;
pub const HEADER_BYTES: usize = 5;
/// Of the payload of any frame but a request.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Of a request: the kernel takes about two megabytes of arguments and environment.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
pub const STDIN_WINDOW_BYTES: usize = 64 << 10;

/// In the channel directory: where the helper listens.
pub const SOCKET: &str = "sock";
/// In the channel directory: there once the helper listens.
pub const READY: &str = "ready";
/// In the channel directory: the newest of what a background command said. Each begins with its place in the order of all that were
/// written, as eight bytes, big-endian.
pub const LOGS: [&str; 2] = ["log.0", "log.1"];
pub const LOG_BYTES_MAX: usize = 64 << 10;
pub const LOG_HEADER_BYTES: usize = 8;
