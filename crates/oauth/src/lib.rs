//! Who lets whom in by OAuth?
//!
//! Outwards, a server elsewhere wants a login, and a person gives it once:
//!
//! ```text
//!   401 ─► Challenge ─► discovery: whose tokens does it take? ─► client: who are we to them? ─► Attempt ─► the person's browser
//!                                                                                                             │ code
//!   Grant (access and refresh token, for this server alone) ◄───────────── Attempt::finish ◄──────────────────┘
//!     └─► Grant::refresh, Grant::revoke
//! ```
//!
//! Inwards, [`Issuer`] checks the tokens that an issuer whom we trust gave to clients of ours.
//!
//! Everything here follows MCP's authorization of 2026-07-28: RFC 9728, 8414, 7591, 7636, 8707 and 9207, and what it keeps of
//! 2025-03-26. Nothing is stored and nothing is remembered here but an issuer's keys; who keeps a grant seals it. Whatever another
//! server says is hostile: sized, timed, and led nowhere that it could not reach by itself ([`web`]).

mod challenge;
mod client;
mod discovery;
mod failure;
mod grant;
mod hidden;
mod issuer;
mod login;
mod metadata;
mod signatures;
mod web;

pub use challenge::Challenge;
pub use client::{Client, Configured, Source};
pub use failure::OauthError;
pub use grant::{Grant, Tokens};
pub use hidden::Hidden;
pub use issuer::{Issuer, Rejected, Subject};
pub use login::{Attempt, Callback, Wanted, begin};
pub use web::Web;
