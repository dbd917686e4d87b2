//! What survives a restart?
//!
//! One [`Store`] over SQLite or PostgreSQL, with the same tables, the same statements and the same behaviour.
//! SQL is known in this room only.
//!
//! ```text
//!   projects   tokens   hosted   secrets     one file a table: its row, its statements, its operations
//!        └───────┼────────┴────────┘  │
//!             database      seal       pool and deadline · AEAD under the master key
//!             │   │   │
//!         codec failure migrations/{sqlite,postgres}
//! ```
//!
//! A new table is a new migration in *both* folders of `migrations/` and a new file beside these.

mod codec;
mod database;
mod failure;
mod hosted;
mod inspect;
mod lease;
mod projects;
mod seal;
mod secrets;
mod sqlite;
mod tokens;

pub use database::{DatabaseUrl, Store};
pub use failure::{OpenError, StoreError};
pub use hosted::{HostedServer, NewHostedServer, RecordedEvent, Seen};
pub use inspect::Inspection;
pub use lease::Lease;
pub use projects::{NewProject, ProjectChange};
pub use seal::{BadMasterKey, MasterKey};
pub use secrets::SecretsError;
pub use tokens::{NewToken, Revocation, TokenHash, generate_token};
