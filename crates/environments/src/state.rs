//! What is known of an environment from one process to the next: a file beside its worktree, replaced as a whole.
//!
//! ```text
//!   .cofer/lock                        held while environments are counted and named
//!   .cofer/environments/<id>/lock      held while one is made, committed, changed or destroyed
//!                           /state.json
//!                           /log       what was done and is no git note yet
//!                           /channel   shared with the container: how commands get in
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofer_model::{Moment, ProviderName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::config::{EnvironmentConfig, ServiceConfig};
use crate::error::{EnvError, Result};
use crate::files;
use crate::git::Source;
use crate::locks::{Hold, Lock};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub id: String,
    pub title: String,
    pub created_at: Moment,
    pub updated_at: Moment,
    pub stage: Stage,
    /// The commit that it was made from.
    pub base: String,
    /// Who commits: name and address.
    pub identity: (String, String),
    pub config: EnvironmentConfig,
    pub provider: ProviderName,
    /// Whether the container's root is the user who runs the engine.
    #[serde(default)]
    pub rootless: bool,
    pub container: Option<String>,
    /// How often its container was made.
    pub run: u64,
    #[serde(default)]
    pub services: Vec<Service>,
    #[serde(default)]
    pub backgrounds: Vec<Background>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Making,
    Ready,
    Destroying,
}

/// A port as it is reached from inside and from this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEndpoint {
    pub port: u16,
    pub environment_internal: String,
    pub host_external: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    pub config: ServiceConfig,
    pub container: String,
    pub endpoints: Vec<PortEndpoint>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Background {
    pub id: String,
    pub command: String,
    pub container: String,
    pub endpoints: Vec<PortEndpoint>,
    pub started_at: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCommand {
    pub command: String,
    pub exit_code: Option<i32>,
    pub at: Moment,
}

/// Where an environment's own files are.
#[derive(Clone, Debug)]
pub struct Home {
    pub folder: PathBuf,
}

impl Home {
    pub fn of(source: &Source, id: &str) -> Self {
        Self { folder: source.environments().join(id) }
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What is shared with a container of this name.
    pub fn channel(&self, name: &str) -> PathBuf {
        self.folder.join(format!("channel-{name}"))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    pub async fn lock(&self, hold: Hold, patience: Duration) -> Result<Lock> {
        Lock::take(&self.folder.join("lock"), hold, patience).await
    }

    pub fn make(&self) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| EnvError::io("state", self.folder.display(), &error))
    }

    /// `None` if there is no such environment.
    pub fn load(&self) -> Result<Option<State>> {
        let file = self.file();
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(EnvError::io("state", file.display(), &error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let message = format!("{} is damaged: {error}", file.display());
            EnvError::new(
                crate::error::ErrorKind::Internal,
                "state",
                message,
                "remove the environment with `cofer env destroy --force`",
            )
        })
    }

    pub fn save(&self, state: &State) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(state)
            .map_err(|error| EnvError::io("state", self.file().display(), &error.into()))?;
        files::replace(&self.file(), &bytes)
            .map_err(|error| EnvError::io("state", self.file().display(), &error))
    }
}

/// Ids of all environments of a repository, in order.
pub fn ids(source: &Source) -> Result<Vec<String>> {
    let folder = source.environments();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(EnvError::io("state", folder.display(), &error)),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut ids: Vec<String> = names.filter(|name| crate::id::check(name).is_ok()).collect();
    ids.sort();
    Ok(ids)
}

/// By what all containers of a repository's environments are known.
pub fn instance(source: &Source) -> String {
    format!("env-{}", data_encoding::HEXLOWER.encode(&digest(&[&source.common.to_string_lossy()])[..8]))
}

/// The same for the same part of the same environment, in every process.
pub fn owner_id(source: &Source, parts: &[&str]) -> Uuid {
    let common = source.common.to_string_lossy();
    let all: Vec<&str> = [&*common].into_iter().chain(parts.iter().copied()).collect();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(&all)[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

fn digest(parts: &[&str]) -> Vec<u8> {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_vec()
}

/// Removes a folder of ours with all that is in it.
pub fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(EnvError::io("state", path.display(), &error))
        }
        _ => Ok(()),
    }
}
