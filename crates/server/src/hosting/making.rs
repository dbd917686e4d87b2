//! Making a server what somebody says, whatever it was before: the difference is found first, and where there is none nothing is done.
//!
//! Only here is everything known that has to be compared: reads do not show what is in a server's environment.

use std::sync::Arc;

use cofer_model::{HostedConfig, Project, Reference, ServerName};
use serde::Serialize;
use serde_json::{Value, json};

use super::fleet::Entry;
use super::{Hosting, ServerStatus};
use crate::http::ApiError;

/// What has to be done so that a server is as it was said to be.
#[derive(Debug)]
pub(crate) enum Making {
    Add { project: Project, name: ServerName, config: HostedConfig },
    Change { entry: Arc<Entry>, config: HostedConfig, fields: Vec<String> },
    Nothing { entry: Arc<Entry> },
}

/// What was done, or would be.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Outcome {
    pub action: Action,
    /// What was another, by name.
    pub fields: Vec<String>,
    /// The server; `null` where it is not there yet.
    pub server: Option<ServerStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Add,
    Change,
    None,
}

impl Making {
    pub(crate) fn find(hosting: &Hosting, project: Project, name: ServerName, config: HostedConfig) -> Self {
        let Some(entry) = hosting.find(Some(project.id), &Reference::Name(name.to_string())) else {
            return Self::Add { project, name, config };
        };
        let fields = differing(&entry.planner.blueprint().config, &config);
        if fields.is_empty() { Self::Nothing { entry } } else { Self::Change { entry, config, fields } }
    }

    /// The server as it is before anything is done.
    pub(crate) fn entry(&self) -> Option<Arc<Entry>> {
        match self {
            Self::Add { .. } => None,
            Self::Change { entry, .. } | Self::Nothing { entry } => Some(entry.clone()),
        }
    }

    pub(crate) fn told(&self) -> (Action, Vec<String>) {
        match self {
            Self::Add { .. } => (Action::Add, Vec::new()),
            Self::Change { fields, .. } => (Action::Change, fields.clone()),
            Self::Nothing { .. } => (Action::None, Vec::new()),
        }
    }

    pub(crate) async fn make(self, hosting: &Arc<Hosting>) -> Result<Arc<Entry>, ApiError> {
        match self {
            Self::Add { project, name, config } => hosting.register(&project, name, config).await,
            Self::Change { entry, config, .. } => {
                let places_anew = config.provider != entry.planner.blueprint().config.provider;
                hosting.reconfigure(&entry, config, places_anew).await?;
                Ok(entry)
            }
            Self::Nothing { entry } => Ok(entry),
        }
    }
}

/// The fields in which they differ, as they are called in a registration.
fn differing(old: &HostedConfig, new: &HostedConfig) -> Vec<String> {
    let (old, new) = (json!(old), json!(new));
    let Value::Object(fields) = new else { return Vec::new() };
    fields.into_iter().filter(|(name, value)| old[name] != *value).map(|(name, _)| name).collect()
}
