//! What are the things called?
//!
//! Every other room speaks in these words. Nothing here does I/O or waits, and only a new id and [`Moment::now`] look at the
//! clock, so that the vocabulary can be read, tested and trusted by itself.
//!
//! - [`id`]: what identifies a thing for ever, and [`id::Reference`], how a caller points at one
//! - [`name`]: what people call it, with the rules a name must keep
//! - [`project`], [`token`], [`secret`]: the things themselves
//! - [`hosting`]: servers that Cofer runs, what was asked for and how it goes; [`quantity`]: how much of something
//! - [`external`]: servers that live elsewhere, and how each is reached; [`call`]: the record of a tool's call; [`run`]: of an agent's run
//! - [`kind`]: the closed list of ways in which a request can go wrong
//! - [`template`]: texts that name secrets; [`mask`]: how clear secrets are kept out of logs

pub mod call;
pub mod external;
pub mod hosting;
pub mod id;
pub mod kind;
pub mod mask;
pub mod moment;
pub mod name;
pub mod project;
pub mod quantity;
pub mod run;
pub mod secret;
pub mod template;
pub mod token;
pub mod words;

pub use call::{CallFilter, CallStatus, ToolCallRecord};
pub use external::{
    Circuit, CircuitState, ExternalConfig, ExternalServer, ExternalStatus, LoginState, OauthConfig, Product,
    RemoteConfig, SessionMode, StdioConfig, Transport,
};
pub use hosting::{
    ContainerStatus, HostedConfig, HostedEvent, HostedEventKind, HostedStatus, Isolation, LastExit,
    NetworkMode, PortMapping, ProviderName, ResourceLimits, RestartPolicy, Wanted,
};
pub use id::{CallId, MessageId, ProductId, ProjectId, Reference, RunId, ServerId, TokenId};
pub use kind::Kind;
pub use mask::Mask;
pub use moment::Moment;
pub use name::{Label, ProjectName, SecretName, ServerName};
pub use project::{Namespacing, Project};
pub use quantity::{Cpu, Size};
pub use run::{RunFilter, RunMessage, RunRecord, RunStatus, Speaker, Usage};
pub use secret::SecretEntry;
pub use token::{Scope, Scopes, Token};
pub use words::UnknownWord;
