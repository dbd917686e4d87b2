//! What are the things called?
//!
//! Every other room speaks in these words. Nothing here does I/O or waits, and only a new id and [`Moment::now`] look at the
//! clock, so that the vocabulary can be read, tested and trusted by itself.
//!
//! - [`id`]: what identifies a thing for ever, and [`id::Reference`], how a caller points at one
//! - [`name`]: what people call it, with the rules a name must keep
//! - [`project`], [`token`], [`secret`]: the things themselves
//! - [`kind`]: the closed list of ways in which a request can go wrong
//! - [`mask`]: how clear secrets are kept out of logs

pub mod id;
pub mod kind;
pub mod mask;
pub mod moment;
pub mod name;
pub mod project;
pub mod secret;
pub mod token;

pub use id::{ProjectId, Reference, TokenId};
pub use kind::Kind;
pub use mask::Mask;
pub use moment::Moment;
pub use name::{Label, ProjectName, SecretName};
pub use project::{Namespacing, Project};
pub use secret::SecretEntry;
pub use token::{Scope, Scopes, Token};
