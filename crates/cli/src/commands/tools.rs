//! `cofer tools`: what a project's servers offer.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::external::{note, project_of};
use crate::client::{Client, Target};
use crate::exit::Failure;
use crate::output::{Format, harmless_json, print_line, table};

const COLUMNS: [(&str, &str); 3] = [("NAME", "name"), ("SERVER", "server"), ("DESCRIPTION", "summary")];
const SUMMARY_CHARS_MAX: usize = 80;

/// List the tools of a project
#[derive(Debug, Args)]
pub struct Tools {
    /// Those of this server alone
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Those with all of these words in their name, title or description
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Tools {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.target.client()?;
        let project = project_of(&client, self.project.as_deref()).await?;
        let mut listed = Listed::of(&client, &project).await?;
        let words = words(self.search.as_deref().unwrap_or_default());
        listed.tools.retain(|tool| {
            let tool = Tool::read(tool);
            self.server.as_deref().is_none_or(|server| tool.server == server) && tool.has_all(&words)
        });
        match format {
            Format::Json => {
                print_line(&harmless_json(&serde_json::to_string(&listed).map_err(Failure::internal)?))
            }
            Format::Text => {
                for missing in &listed.missing {
                    let text = |field: &str| missing[field].as_str().unwrap_or_default();
                    note(&format!("missing: the tools of {} ({})", text("server"), text("reason")));
                }
                let rows = listed.tools.iter().map(|tool| Tool::read(tool).row()).collect();
                print_line(&table(&rows, &COLUMNS))
            }
        }
    }
}

/// What a project offers. Tools are carried as they came: of one that has something strange in it, the others know nothing.
#[derive(Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) tools: Vec<Box<RawValue>>,
    #[serde(default)]
    missing: Vec<Value>,
    #[serde(default)]
    warnings: Vec<Value>,
}

impl Listed {
    pub(super) async fn of(client: &Client, project: &str) -> Result<Self, Failure> {
        let listed = client.get_raw(&["projects", project, "tools"], &[]).await?;
        serde_json::from_str(listed.get()).map_err(Failure::internal)
    }
}

/// What a line shows of a tool.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Tool {
    name: String,
    server: String,
    title: Option<String>,
    description: Option<String>,
    enabled: Option<bool>,
    shadowed_by: Option<String>,
}

impl Tool {
    fn read(tool: &RawValue) -> Self {
        serde_json::from_str(tool.get()).unwrap_or_default()
    }

    fn row(&self) -> Value {
        let described = self.description.as_deref().or(self.title.as_deref()).unwrap_or_default();
        let first = described.trim().lines().next().unwrap_or_default().chars().take(SUMMARY_CHARS_MAX);
        let remark = match (self.enabled, &self.shadowed_by) {
            (Some(false), _) => "[off] ".to_owned(),
            (_, Some(by)) => format!("[answered by {by}] "),
            _ => String::new(),
        };
        json!({"name": self.name, "server": self.server, "summary": format!("{remark}{}", first.collect::<String>())})
    }

    fn has_all(&self, words: &[String]) -> bool {
        let optional = [&self.title, &self.description].map(|text| text.as_deref().unwrap_or_default());
        let text = [&self.name, &self.server, optional[0], optional[1]].join("\n").to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

fn words(text: &str) -> Vec<String> {
    text.to_lowercase().split_whitespace().map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(json: &str) -> Tool {
        Tool::read(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn tools_are_found_by_all_words_wherever_they_stand() {
        let tool = tool(
            r#"{"name": "get_time", "server": "clock", "title": null, "description": "Current TIME in a zone", "input_schema": {"n": 1e400}}"#,
        );
        for (search, found) in
            [("", true), ("time", true), ("zone GET", true), ("clock", true), ("time weather", false)]
        {
            assert_eq!(tool.has_all(&words(search)), found, "{search}");
        }
    }

    #[test]
    fn a_row_says_what_is_special_about_a_tool() {
        let shadowed = tool(
            r#"{"name": "t", "server": "a", "description": "First\nsecond", "enabled": true, "shadowed_by": "b"}"#,
        );
        assert_eq!(shadowed.row()["summary"], "[answered by b] First");
        assert_eq!(tool(r#"{"name": "t", "server": "a", "enabled": false}"#).row()["summary"], "[off] ");
    }
}
