//! What may be set for environments, and what holds when it is not.

use std::path::PathBuf;
use std::time::Duration;

use cofer_model::ProviderName;

use crate::error::{EnvError, Result};
use crate::register::Register;

pub const DEFAULT_IMAGE: &str = "docker.io/library/ubuntu:24.04";

#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a command may run.
    pub timeout_run: Duration,
    /// How long one git process may run.
    pub timeout_git: Duration,
    /// How long a container may take to start, without its image's pull.
    pub timeout_start: Duration,
    /// How many environments of one repository may run at once.
    pub max_environments: usize,
    pub image: String,
    /// Else Podman, else Docker.
    pub provider: Option<ProviderName>,
    /// Where sources may be; anywhere if nobody said.
    pub sources: Option<Vec<PathBuf>>,
    /// Where repositories that are used are noted for a running Cofer, and where it reads of them; nowhere if nobody said.
    pub register: Option<Register>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout_run: Duration::from_mins(10),
            timeout_git: Duration::from_secs(30),
            timeout_start: Duration::from_secs(30),
            max_environments: 4,
            image: DEFAULT_IMAGE.to_owned(),
            provider: None,
            sources: None,
            register: None,
        }
    }
}

impl Settings {
    /// As variables say. `COHERRA_…` is what they were called first.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let mut settings = Self::default();
        for (part, timeout) in [
            ("TIMEOUT_RUN", &mut settings.timeout_run),
            ("TIMEOUT_GIT", &mut settings.timeout_git),
            ("TIMEOUT_STARTUP", &mut settings.timeout_start),
        ] {
            let names = [format!("COFER_{part}"), format!("COHERRA_{part}")];
            if let Some((name, text)) = names.iter().find_map(|name| Some((name, variable(name)?))) {
                *timeout = Duration::from_millis(number(name, &text)?);
            }
        }
        if let Some(text) = variable("COFER_MAX_ENVIRONMENTS") {
            let max = number("COFER_MAX_ENVIRONMENTS", &text)?;
            settings.max_environments = usize::try_from(max).unwrap_or(usize::MAX);
        }
        if let Some(image) = variable("COFER_ENVIRONMENT_IMAGE") {
            settings.image = image;
        }
        if let Some(name) = variable("COFER_ENVIRONMENT_PROVIDER") {
            let provider = name.parse::<ProviderName>().map_err(|error| {
                let message = format!("COFER_ENVIRONMENT_PROVIDER: {error}");
                EnvError::invalid("settings", message, "set it to `podman` or `docker`, or leave it out")
            })?;
            settings.provider = Some(provider);
        }
        Ok(settings)
    }
}

fn number(name: &str, text: &str) -> Result<u64> {
    let wrong = || {
        let message = format!("{name} is `{}`", text.escape_debug());
        EnvError::invalid("settings", message, "set it to a whole number above 0, or leave it out")
    };
    text.trim().parse().ok().filter(|number| *number > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_either_name_are_taken_and_nonsense_is_named() {
        let of = |pairs: &'static [(&str, &str)]| {
            Settings::from_variables(&move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("COHERRA_TIMEOUT_RUN", "250")]).unwrap().timeout_run, Duration::from_millis(250));
        let both = of(&[("COHERRA_TIMEOUT_RUN", "1"), ("COFER_TIMEOUT_RUN", "2")]).unwrap();
        assert_eq!(both.timeout_run, Duration::from_millis(2));
        assert_eq!(of(&[("COFER_MAX_ENVIRONMENTS", "10")]).unwrap().max_environments, 10);
        assert!(of(&[("COFER_TIMEOUT_GIT", "soon")]).unwrap_err().message.contains("COFER_TIMEOUT_GIT"));
        assert!(of(&[("COFER_MAX_ENVIRONMENTS", "0")]).is_err());
    }
}
