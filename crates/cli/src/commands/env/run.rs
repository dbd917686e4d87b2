//! `cofer env run`: a command in an environment, heard as it speaks, and ended with all that it started when the person leaves.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use cofer_environments::{Listener, Ran, RunRequest, Silent, Stream};
use cofer_model::Kind;
use serde_json::json;
use tokio::sync::Notify;

use super::show::endpoints;
use super::{Place, failure, warn};
use crate::exit::Failure;
use crate::output::{Format, with_spinner};
use crate::signals::{INTERRUPTED, interrupted, told_to_end, unless_told_to_end};

/// Added to the number of a signal, as shells do.
const ENDED_BY_SIGNAL: i32 = 128;
const LEAVE_MAX: Duration = Duration::from_secs(3);

/// Run a command in an environment, and commit what it changes
#[derive(Debug, Args)]
pub struct Run {
    /// The environment
    #[arg(value_name = "ENVIRONMENT")]
    id: String,
    /// sh, bash, zsh or ash [default: sh]
    #[arg(long)]
    shell: Option<String>,
    /// Run it by the image's own entrypoint
    #[arg(long)]
    use_entrypoint: bool,
    /// Leave it running, in a container of its own with the same files
    #[arg(long)]
    background: bool,
    /// A port that it listens on; may be repeated
    #[arg(long, value_name = "PORT", requires = "background")]
    port: Vec<u16>,
    /// The message of the commit
    #[arg(short, long)]
    message: Option<String>,
    /// One word is a text for the shell, such as 'make && ./run'; several are run as they are
    #[arg(trailing_var_arg = true, required_unless_present = "use_entrypoint", value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run {
    pub async fn run(self, place: &Place) -> Result<ExitCode, Failure> {
        let request = RunRequest {
            command: script(&self.command),
            shell: self.shell.clone(),
            use_entrypoint: self.use_entrypoint,
            explanation: self.message.clone().unwrap_or_default(),
        };
        if self.background {
            self.leave_running(place, &request).await
        } else {
            self.to_its_end(place, &request).await
        }
    }

    async fn to_its_end(&self, place: &Place, request: &RunRequest) -> Result<ExitCode, Failure> {
        let mut environment = place.open(&self.id).await?;
        let live = Live::default();
        tokio::spawn(leave_at_last());
        let listener: &dyn Listener = if place.format == Format::Text { &live } else { &Silent };
        // Dropped, the command ends with its whole tree.
        let ran = tokio::select! {
            ran = environment.run(request, listener) => ran.map_err(failure)?,
            () = live.nobody_reads.notified() => return Ok(ExitCode::SUCCESS),
            () = told_to_end() => return Ok(interrupted()),
        };
        if place.format == Format::Json {
            place.format.print(&told(&ran), String::new)?;
        }
        warn(&ran.commit.warnings);
        if ran.timed_out {
            let limit = place.environments.settings().timeout_run.as_millis();
            let message = format!(
                "the command took longer than {limit} ms and was ended, with all that it started\nset COFER_TIMEOUT_RUN (milliseconds) for one that needs more, or leave it running with `--background`"
            );
            return Err(Failure::new(Kind::Timeout, message));
        }
        Ok(exit_code(&ran))
    }

    async fn leave_running(&self, place: &Place, request: &RunRequest) -> Result<ExitCode, Failure> {
        let mut environment = place.open(&self.id).await?;
        let starting = environment.run_in_background(request, &self.port, &Silent);
        let Some(started) = unless_told_to_end(with_spinner("starting it", starting)).await else {
            return Ok(interrupted());
        };
        let (background, warnings) = started.map_err(failure)?;
        let data = json!({"background_id": background.id, "endpoints": endpoints(&background.endpoints), "warnings": warnings});
        place.format.print(&data, || {
            let ports = background.endpoints.iter().map(|endpoint| {
                let here = endpoint.host_external.as_deref().unwrap_or("not reachable from here");
                format!("\n  port {}: {here}, inside {}", endpoint.port, endpoint.environment_internal)
            });
            format!("{} runs in the background{}", background.id, ports.collect::<String>())
        })?;
        if place.format == Format::Text {
            warn(&warnings);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One word is a text for the shell; several are words that the shell is to leave alone.
fn script(words: &[String]) -> String {
    match words {
        [text] => text.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn told(ran: &Ran) -> serde_json::Value {
    let mut data = ran.data();
    data["timed_out"] = ran.timed_out.into();
    data
}

/// The command's own, where there is one.
fn exit_code(ran: &Ran) -> ExitCode {
    let code = ran.exit_code.or(ran.signal.map(|signal| ENDED_BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// A reader who has stopped reading must not keep a person from leaving: the command ends when its connection does.
async fn leave_at_last() {
    told_to_end().await;
    tokio::time::sleep(LEAVE_MAX).await;
    std::process::exit(INTERRUPTED.into());
}

/// Says what the command says, at once.
#[derive(Default)]
struct Live {
    nobody_reads: Notify,
}

impl Listener for Live {
    /// A reader who takes its time slows the command down, as it would on this machine.
    fn said(&self, stream: Stream, bytes: &[u8]) {
        let written = tokio::task::block_in_place(|| match stream {
            Stream::Stdout => write(&mut io::stdout().lock(), bytes),
            Stream::Stderr => write(&mut io::stderr().lock(), bytes),
        });
        if written.is_err() {
            self.nobody_reads.notify_one();
        }
    }

    fn still_running(&self, _since: Duration, _last_line: Option<String>) {}
}

fn write(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_text_and_several_are_words() {
        let of = |words: &[&str]| script(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["a | b"]), "a | b");
        assert_eq!(of(&["echo", "a b", "it's", "", "$x"]), r"echo 'a b' 'it'\''s' '' '$x'");
    }
}
