//! Secrets by reference: what an environment's configuration names, read when a command starts and written down nowhere.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cofer_model::Mask;
use secrecy::SecretString;

use crate::config::{EnvironmentConfig, variable};
use crate::error::{EnvError, ErrorKind, Result};
use crate::settings::Settings;

const SECRET_BYTES_MAX: u64 = 64 << 10;
const SCHEMES: [&str; 3] = ["env://", "file://", "cofer://"];

/// Where Cofer's own secrets come from.
#[async_trait]
pub trait Vault: fmt::Debug + Send + Sync {
    /// `None` if there is none of this name.
    async fn secret(&self, name: &str) -> std::result::Result<Option<SecretString>, String>;
}

/// There is no running Cofer whose secrets these would be.
#[derive(Debug)]
pub struct NoVault;

#[async_trait]
impl Vault for NoVault {
    async fn secret(&self, _name: &str) -> std::result::Result<Option<SecretString>, String> {
        Err("secrets of Cofer's own are there for projects of a running Cofer only; use env:// or file://".to_owned())
    }
}

/// Clear values, and what keeps them out of logs.
#[derive(Clone, Debug, Default)]
pub struct Clear {
    pub variables: Vec<(String, SecretString)>,
    pub mask: Arc<Mask>,
}

pub fn check(name: &str, reference: &str) -> Result<()> {
    if SCHEMES.iter().any(|scheme| reference.starts_with(scheme) && reference.len() > scheme.len()) {
        return Ok(());
    }
    let advice = "a secret is named by where it is: NAME=env://VARIABLE, NAME=file:///path or NAME=cofer://NAME";
    Err(EnvError::invalid("config", format!("secret `{name}` is no reference that is known here"), advice))
}

/// All secrets of a configuration. Where environments are made for others, only Cofer's own may be named: whoever can write to a
/// repository must not read this machine's files by it.
pub async fn read(config: &EnvironmentConfig, settings: &Settings, vault: &dyn Vault) -> Result<Clear> {
    let mut variables: Vec<(String, SecretString)> = Vec::new();
    for entry in &config.secrets {
        let (name, reference) = variable(entry, "secrets")?;
        if settings.sources.is_some() && !reference.starts_with("cofer://") {
            let message = format!("secret `{name}` is kept on the machine that Cofer runs on");
            return Err(EnvError::invalid("secrets", message, "name a secret of the project: NAME=cofer://NAME"));
        }
        variables.push((name.to_owned(), resolve(name, reference, vault).await?));
    }
    let mut mask = Mask::default();
    variables.iter().for_each(|(_, value)| mask.hide(value));
    Ok(Clear { variables, mask: Arc::new(mask) })
}

async fn resolve(name: &str, reference: &str, vault: &dyn Vault) -> Result<SecretString> {
    check(name, reference)?;
    let missing = |why: String| {
        let message = format!("secret `{name}` could not be read: {why}");
        EnvError::new(ErrorKind::PreconditionFailed, "secrets", message, format!("see that {reference} is there, and try again"))
    };
    if let Some(variable) = reference.strip_prefix("env://") {
        let value = std::env::var(variable).map_err(|_| missing(format!("there is no variable {variable}")))?;
        return Ok(value.into());
    }
    if let Some(path) = reference.strip_prefix("file://") {
        let path = Path::new(path);
        let about = std::fs::metadata(path).map_err(|error| missing(error.to_string()))?;
        if !about.is_file() || about.len() > SECRET_BYTES_MAX {
            return Err(missing("it is no file of up to 64 KiB".to_owned()));
        }
        let value = std::fs::read_to_string(path).map_err(|error| missing(error.to_string()))?;
        return Ok(value.trim_end_matches('\n').to_owned().into());
    }
    let own = reference.strip_prefix("cofer://").unwrap_or(reference);
    vault.secret(own).await.map_err(&missing)?.ok_or_else(|| missing(format!("there is no secret {own}")))
}
