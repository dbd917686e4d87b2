//! `cofer project`.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{object, remove_each};
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, table};

const COLUMNS: [(&str, &str); 5] = [
    ("NAME", "name"),
    ("ID", "id"),
    ("NAMESPACING", "namespacing"),
    ("CREATED", "created_at"),
    ("DESCRIPTION", "description"),
];

#[derive(Debug, Args)]
pub struct Project {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a project
    Create {
        name: String,
        #[arg(long, default_value = "")]
        description: String,
        #[arg(long)]
        namespacing: Option<Namespacing>,
        /// Whether calls of read-only and idempotent tools are made once more when their server ends in the middle
        #[arg(long, value_name = "true|false")]
        repeat_safe_calls: Option<bool>,
    },
    /// List projects
    #[command(alias = "list")]
    Ls,
    /// Show one project
    Show {
        /// Name or id
        project: String,
    },
    /// Change a project
    Update {
        /// Name or id
        project: String,
        #[arg(long)]
        name: Option<String>,
        #[arg(long)]
        description: Option<String>,
        #[arg(long)]
        namespacing: Option<Namespacing>,
        /// Whether calls of read-only and idempotent tools are made once more when their server ends in the middle
        #[arg(long, value_name = "true|false")]
        repeat_safe_calls: Option<bool>,
    },
    /// Remove projects with all that they own
    Rm {
        /// Names or ids
        #[arg(required = true)]
        projects: Vec<String>,
    },
}

/// When tool names are prefixed with their server's.
#[derive(Clone, Copy, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Namespacing {
    Off,
    Conflict,
    Always,
}

impl Project {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.server.client()?;
        match self.action {
            Action::Create { name, description, namespacing, repeat_safe_calls } => {
                let body = object([
                    ("name", json!(name)),
                    ("description", json!(description)),
                    ("namespacing", json!(namespacing)),
                    ("repeat_safe_calls", json!(repeat_safe_calls)),
                ]);
                let made = client.post(&["projects"], &body).await?;
                format.print(&made, || format!("project {name} created"))
            }
            Action::Ls => {
                let projects = client.get(&["projects"]).await?;
                format.print(&projects, || table(&projects, &COLUMNS))
            }
            Action::Show { project } => {
                let found = client.get(&["projects", &project]).await?;
                format.print(&found, || table(&json!([found]), &COLUMNS))
            }
            Action::Update { project, name, description, namespacing, repeat_safe_calls } => {
                let body = object([
                    ("name", json!(name)),
                    ("description", json!(description)),
                    ("namespacing", json!(namespacing)),
                    ("repeat_safe_calls", json!(repeat_safe_calls)),
                ]);
                let changed = client.patch(&["projects", &project], &body).await?;
                format.print(&changed, || format!("project {project} changed"))
            }
            Action::Rm { projects } => {
                let remove = async |project: &str| client.delete(&["projects", project]).await;
                remove_each(&projects, remove, format, |project| format!("project {project} removed")).await
            }
        }
    }
}
