//! What are the things called?
//!
//! Every other room speaks in these words. Nothing here does I/O or waits, and only a new id and [`Moment::now`] look at the
//! clock, so that the vocabulary can be read, tested and trusted by itself.
//!
//! - [`id`]: what identifies a thing for ever, and [`id::Reference`], how a caller points at one
//! - [`name`]: what people call it, with the rules a name must keep
//! - [`project`], [`token`], [`secret`]: the things themselves
//! - [`hosting`]: servers that Cofer runs, what was asked for and how it goes; [`quantity`]: how much of something
//! - [`kind`]: the closed list of ways in which a request can go wrong
//! - [`template`]: texts that name secrets; [`mask`]: how clear secrets are kept out of logs

pub mod hosting;
pub mod id;
pub mod kind;
pub mod mask;
pub mod moment;
pub mod name;
pub mod project;
pub mod quantity;
pub mod secret;
pub mod template;
pub mod token;

pub use hosting::{
    ContainerStatus, HostedConfig, HostedEvent, HostedEventKind, HostedStatus, Isolation, LastExit,
    NetworkMode, PortMapping, ProviderName, ResourceLimits, RestartPolicy, UnknownWord, Wanted,
};
pub use id::{ProjectId, Reference, ServerId, TokenId};
pub use kind::Kind;
pub use mask::Mask;
pub use moment::Moment;
pub use name::{Label, ProjectName, SecretName, ServerName};
pub use project::{Namespacing, Project};
pub use quantity::{Cpu, Size};
pub use secret::SecretEntry;
pub use token::{Scope, Scopes, Token};
