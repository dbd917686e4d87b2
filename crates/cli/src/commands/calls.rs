//! `cofer calls`: what was called, newest first.

use std::time::SystemTime;

use clap::Args;
use cofer_model::{Kind, Moment};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::external::project_of;
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, harmless_json, print_line, table};

const COLUMNS: [(&str, &str); 6] = [
    ("AT", "created_at"),
    ("TOOL", "tool_name"),
    ("SERVER", "server"),
    ("STATUS", "status"),
    ("MS", "duration_ms"),
    ("CALLER", "caller"),
];

/// Show what tools were called
#[derive(Debug, Args)]
pub struct Calls {
    /// Of this tool alone
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Of this server alone
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// completed, error, timeout or cancelled
    #[arg(long)]
    status: Option<String>,
    /// Of this agent's run alone
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// From then on: a moment, or how long ago, such as 15m
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Before then
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// So many of the newest
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Calls {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.target.client()?;
        let project = project_of(&client, self.project.as_deref()).await?;
        let limit = self.limit.to_string();
        let since = self.since.as_deref().map(moment).transpose()?;
        let until = self.until.as_deref().map(moment).transpose()?;
        let filters = [
            ("tool", self.tool.as_deref()),
            ("server", self.server.as_deref()),
            ("status", self.status.as_deref()),
            ("run_id", self.run.as_deref()),
            ("since", since.as_deref()),
            ("until", until.as_deref()),
            ("limit", Some(&limit)),
        ];
        let query: Vec<_> = filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let calls = client.get_raw(&["projects", &project, "tool-calls"], &query).await?;
        match format {
            Format::Json => print_line(&harmless_json(calls.get())),
            Format::Text => {
                let rows: Vec<Row> = serde_json::from_str(calls.get()).map_err(Failure::internal)?;
                print_line(&table(&json!(rows), &COLUMNS))
            }
        }
    }
}

/// What a line shows of a call. What was sent and answered is passed over unread.
#[derive(Serialize, Deserialize)]
struct Row {
    created_at: String,
    tool_name: String,
    server: String,
    status: String,
    duration_ms: Option<i64>,
    caller: Option<String>,
}

/// A moment as it is written, or so long before now.
fn moment(text: &str) -> Result<String, Failure> {
    if let Ok(moment) = Moment::parse(text) {
        return Ok(moment.to_string());
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago));
    let since_1970 = ago.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let ms = since_1970.and_then(|since| i64::try_from(since.as_millis()).ok());
    let refused = || {
        let message =
            format!("`{text}` is no moment; write 2026-11-16T03:00:00Z, or 15m for a quarter of an hour ago");
        Failure::new(Kind::Invalid, message)
    };
    ms.map(|ms| Moment::from_unix_ms(ms).to_string()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_or_counted_back() {
        assert_eq!(moment("2026-11-16T05:00:00+02:00").unwrap(), "2026-11-16T03:00:00.000Z");
        assert!(moment("15m").unwrap() < Moment::now().to_string());
        for bad in ["", "yesterday", "-5m", "99999999999y"] {
            assert_eq!(moment(bad).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
    }
}
