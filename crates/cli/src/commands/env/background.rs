//! `cofer env background`.

use clap::{Args, Subcommand};
use cofer_environments::BackgroundReport;
use cofer_model::Moment;
use serde_json::{Value, json};

use super::show::endpoints;
use super::{Place, failure};
use crate::exit::Failure;
use crate::output::{Format, age, harmless_lines, print_line, table, with_spinner};

const COLUMNS: [(&str, &str); 5] =
    [("ID", "id"), ("AGE", "age"), ("STATUS", "status"), ("PORTS", "ports"), ("COMMAND", "command")];

/// Background commands of an environment
#[derive(Debug, Args)]
pub struct Background {
    /// The environment
    #[arg(value_name = "ENVIRONMENT")]
    environment: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List those that were started and not stopped
    #[command(alias = "list")]
    Ls,
    /// Show the end of what one has said
    #[command(alias = "read")]
    Logs {
        id: String,
        /// So many lines
        #[arg(short = 'n', long, default_value_t = 100, value_name = "LINES")]
        tail: usize,
    },
    /// End one with all that it started
    Stop { id: String },
}

impl Background {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let mut environment = place.open(&self.environment).await?;
        match self.action {
            Action::Ls => {
                let reports = environment.background_reports().await.map_err(failure)?;
                let all: Value = reports.iter().map(facts).collect();
                let now = Moment::now();
                let rows: Value = reports.iter().map(|report| row(report, now)).collect();
                place.format.print(&all, || table(&rows, &COLUMNS))
            }
            Action::Logs { id, tail } => {
                let told = environment.background_read(&id, tail).map_err(failure)?;
                match place.format {
                    Format::Json => place.format.print(
                        &json!({"background_id": id, "output": told.text, "truncated": told.truncated}),
                        String::new,
                    ),
                    Format::Text => print_line(&harmless_lines(told.text.trim_end())),
                }
            }
            Action::Stop { id } => {
                let stopping = environment.background_stop(&id);
                let stopped = with_spinner("stopping it", stopping).await.map_err(failure)?;
                let how = stopped.map(|stopped| stopped.ended);
                place.format.print(&json!({"background_id": id, "ended": how}), || format!("{id} stopped"))
            }
        }
    }
}

pub(super) fn facts(report: &BackgroundReport) -> Value {
    let background = &report.background;
    json!({
        "background_id": background.id,
        "command": background.command,
        "container": background.container,
        "started_at": background.started_at,
        "running": report.running,
        "exit_code": report.exit_code,
        "endpoints": endpoints(&background.endpoints),
    })
}

fn row(report: &BackgroundReport, now: Moment) -> Value {
    let background = &report.background;
    let status = match (report.running, report.exit_code) {
        (true, _) => "running".to_owned(),
        (false, Some(code)) => format!("exit {code}"),
        (false, None) => "gone".to_owned(),
    };
    let ports = background.endpoints.iter().map(|endpoint| match &endpoint.host_external {
        Some(here) => format!("{}->{}", here.trim_start_matches("tcp://"), endpoint.port),
        None => endpoint.port.to_string(),
    });
    json!({
        "id": background.id,
        "age": age(now.seconds_since(background.started_at)),
        "status": status,
        "ports": ports.collect::<Vec<_>>().join(", "),
        "command": background.command,
    })
}
