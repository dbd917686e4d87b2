//! `cofer tools`: what a project's servers offer.

use clap::Args;
use serde_json::{Value, json};

use super::external::{note, project_of};
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, table};

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
        let mut listed = client.get(&["projects", &project, "tools"]).await?;
        let words = words(self.search.as_deref().unwrap_or_default());
        let tools: Vec<_> = listed["tools"].as_array().cloned().unwrap_or_default();
        let is_asked_for = |tool: &Value| {
            self.server.as_deref().is_none_or(|server| tool["server"] == server) && has_all(tool, &words)
        };
        listed["tools"] = tools.into_iter().filter(is_asked_for).collect();
        if format == Format::Text {
            for missing in listed["missing"].as_array().into_iter().flatten() {
                let text = |field: &str| missing[field].as_str().unwrap_or_default();
                note(&format!("missing: the tools of {} ({})", text("server"), text("reason")));
            }
        }
        format.print(&listed, || {
            table(&listed["tools"].as_array().into_iter().flatten().map(row).collect(), &COLUMNS)
        })
    }
}

fn row(tool: &Value) -> Value {
    let described = tool["description"].as_str().or_else(|| tool["title"].as_str()).unwrap_or_default();
    let first: String =
        described.trim().lines().next().unwrap_or_default().chars().take(SUMMARY_CHARS_MAX).collect();
    let remark = match (&tool["enabled"], tool["shadowed_by"].as_str()) {
        (Value::Bool(false), _) => "[off] ".to_owned(),
        (_, Some(by)) => format!("[answered by {by}] "),
        _ => String::new(),
    };
    json!({"name": tool["name"], "server": tool["server"], "summary": format!("{remark}{first}")})
}

fn words(text: &str) -> Vec<String> {
    text.to_lowercase().split_whitespace().map(ToOwned::to_owned).collect()
}

fn has_all(tool: &Value, words: &[String]) -> bool {
    let fields =
        ["name", "title", "description", "server"].map(|field| tool[field].as_str().unwrap_or_default());
    let text = fields.join("\n").to_lowercase();
    words.iter().all(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_all_words_wherever_they_stand() {
        let tool = json!({"name": "get_time", "server": "clock", "title": null, "description": "Current TIME in a zone"});
        for (search, found) in
            [("", true), ("time", true), ("zone GET", true), ("clock", true), ("time weather", false)]
        {
            assert_eq!(has_all(&tool, &words(search)), found, "{search}");
        }
    }

    #[test]
    fn a_row_says_what_is_special_about_a_tool() {
        let tool = json!({"name": "t", "server": "a", "description": "First\nsecond", "enabled": true, "shadowed_by": "b"});
        assert_eq!(row(&tool)["summary"], "[answered by b] First");
        assert_eq!(row(&json!({"name": "t", "enabled": false}))["summary"], "[off] ");
    }
}
