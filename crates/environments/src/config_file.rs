//! `.cofer/environment.json`, as people change it: what they do not touch stays as it is, also what has no meaning here.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::Environments;
use crate::config::{EnvironmentConfig, OWN};
use crate::error::{EnvError, Result};
use crate::files;

/// The file, and what would be in it.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub config: EnvironmentConfig,
    /// What the person should know, such as what of a dev container has no meaning here.
    pub warnings: Vec<String>,
    written: Map<String, Value>,
}

impl Environments {
    /// What new environments of this repository are made of: from the file, or from whatever is read where it is not there.
    pub async fn config_file(self: &Arc<Self>, path: &Path) -> Result<ConfigFile> {
        let source = self.source(path).await?;
        let file = source.top.join(OWN);
        let written = read(&file)?;
        if let Some(written) = written {
            let config =
                EnvironmentConfig::parse(OWN, &Value::Object(written.clone()).to_string().into_bytes())?;
            let mut warnings = Vec::new();
            if source.resolve("HEAD").await.is_ok()
                && let committed = source.git().ask("config", ["show", &format!("HEAD:{OWN}")], b"").await?
                && committed.code == Some(0)
                && serde_json::from_slice::<Map<String, Value>>(&committed.stdout).ok().as_ref()
                    != Some(&written)
            {
                warnings.push(format!("{OWN} is committed, and new environments take it from their commit: commit what you change"));
            }
            return Ok(ConfigFile { path: file, config, warnings, written });
        }
        let (config, warnings) = match source.resolve("HEAD").await {
            Ok(head) => EnvironmentConfig::read(&source, &head).await?,
            Err(_) => (EnvironmentConfig::default(), Vec::new()),
        };
        Ok(ConfigFile { path: file, config, warnings, written: Map::new() })
    }
}

impl ConfigFile {
    pub fn save(&self) -> Result<()> {
        self.config.check()?;
        let failed = |error: io::Error| EnvError::io("config", self.path.display(), &error);
        let Value::Object(config) =
            serde_json::to_value(&self.config).map_err(|error| failed(error.into()))?
        else {
            return Ok(());
        };
        let mut file = self.written.clone();
        file.retain(|key, _| !FIELDS.contains(&key.as_str()) || config.contains_key(key));
        file.extend(config);
        let mut bytes = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        bytes.push(b'\n');
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        files::replace(&self.path, &bytes).map_err(failed)
    }
}

/// Those that are left out when they are empty.
const FIELDS: [&str; 7] =
    ["base_image", "setup_commands", "install_commands", "env", "secrets", "caches", "services"];

fn read(file: &Path) -> Result<Option<Map<String, Value>>> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(EnvError::io("config", file.display(), &error)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        EnvError::invalid(
            "config",
            format!("{} is wrong: {error}", file.display()),
            format!("mend {}", file.display()),
        )
    })
}
