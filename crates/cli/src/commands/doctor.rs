//! `cofer doctor`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;
use cofer_server::doctor::{Finding, Verdict, examine};
use cofer_server::settings::{Layer, Settings};

use crate::exit::Failure;
use crate::output::{Format, with_spinner};

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    settings: Layer,
}

impl Doctor {
    /// Fails when anything does; warnings are only said.
    pub async fn run(self, format: Format) -> Result<ExitCode, Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let settings = Settings::decide(self.settings, |name| std::env::var_os(name))
            .map_err(|error| Failure::caused(error.kind(), &error))?;
        let findings = with_spinner("looking around", examine(&settings, variable)).await;
        format.print(&findings, || findings.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn line(finding: &Finding) -> String {
    let (word, colour) = match finding.verdict {
        Verdict::Ok => ("ok  ", "32"),
        Verdict::Warn => ("warn", "33"),
        Verdict::Fail => ("fail", "31"),
    };
    let word = if std::io::stdout().is_terminal() {
        format!("\x1b[{colour}m{word}\x1b[0m")
    } else {
        word.to_owned()
    };
    let advice =
        finding.advice.as_ref().map(|advice| format!("\n       {:<15} -> {advice}", "")).unwrap_or_default();
    format!("{word}   {:<15} {}{advice}", finding.check, finding.message)
}
