//! `--servers FILE`: servers in the form that desktop clients use, started one after another in the file's order, and native tools.
//!
//! They belong to the project `default` and live as long as this process: nothing of them is registered.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofer_gateway::{Display, Gateway, Native};
use cofer_model::{Kind, ProjectId, SecretName, ServerId, template};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::declared::{self, DeclaredError, DeclaredServer};

const NAME_CHARS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("the servers file {} cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the servers file {} is wrong", path.display())]
    Wrong {
        path: PathBuf,
        #[source]
        source: DeclaredError,
    },
    #[error(
        "server `{name}` of the servers file could not be started: {reason}; mend it, or mark it `\"optional\": true`"
    )]
    NotStarted { name: String, reason: String },
    #[error("a native tool is wrong: {reason}")]
    NativeTool { reason: String },
}

impl FileError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreadable { .. } => Kind::NotFound,
            Self::Wrong { .. } | Self::NativeTool { .. } => Kind::Invalid,
            Self::NotStarted { .. } => Kind::Unavailable,
        }
    }
}

/// What the file says.
#[derive(Debug, Default)]
pub struct ServersFile {
    pub(super) servers: Vec<FileServer>,
    native_tools: Vec<Value>,
}

#[derive(Clone, Debug)]
pub(super) struct FileServer {
    pub id: ServerId,
    pub declared: DeclaredServer,
}

impl ServersFile {
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        let wrong = |source| FileError::Wrong { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let file = declared::import(&text).map_err(wrong)?;
        for warning in file.warnings.iter().filter(|warning| !warning.contains("nativeTools")) {
            tracing::warn!("the servers file {}: {warning}", path.display());
        }
        let server = |declared: DeclaredServer| FileServer { id: id_of(declared.name.as_str()), declared };
        let servers = file.servers.into_iter().filter(|server| server.enabled).map(server).collect();
        Ok(Self { servers, native_tools: declared::native_tools(&text).map_err(wrong)? })
    }

    /// The secrets that its servers name.
    pub fn secrets(&self) -> BTreeSet<SecretName> {
        template::names(self.servers.iter().flat_map(|server| server.declared.config.texts()))
    }

    /// Its native tools, and those of the configuration.
    pub fn natives(&self, configured: &[Value]) -> Result<Vec<Arc<Native>>, FileError> {
        configured.iter().chain(&self.native_tools).map(native).collect()
    }

    /// Starts them one after another. The first that fails fails all, unless it is optional.
    pub async fn start(&self, gateway: &Gateway, project: ProjectId) -> Result<(), FileError> {
        for FileServer { id, declared } in &self.servers {
            let name = declared.name.to_string();
            match gateway.refresh(project, *id).await {
                Ok(()) => tracing::info!("server {name} of the servers file is connected"),
                Err(error) if declared.optional => {
                    tracing::warn!(
                        "server {name} of the servers file could not be started, and is optional: {error}"
                    );
                }
                Err(error) => return Err(FileError::NotStarted { name, reason: error.to_string() }),
            }
        }
        Ok(())
    }
}

/// The same for the same name, in every life.
fn id_of(name: &str) -> ServerId {
    let digest = Sha256::digest(format!("servers file: {name}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    ServerId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NativeTool {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    input_schema: Option<Value>,
    handler: Handler,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Handler {
    Display,
}

fn native(tool: &Value) -> Result<Arc<Native>, FileError> {
    let wrong = |reason: String| FileError::NativeTool { reason };
    let NativeTool { name, description, input_schema, handler } =
        NativeTool::deserialize(tool).map_err(|error| wrong(error.to_string()))?;
    if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) {
        return Err(wrong(format!("a name has 1 to {NAME_CHARS_MAX} characters")));
    }
    let schema = input_schema.unwrap_or_else(|| json!({"type": "object"}));
    let described = json!({"name": name, "description": description, "inputSchema": schema});
    let description =
        serde_json::value::to_raw_value(&described).map_err(|error| wrong(error.to_string()))?;
    let handler = match handler {
        Handler::Display => Box::new(Display),
    };
    Ok(Arc::new(Native { description, handler }))
}
