//! What survives a restart?
//!
//! One [`Store`] over SQLite or PostgreSQL, with the same tables, the same statements and the same behaviour.
//! SQL is known in this room only.
//!
//! ```text
//!   projects  tokens  register  hosted  external  products  tools  calls  runs  secrets  logins    one file a table: its row,
//!        └───────┴────────┴───────┴─────────┼───────┴─────────┴──────┴─────┴─┬──────┘       its statements, its operations
//!                                        database                         seal          pool and deadline · AEAD under the master key
//!                                        │   │   │
//!                                    codec failure migrations/{sqlite,postgres}
//! ```
//!
//! A new table is a new migration in *both* folders of `migrations/` and a new file beside these.

mod calls;
mod codec;
mod database;
mod external;
mod failure;
mod hosted;
mod inspect;
mod lease;
mod logins;
mod products;
mod projects;
mod register;
mod runs;
mod seal;
mod secrets;
mod sqlite;
mod tokens;
mod tools;

pub use calls::CallCursor;
pub use database::{DatabaseUrl, Store};
pub use external::{ExternalChange, NewExternalServer};
pub use failure::{OpenError, StoreError};
pub use hosted::{HostedServer, NewHostedServer, RecordedEvent, Seen};
pub use inspect::Inspection;
pub use lease::Lease;
pub use products::{InstallError, Installed, NewProduct, ProductServer};
pub use projects::{NewProject, ProjectChange};
pub use register::{RegisteredServer, ServerKind};
pub use runs::{RunCursor, RunProgress};
pub use seal::{BadMasterKey, MasterKey};
pub use secrets::SecretsError;
pub use tokens::{NewToken, Revocation, TokenHash, generate_token};
pub use tools::{CachedTool, ListedTool};
