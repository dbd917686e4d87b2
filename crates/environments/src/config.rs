//! What an environment is made of: its image, what is run in it first, its variables, secrets, caches and services.
//!
//! Read from the first of these that is there: `.cofer/environment.json` (of the commit, else of the source's folder),
//! `.container-use/environment.json`, and of a dev container what has a meaning here. Nothing is run that the file does not say.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{EnvError, Result};
use crate::files::WORKDIR;
use crate::git::Source;

pub(crate) const OWN: &str = ".cofer/environment.json";
const CONTAINER_USE: &str = ".container-use/environment.json";
const DEV_CONTAINERS: [&str; 2] = [".devcontainer/devcontainer.json", ".devcontainer.json"];
const FILE_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvironmentConfig {
    pub workdir: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_image: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup_commands: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub install_commands: Vec<String>,
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// `NAME=env://…`, `NAME=file://…` or `NAME=cofer://…`: where the value is, never the value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Folders that all environments of the repository share: `/path`, or `name:/path`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceConfig>,
}

impl Default for EnvironmentConfig {
    fn default() -> Self {
        Self {
            workdir: WORKDIR.to_owned(),
            base_image: String::new(),
            setup_commands: Vec::new(),
            install_commands: Vec::new(),
            env: Vec::new(),
            secrets: Vec::new(),
            caches: Vec::new(),
            services: Vec::new(),
        }
    }
}

/// Something that runs beside an environment and is reached by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceConfig {
    pub name: String,
    pub image: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

impl EnvironmentConfig {
    /// As the repository says at this commit, with warnings for what has no meaning here.
    pub async fn read(source: &Source, commit: &str) -> Result<(Self, Vec<String>)> {
        let paths: Vec<&str> = [OWN, CONTAINER_USE].into_iter().chain(DEV_CONTAINERS).collect();
        let committed = committed(source, commit, &paths).await?;
        let mut found: HashMap<&str, Option<Vec<u8>>> = paths.into_iter().zip(committed).collect();
        let mut take = |path: &str| found.remove(path).flatten();
        for path in [OWN, CONTAINER_USE] {
            let (committed, here) = (take(path), beside(source, path));
            if let Some(bytes) = committed.as_ref().or(here.as_ref()) {
                let mut config = Self::parse(path, bytes)?;
                let warnings = config.keep_secrets_named_by(path, here.as_deref());
                return Ok((config, warnings));
            }
        }
        for path in DEV_CONTAINERS {
            if let Some(bytes) = take(path) {
                return Self::from_dev_container(path, &bytes);
            }
        }
        Ok((Self::default(), Vec::new()))
    }

    pub(crate) fn parse(path: &str, bytes: &[u8]) -> Result<Self> {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let config: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| wrong(path, &error))?;
        config.check()?;
        Ok(config)
    }

    /// A commit may be an agent's. Which secrets it gets, only the user says, by the file in the working tree.
    fn keep_secrets_named_by(&mut self, path: &str, here: Option<&[u8]>) -> Vec<String> {
        let named = here.and_then(|bytes| Self::parse(path, bytes).ok()).map(|config| config.secrets);
        let named = named.unwrap_or_default();
        let (kept, left_out): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.secrets).into_iter().partition(|entry| named.contains(entry));
        self.secrets = kept;
        let warning = |entry: &String| {
            let name = entry.split('=').next().unwrap_or_default();
            format!("secret `{name}` is named by {path} of the commit and not by the one in your working tree, and is left out")
        };
        left_out.iter().map(warning).collect()
    }

    /// What nobody could run is told now.
    pub fn check(&self) -> Result<()> {
        if self.workdir != WORKDIR {
            let message = format!("`workdir` is `{}`", self.workdir);
            return Err(EnvError::invalid("config", message, format!("the worktree is mounted at {WORKDIR}; leave `workdir` out")));
        }
        for entry in &self.env {
            variable(entry, "env")?;
        }
        for entry in &self.secrets {
            let (name, reference) = variable(entry, "secrets")?;
            crate::secrets::check(name, reference)?;
        }
        for cache in &self.caches {
            cache_of(cache)?;
        }
        let mut names = Vec::new();
        for service in &self.services {
            service.check()?;
            if names.contains(&&service.name) {
                let message = format!("there are two services `{}`", service.name);
                return Err(EnvError::invalid("config", message, "give each a name of its own"));
            }
            names.push(&service.name);
        }
        Ok(())
    }

    fn from_dev_container(path: &str, bytes: &[u8]) -> Result<(Self, Vec<String>)> {
        let text = without_comments(&String::from_utf8_lossy(bytes));
        let file: Value = serde_json::from_str(&text).map_err(|error| wrong(path, &error))?;
        let mut config = Self::default();
        let mut warnings = Vec::new();
        for (key, value) in file.as_object().into_iter().flatten() {
            match key.as_str() {
                "image" => config.base_image = value.as_str().unwrap_or_default().to_owned(),
                "containerEnv" => {
                    let pairs = value.as_object().into_iter().flatten();
                    config.env = pairs.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))).collect();
                }
                "postCreateCommand" | "onCreateCommand" => config.install_commands.extend(commands(value)),
                "mounts" => {
                    let (caches, others) = volumes(value);
                    config.caches = caches;
                    warnings.extend(others);
                }
                "name" | "$schema" | "customizations" => {}
                other => warnings.push(format!("`{other}` of {path} has no meaning here")),
            }
        }
        config.check()?;
        Ok((config, warnings))
    }
}

impl ServiceConfig {
    pub fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name = (1..=63).contains(&self.name.len()) && self.name.chars().all(plain) && !self.name.starts_with('-');
        if !is_name {
            let message = format!("`{}` is no name of a service", self.name.escape_debug());
            return Err(EnvError::invalid("config", message, "a name has small letters, digits and hyphens"));
        }
        if self.image.trim().is_empty() {
            let message = format!("service `{}` has no image", self.name);
            return Err(EnvError::invalid("config", message, "name an image that is there or can be pulled"));
        }
        self.env.iter().try_for_each(|entry| variable(entry, "env").map(drop))
    }
}

/// `NAME=value`, in two.
pub fn variable<'a>(entry: &'a str, field: &str) -> Result<(&'a str, &'a str)> {
    let is_name = |name: &str| {
        !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match entry.split_once('=') {
        Some((name, value)) if is_name(name) && !value.contains('\0') => Ok((name, value)),
        _ => {
            // What stands there may be a secret that lost its name.
            let name: String = entry.chars().take_while(|c| *c != '=').take(24).collect();
            let message = format!("`{field}` has an entry `{}…` that is not NAME=value", name.escape_debug());
            Err(EnvError::invalid("config", message, "write each as NAME=value"))
        }
    }
}

/// The name of a cache, and where it is mounted.
pub fn cache_of(cache: &str) -> Result<(&str, &str)> {
    let (name, path) = cache.split_once(':').unwrap_or((cache, cache));
    if path.starts_with('/') && path.len() > 1 && !path.contains("..") && !path.starts_with(WORKDIR) {
        return Ok((name, path));
    }
    let message = format!("`caches` has `{}`", cache.escape_debug());
    Err(EnvError::invalid("config", message, format!("a cache is an absolute path outside of {WORKDIR}, or name:/path")))
}

fn wrong(path: &str, error: &dyn std::fmt::Display) -> EnvError {
    EnvError::invalid("config", format!("{path} is wrong: {error}"), format!("mend {path}"))
}

/// A file of the source's own folder, committed or not.
fn beside(source: &Source, path: &str) -> Option<Vec<u8>> {
    let about = std::fs::metadata(source.top.join(path)).ok()?;
    (about.is_file() && about.len() <= FILE_BYTES_MAX as u64).then(|| std::fs::read(source.top.join(path)).ok())?
}

/// These files of a commit, all asked for at once.
async fn committed(source: &Source, commit: &str, paths: &[&str]) -> Result<Vec<Option<Vec<u8>>>> {
    let asked: String = paths.iter().map(|path| format!("{commit}:{path}\n")).collect();
    let answer = source.git().feed("config", ["cat-file", "--batch"], asked.as_bytes()).await?;
    let mut rest = answer.as_slice();
    let mut found = Vec::new();
    for _ in paths {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = rest.get(end + 1..).unwrap_or_default();
        let mut words = head.rsplit(' ');
        let size = words.next().and_then(|size| size.parse::<usize>().ok());
        match (size, words.next()) {
            (Some(size), Some(kind)) if size <= rest.len() => {
                found.push((kind == "blob" && size <= FILE_BYTES_MAX).then(|| rest[..size].to_vec()));
                rest = rest.get(size + 1..).unwrap_or_default();
            }
            _ => found.push(None),
        }
    }
    Ok(found)
}

/// A dev container's command is a text, a list of words, or several by name.
fn commands(value: &Value) -> Vec<String> {
    match value {
        Value::String(command) => vec![command.clone()],
        Value::Array(words) => {
            let quoted = words.iter().filter_map(Value::as_str).map(|word| format!("'{}'", word.replace('\'', r"'\''")));
            vec![quoted.collect::<Vec<_>>().join(" ")]
        }
        Value::Object(all) => all.values().flat_map(commands).collect(),
        _ => Vec::new(),
    }
}

/// Mounts of type volume are caches; the others are told.
fn volumes(value: &Value) -> (Vec<String>, Vec<String>) {
    let (mut caches, mut others) = (Vec::new(), Vec::new());
    for mount in value.as_array().into_iter().flatten() {
        let part = |key: &str| match mount {
            Value::String(text) => {
                text.split(',').filter_map(|part| part.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
            }
            _ => mount.get(key).and_then(Value::as_str).map(ToOwned::to_owned),
        };
        match (part("type").as_deref(), part("source"), part("target")) {
            (Some("volume"), Some(name), Some(path)) => caches.push(format!("{name}:{path}")),
            (Some("volume"), None, Some(path)) => caches.push(path),
            _ => others.push(format!("the mount {mount} is no volume and is left out")),
        }
    }
    (caches, others)
}

/// Dev containers' files may have comments, and commas before closing brackets.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut in_text = false;
    while let Some(c) = chars.next() {
        match (in_text, c, chars.peek()) {
            (true, '\\', Some(_)) => {
                clean.push(c);
                clean.extend(chars.next());
            }
            (_, '"', _) => {
                in_text = !in_text;
                clean.push(c);
            }
            (false, '/', Some('/')) => while chars.next_if(|c| *c != '\n').is_some() {},
            (false, '/', Some('*')) => {
                let mut last = ' ';
                for c in chars.by_ref().skip(1) {
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
            }
            (false, '}' | ']', _) => {
                let kept = clean.trim_end().trim_end_matches(',').len();
                clean.truncate(kept);
                clean.push(c);
            }
            _ => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_container_use_is_read_as_it_is() {
        let file = br#"{"workdir":"/workdir","base_image":"python:3.11","setup_commands":["apt-get update"],
            "install_commands":["pip install -r requirements.txt"],"env":["A=b=c"],"secrets":["TOKEN=env://TOKEN"],
            "services":[{"name":"db","image":"postgres","command":"","exposed_ports":[5432],"env":["P=x"]}]}"#;
        let config = EnvironmentConfig::parse(CONTAINER_USE, file).unwrap();
        assert_eq!(config.base_image, "python:3.11");
        assert_eq!(config.services[0].exposed_ports, [5432]);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_value_is_told() {
        for (file, part) in [
            (r#"{"setup_commands":"x"}"#, "setup_commands"),
            (r#"{"env":["hunter2"]}"#, "not NAME=value"),
            (r#"{"workdir":"/src"}"#, "/src"),
            (r#"{"services":[{"name":"A b","image":"x"}]}"#, "A b"),
            (r#"{"secrets":["T=plain"]}"#, "T"),
            (r#"{"caches":["../x"]}"#, "../x"),
            ("{", "EOF"),
        ] {
            let error = EnvironmentConfig::parse(OWN, file.as_bytes()).unwrap_err();
            assert!(error.message.contains(part), "{file}: {error}");
        }
    }

    #[test]
    fn of_a_dev_container_what_has_a_meaning_here_is_taken_and_the_rest_is_told() {
        let file = br#"{
            // the image
            "image": "debian:12", /* and
            more */ "containerEnv": {"URL": "http://x//y"},
            "postCreateCommand": ["npm", "it's"],
            "mounts": ["source=cache,target=/cache,type=volume", {"type": "bind", "source": "/", "target": "/host"}],
            "forwardPorts": [3000],
        }"#;
        let (config, warnings) = EnvironmentConfig::from_dev_container("devcontainer.json", file).unwrap();
        assert_eq!(config.base_image, "debian:12");
        assert_eq!(config.env, ["URL=http://x//y"]);
        assert_eq!(config.install_commands, [r"'npm' 'it'\''s'"]);
        assert_eq!(config.caches, ["cache:/cache"]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
