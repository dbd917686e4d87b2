//! Access tokens, and the scopes that say what each may do.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Label, Moment, ProjectId, ProjectName, TokenId};

/// One thing that a token may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
pub enum Scope {
    /// Read hosting, registry, projects, tokens, names of secrets.
    #[serde(rename = "admin:read")]
    AdminRead,
    /// Change them, and call hosted servers directly.
    #[serde(rename = "admin:write")]
    AdminWrite,
    /// Call tools, by REST or by the MCP endpoint.
    #[serde(rename = "tools:call")]
    ToolsCall,
    /// Run agents.
    #[serde(rename = "agents:run")]
    AgentsRun,
    /// Make, use and destroy coding environments.
    #[serde(rename = "environments:write")]
    EnvironmentsWrite,
}

impl Scope {
    pub const ALL: [Self; 5] =
        [Self::AdminRead, Self::AdminWrite, Self::ToolsCall, Self::AgentsRun, Self::EnvironmentsWrite];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AdminRead => "admin:read",
            Self::AdminWrite => "admin:write",
            Self::ToolsCall => "tools:call",
            Self::AgentsRun => "agents:run",
            Self::EnvironmentsWrite => "environments:write",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a token may do, without order or repetition.
pub type Scopes = BTreeSet<Scope>;

/// A token as it may be shown: everything but the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Token {
    pub id: TokenId,
    pub name: Label,
    #[schema(value_type = Vec<Scope>)]
    pub scopes: Scopes,
    /// The only project that it can see; none means all of them.
    pub project_id: Option<ProjectId>,
    /// That project's name.
    pub project: Option<ProjectName>,
    pub created_at: Moment,
    pub expires_at: Option<Moment>,
    pub last_used_at: Option<Moment>,
}

impl Token {
    pub fn is_expired(&self, now: Moment) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// Whether it may do everything everywhere: somebody always must, for nobody can give away what they lack.
    pub fn is_admin(&self) -> bool {
        self.project_id.is_none() && Scope::ALL.iter().all(|scope| self.scopes.contains(scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_reads_the_same_in_text_and_in_json() {
        for scope in Scope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
        }
    }
}
