//! `cofer env config`: `.cofer/environment.json` by hand.

use clap::{Args, Subcommand};
use cofer_environments::{ConfigFile, EnvironmentConfig};
use cofer_model::Kind;
use serde_json::{Value, json};

use super::{Place, failure, warn};
use crate::exit::Failure;
use crate::output::{Format, fields, print_line};

#[derive(Debug, Args)]
pub struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what new environments are made of
    Show,
    /// Take over what an environment is made of
    Import {
        /// The environment
        #[arg(value_name = "ENVIRONMENT")]
        id: String,
    },
    /// The image
    #[command(subcommand)]
    BaseImage(BaseImage),
    /// Commands that are run first
    #[command(subcommand)]
    SetupCommand(Lines),
    /// Commands that are run after those
    #[command(subcommand)]
    InstallCommand(Lines),
    /// Folders that all environments of the repository share: `/path`, or `name:/path`
    #[command(subcommand)]
    Cache(Lines),
    /// Variables
    #[command(subcommand)]
    Env(Variables),
    /// Secrets, named by where they are: `env://VARIABLE`, `file:///path`
    #[command(subcommand)]
    Secret(Variables),
}

#[derive(Debug, Subcommand)]
enum BaseImage {
    Set {
        image: String,
    },
    Get,
    /// Back to the default
    Reset,
}

#[derive(Debug, Subcommand)]
enum Lines {
    Add {
        text: String,
    },
    Remove {
        text: String,
    },
    #[command(alias = "ls")]
    List,
    /// Remove all
    Clear,
}

#[derive(Debug, Subcommand)]
enum Variables {
    Set {
        name: String,
        value: String,
    },
    Unset {
        name: String,
    },
    #[command(alias = "ls")]
    List,
    /// Remove all
    Clear,
}

impl Config {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let mut file = place.environments.config_file(&place.path).await.map_err(failure)?;
        let config = &mut file.config;
        let told = match self.action {
            Action::Show => {
                warn(&file.warnings);
                let told = json!(file.config);
                return place.format.print(&told, || fields(&told));
            }
            Action::Import { id } => {
                *config = place.open(&id).await?.state.config.clone();
                None
            }
            Action::BaseImage(action) => base_image(config, action, &place.environments.settings().image),
            Action::SetupCommand(action) => lines(&mut config.setup_commands, action)?,
            Action::InstallCommand(action) => lines(&mut config.install_commands, action)?,
            Action::Cache(action) => lines(&mut config.caches, action)?,
            Action::Env(action) => variables(&mut config.env, action)?,
            Action::Secret(action) => variables(&mut config.secrets, action)?,
        };
        match told {
            Some(told) => show(place, &told),
            None => save(place, &file),
        }
    }
}

fn save(place: &Place, file: &ConfigFile) -> Result<(), Failure> {
    file.save().map_err(failure)?;
    warn(&file.warnings);
    let path = file.path.display().to_string();
    place.format.print(&json!({"path": path, "config": file.config}), || {
        format!("{path} written; it holds for environments made from now on")
    })
}

/// A list or a single value, as it is: others may want to read it.
fn show(place: &Place, told: &Value) -> Result<(), Failure> {
    if place.format == Format::Json {
        return place.format.print(told, String::new);
    }
    match told {
        Value::Array(items) => items.iter().filter_map(Value::as_str).try_for_each(print_line),
        told => print_line(told.as_str().unwrap_or_default()),
    }
}

/// What was asked, or nothing if something was changed.
fn base_image(config: &mut EnvironmentConfig, action: BaseImage, default: &str) -> Option<Value> {
    match action {
        BaseImage::Set { image } => config.base_image = image,
        BaseImage::Reset => config.base_image.clear(),
        BaseImage::Get if config.base_image.is_empty() => return Some(json!(default)),
        BaseImage::Get => return Some(json!(config.base_image)),
    }
    None
}

fn lines(all: &mut Vec<String>, action: Lines) -> Result<Option<Value>, Failure> {
    match action {
        Lines::Add { text } => all.push(text),
        Lines::Remove { text } => {
            let before = all.len();
            all.retain(|one| *one != text);
            found(before != all.len(), &text)?;
        }
        Lines::Clear => all.clear(),
        Lines::List => return Ok(Some(json!(all))),
    }
    Ok(None)
}

fn variables(all: &mut Vec<String>, action: Variables) -> Result<Option<Value>, Failure> {
    let is = |entry: &str, name: &str| entry.split_once('=').is_some_and(|(other, _)| other == name);
    match action {
        Variables::Set { name, value } => {
            all.retain(|entry| !is(entry, &name));
            all.push(format!("{name}={value}"));
        }
        Variables::Unset { name } => {
            let before = all.len();
            all.retain(|entry| !is(entry, &name));
            found(before != all.len(), &name)?;
        }
        Variables::Clear => all.clear(),
        Variables::List => return Ok(Some(json!(all))),
    }
    Ok(None)
}

fn found(is_found: bool, what: &str) -> Result<(), Failure> {
    if is_found {
        return Ok(());
    }
    Err(Failure::new(Kind::NotFound, format!("`{what}` is not there\n`list` shows what is")))
}
