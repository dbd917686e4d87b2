//! How is it put together?
//!
//! `serve` is the whole life of a server, from settings to exit:
//!
//! ```text
//!  settings ─► data_dir ─► socket ─► store ─► keyring ─► admin token ─► App ─► http::router
//!  (decide)    (claim)     (bind)   (migrate)  (find)     (bootstrap)             │
//!                                                                       serve, tend, drain
//! ```
//!
//! Where things go: a setting in [`settings`], a route in `routes/` and `http/router.rs`, an error's status in
//! `http/error.rs`, something done now and then in `serve.rs`.

mod admin;
mod agents;
mod app;
mod aside;
mod auth;
pub mod data_dir;
pub mod declared;
pub mod doctor;
pub mod environments;
mod gateway;
mod hosting;
mod http;
pub mod keyring;
mod logins;
pub mod registry;
mod relay;
mod routes;
mod runtime;
mod serve;
pub mod settings;
mod stdio;
pub mod telemetry;

pub use aside::{Aside, AsideError};
pub use relay::relay;
pub use runtime::runtime;
pub use serve::{StartError, serve, serve_with};
