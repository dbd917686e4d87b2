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
use std::time::{Duration, SystemTime};

use cofer_model::{Moment, ProviderName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::config::{EnvironmentConfig, ServiceConfig};
use crate::error::{EnvError, ErrorKind, Result};
use crate::files;
use crate::git::Source;
use crate::locks::{Hold, Lock};

/// What is written when something is done in an environment.
pub const TOLD_BY: [&str; 3] = ["state.json", LAST_COMMAND, "log"];
pub const LAST_COMMAND: &str = "last-command.json";
/// More than we ever write into one file of an environment's.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

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
        let bytes = match files::read_own(&file, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(EnvError::io("state", file.display(), &error)),
        };
        let damaged = |why: &dyn std::fmt::Display| {
            let message = format!("{} is damaged: {why}", file.display());
            let advice = "remove the environment with `cofer env destroy --force`";
            EnvError::new(ErrorKind::Internal, "state", message, advice)
        };
        let state: State = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        // A repository may come with such files in it. What is told to git must be what we could have written.
        if self.folder.file_name() != Some(state.id.as_ref()) {
            return Err(damaged(&"it is another environment's"));
        }
        if !matches!(state.base.len(), 40 | 64) || !state.base.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(damaged(&"it was made from no commit"));
        }
        Ok(Some(state))
    }

    /// What was run last, if anything was.
    pub fn last_command(&self) -> Option<LastCommand> {
        let bytes = files::read_own(&self.folder.join(LAST_COMMAND), FILE_BYTES_MAX).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// When something was last done, as the files that tell of it were written.
    pub fn told_at(&self) -> Option<Moment> {
        let written = |name: &&str| fs::symlink_metadata(self.folder.join(name)).ok()?.modified().ok();
        let newest = TOLD_BY.iter().filter_map(written).max()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(Moment::from_unix_ms(i64::try_from(newest.as_millis()).ok()?))
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
