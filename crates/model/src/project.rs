//! The project: the tenant that owns servers, secrets, tokens, tools and runs.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Moment, ProjectId, ProjectName};

/// The project that always exists. It can be neither renamed nor deleted.
pub const DEFAULT_PROJECT: &str = "default";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Project {
    pub id: ProjectId,
    pub name: ProjectName,
    pub description: String,
    pub namespacing: Namespacing,
    /// Whether a call of a tool that says it is read-only or idempotent is made once more when its server ends in the middle.
    pub repeat_safe_calls: bool,
    pub created_at: Moment,
    pub updated_at: Moment,
}

impl Project {
    pub fn is_default(&self) -> bool {
        self.name.as_str() == DEFAULT_PROJECT
    }
}

/// When a tool's name is prefixed with its server's: `server__tool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Namespacing {
    /// Never: of two tools of one name, the later server's answers.
    #[default]
    Off,
    /// Only where two servers offer the same name.
    Conflict,
    /// Always.
    Always,
}

impl Namespacing {
    pub const ALL: [Self; 3] = [Self::Off, Self::Conflict, Self::Always];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Conflict => "conflict",
            Self::Always => "always",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a namespacing; it is one of off, conflict, always")]
pub struct UnknownNamespacing(String);

impl FromStr for Namespacing {
    type Err = UnknownNamespacing;

    fn from_str(text: &str) -> Result<Self, UnknownNamespacing> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownNamespacing(text.to_owned()))
    }
}
