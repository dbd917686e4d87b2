//! The tools of environments, as an agent calls them: arguments in, one result out, whatever happened.

mod answers;
mod arguments;
mod schema;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Environments;
use crate::config::ServiceConfig;
use crate::create::Create;
use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::files::Lines;
use crate::run::{Listener, RunRequest};
use crate::tail::LINES_TOLD;

pub use answers::{Answer, environment as environment_data};
use arguments::Arguments;

/// For the model, when it connects.
pub const INSTRUCTIONS: &str = include_str!("instructions.md");

/// Which tools are offered, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Create, run and destroy alone.
    pub core_only: bool,
    /// One environment for the whole conversation, which nobody has to name.
    pub single_tenant: bool,
}

impl Offer {
    /// The tools, as in `tools/list`.
    pub fn listed(self) -> Vec<Value> {
        schema::listed(self)
    }
}

/// Hears of progress: how far, and what was last said.
pub type Progress = Arc<dyn Fn(f64, &str) + Send + Sync>;

/// The tools, for one client or for many.
#[derive(Debug)]
pub struct Toolbox {
    environments: Arc<Environments>,
    offer: Offer,
    /// The one environment of a single tenant.
    current: Mutex<Option<Place>>,
}

/// Which environment is meant.
#[derive(Clone, Debug)]
struct Place {
    source: PathBuf,
    id: String,
}

impl Toolbox {
    pub fn new(environments: Arc<Environments>, offer: Offer) -> Self {
        Self { environments, offer, current: Mutex::default() }
    }

    /// The result, as in `tools/call`. Dropping this ends what was begun.
    pub async fn call(
        &self,
        tool: &str,
        arguments: Option<Value>,
        trace_id: &str,
        progress: &Progress,
    ) -> Value {
        let began = Instant::now();
        let parsed = Arguments::new(arguments);
        let mut note = Note::default();
        let outcome = match &parsed {
            Ok(arguments) => {
                note.mode =
                    if arguments.flag("background").unwrap_or(false) { "background" } else { "foreground" };
                note.environment = self.place(arguments).map(|place| place.id).unwrap_or_default();
                self.dispatch(tool, arguments, trace_id, progress, &mut note).await
            }
            Err(error) => Err(error.clone()),
        };
        let answer = outcome.unwrap_or_else(|error| {
            note.outcome = error.kind.word();
            Answer::failed(&error, trace_id)
        });
        if answer.is_error() && note.outcome.is_empty() {
            note.outcome = ErrorKind::Timeout.word();
        }
        let (outcome, duration_ms) =
            (if note.outcome.is_empty() { "ok" } else { note.outcome }, began.elapsed().as_millis());
        tracing::info!(
            tool,
            environment = note.environment,
            mode = note.mode,
            outcome,
            duration_ms,
            trace_id,
            "{tool} {outcome}"
        );
        answer.into_result()
    }

    /// Which environment a call is about.
    fn place(&self, arguments: &Arguments) -> Result<Place> {
        let given = |name: &str| arguments.optional(name).map(|text| text.filter(|text| !text.is_empty()));
        if let (Some(source), Some(id)) = (given("environment_source")?, given("environment_id")?) {
            return Ok(Place { source: source.into(), id: id.to_owned() });
        }
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match current.filter(|_| self.offer.single_tenant) {
            Some(place) => Ok(place),
            None if self.offer.single_tenant => {
                let message = "there is no environment in this session yet";
                Err(EnvError::new(
                    ErrorKind::PreconditionFailed,
                    "find",
                    message,
                    "create one with `environment_create`",
                ))
            }
            None => {
                let source = arguments.path("environment_source")?;
                Ok(Place { source, id: arguments.text("environment_id")?.to_owned() })
            }
        }
    }

    async fn open(&self, arguments: &Arguments) -> Result<Environment> {
        let place = self.place(arguments)?;
        self.environments.open(&place.source, &place.id).await
    }

    fn settle_on(&self, source: PathBuf, id: &str) {
        if self.offer.single_tenant {
            let place = Place { source, id: id.to_owned() };
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        }
    }

    async fn dispatch(
        &self,
        tool: &str,
        arguments: &Arguments,
        trace_id: &str,
        progress: &Progress,
        note: &mut Note,
    ) -> Result<Answer> {
        match tool {
            "environment_create" => self.create(arguments, note).await,
            "environment_run_cmd" => self.run(arguments, trace_id, progress).await,
            "environment_destroy" => self.destroy(arguments).await,
            _ if self.offer.core_only => Err(unknown(tool)),
            "environment_open" => {
                let environment = self.open(arguments).await?;
                self.settle_on(arguments.path("environment_source")?, environment.id());
                Ok(told(&environment, ""))
            }
            "environment_list" => self.list(arguments).await,
            "environment_update_metadata" => {
                let mut environment = self.open(arguments).await?;
                if let Some(title) = arguments.optional("title")?.filter(|title| !title.is_empty()) {
                    environment.update_title(title).await?;
                }
                Ok(told(&environment, "Environment metadata updated successfully.\n"))
            }
            "environment_config" => self.configure(arguments).await,
            "environment_add_service" => self.add_service(arguments).await,
            "environment_checkpoint" => {
                let image = self.open(arguments).await?.checkpoint(arguments.text("destination")?).await?;
                let text = format!(
                    "Checkpoint kept as {image}. You MUST use the full content addressed (@sha256:...) reference in `docker` commands where there is one."
                );
                Ok(Answer::new(text, json!({"image": image})))
            }
            "environment_log" => {
                let log = self.open(arguments).await?.log(arguments.flag("patch")?).await?;
                Ok(Answer::new(log.clone(), json!({"log": log})))
            }
            "environment_diff" => {
                let diff = self.open(arguments).await?.diff().await?;
                Ok(Answer::new(diff.clone(), json!({"diff": diff})))
            }
            _ if tool.starts_with("environment_file_") => self.file(tool, arguments).await,
            _ if tool.starts_with("environment_background_") => self.background(tool, arguments).await,
            _ => Err(unknown(tool)),
        }
    }

    async fn create(&self, arguments: &Arguments, note: &mut Note) -> Result<Answer> {
        let source = arguments.path("environment_source")?;
        let owned = |name: &str| -> Result<Option<String>> {
            Ok(arguments.optional(name)?.filter(|text| !text.is_empty()).map(ToOwned::to_owned))
        };
        let allow_replace = arguments.flag("allow_replace")?;
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(current) = current.filter(|_| self.offer.single_tenant && !allow_replace) {
            let message = format!(
                "environment_id {} already exists for this session. To replace it with a new one, set allow_replace=true",
                current.id
            );
            return Err(EnvError::new(
                ErrorKind::Conflict,
                "name",
                message,
                "go on with the environment there is",
            ));
        }
        let wanted = Create {
            title: arguments.text("title")?.to_owned(),
            id: owned("environment_id")?,
            from_git_ref: owned("from_git_ref")?,
            image: owned("image")?,
            allow_replace,
        };
        let (environment, warnings) = self.environments.create(&source, wanted).await?;
        environment.id().clone_into(&mut note.environment);
        self.settle_on(source, environment.id());
        Ok(told(&environment, "").with_warnings(&warnings))
    }

    async fn run(&self, arguments: &Arguments, trace_id: &str, progress: &Progress) -> Result<Answer> {
        let request = RunRequest {
            command: arguments.optional("command")?.unwrap_or_default().to_owned(),
            shell: arguments.optional("shell")?.map(ToOwned::to_owned),
            use_entrypoint: arguments.flag("use_entrypoint")?,
            explanation: arguments.optional("explanation")?.unwrap_or_default().to_owned(),
        };
        let (background, ports) = (arguments.flag("background")?, arguments.ports("ports")?);
        let mut environment = self.open(arguments).await?;
        let listener = Reporter(progress.clone());
        if background {
            let (background, warnings) = environment.run_in_background(&request, &ports, &listener).await?;
            return Ok(answers::started(&background, &warnings));
        }
        let ran = environment.run(&request, &listener).await?;
        let limit_ms = self.environments.settings().timeout_run.as_millis();
        Ok(answers::ran(environment.id(), &ran, trace_id, limit_ms))
    }

    async fn destroy(&self, arguments: &Arguments) -> Result<Answer> {
        let place = self.place(arguments)?;
        let force = arguments.flag("force")?;
        let destroyed = self.environments.destroy(&place.source, &place.id, force).await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| current.id == place.id) {
            *current = None;
        }
        Ok(answers::destroyed(&destroyed))
    }

    async fn list(&self, arguments: &Arguments) -> Result<Answer> {
        let all = self.environments.list(&arguments.path("environment_source")?).await?;
        let all: Value = all.iter().map(answers::environment).collect();
        let text = format!(
            "{}\n\nDO NOT change environments without explicit permission from the user",
            answers::written(&all)
        );
        Ok(Answer::new(text, json!({"environments": all})))
    }

    async fn configure(&self, arguments: &Arguments) -> Result<Answer> {
        let wanted = arguments.inner("config")?;
        let mut environment = self.open(arguments).await?;
        let mut config = environment.state.config.clone();
        if let Some(image) = wanted.optional("base_image")?.filter(|image| !image.is_empty()) {
            image.clone_into(&mut config.base_image);
        }
        for (name, part) in [
            ("setup_commands", &mut config.setup_commands),
            ("install_commands", &mut config.install_commands),
            ("envs", &mut config.env),
            ("caches", &mut config.caches),
        ] {
            if let Some(all) = wanted.texts(name)? {
                *part = all;
            }
        }
        environment.reconfigure(config).await?;
        let begin = "SUCCESS: Environment successfully updated. Environment has been restarted, all previous commands have been lost.\n";
        Ok(told(&environment, begin))
    }

    async fn add_service(&self, arguments: &Arguments) -> Result<Answer> {
        let config = ServiceConfig {
            name: arguments.text("name")?.to_owned(),
            image: arguments.text("image")?.to_owned(),
            command: arguments.optional("command")?.unwrap_or_default().to_owned(),
            exposed_ports: arguments.ports("ports")?,
            env: arguments.texts("envs")?.unwrap_or_default(),
        };
        let service = self.open(arguments).await?.add_service(config).await?;
        let data = answers::service(&service);
        Ok(Answer::new(format!("Service added and started successfully: {}", answers::written(&data)), data))
    }

    async fn file(&self, tool: &str, arguments: &Arguments) -> Result<Answer> {
        let environment = self.open(arguments).await?;
        let (id, explanation) = (environment.id(), arguments.optional("explanation")?.unwrap_or_default());
        match tool {
            "environment_file_read" => {
                let content = environment.file_read(arguments.text("target_file")?, lines(arguments)?)?;
                Ok(Answer::new(content.clone(), json!({"content": content})))
            }
            "environment_file_list" => {
                let entries = environment.file_list(arguments.text("path")?)?;
                Ok(Answer::new(entries.join("\n"), json!({"entries": entries})))
            }
            "environment_file_write" => {
                let file = arguments.text("target_file")?;
                let commit = environment.file_write(file, arguments.text("contents")?, explanation).await?;
                Ok(answers::changed_file(id, file, "written", &commit))
            }
            "environment_file_edit" => {
                let file = arguments.text("target_file")?;
                let texts = (arguments.text("search_text")?, arguments.text("replace_text")?);
                let which = arguments.optional("which_match")?;
                let commit = environment.file_edit(file, texts, which, explanation).await?;
                Ok(answers::changed_file(id, file, "edited", &commit))
            }
            "environment_file_delete" => {
                let file = arguments.text("target_file")?;
                let commit = environment.file_delete(file, explanation).await?;
                Ok(answers::changed_file(id, file, "deleted", &commit))
            }
            _ => Err(unknown(tool)),
        }
    }

    async fn background(&self, tool: &str, arguments: &Arguments) -> Result<Answer> {
        let mut environment = self.open(arguments).await?;
        match tool {
            "environment_background_list" => {
                let reports = environment.background_reports().await?;
                let each = reports.iter().map(|report| {
                    json!({
                        "background_id": report.background.id,
                        "command": report.background.command,
                        "running": report.running,
                        "exit_code": report.exit_code,
                        "started_at": report.background.started_at,
                        "endpoints": answers::endpoints(&report.background.endpoints),
                    })
                });
                let all: Value = each.collect();
                Ok(Answer::new(answers::written(&all), json!({"background": all})))
            }
            "environment_background_read" => {
                let id = arguments.text("background_id")?;
                let lines = arguments.number("tail")?.unwrap_or(LINES_TOLD).clamp(1, LINES_TOLD);
                let told = environment.background_read(id, lines)?;
                let data = json!({"background_id": id, "output": told.text, "truncated": told.truncated});
                Ok(Answer::new(told.text, data))
            }
            "environment_background_stop" => {
                let id = arguments.text("background_id")?;
                let stopped = environment.background_stop(id).await?;
                let ended = stopped.map(|stopped| stopped.ended);
                Ok(Answer::new(
                    format!("Background command {id} has ended."),
                    json!({"background_id": id, "ended": ended}),
                ))
            }
            _ => Err(unknown(tool)),
        }
    }
}

/// What the log says of a call.
#[derive(Debug, Default)]
struct Note {
    environment: String,
    mode: &'static str,
    outcome: &'static str,
}

/// Tells a client every second that its command still runs.
struct Reporter(Progress);

impl Listener for Reporter {
    fn still_running(&self, since: Duration, last_line: Option<String>) {
        (self.0)(since.as_secs_f64(), last_line.as_deref().unwrap_or("running"));
    }
}

fn told(environment: &Environment, begin: &str) -> Answer {
    let data = answers::environment(environment);
    Answer::new(format!("{begin}{}", answers::written(&data)), data)
}

fn lines(arguments: &Arguments) -> Result<Lines> {
    let first = arguments.number("start_line_one_indexed_inclusive")?;
    let last = arguments.number("end_line_one_indexed_inclusive")?;
    if arguments.flag("should_read_entire_file")? || (first.is_none() && last.is_none()) {
        return Ok(Lines::All);
    }
    Ok(Lines::Range { first: first.unwrap_or(1), last: last.unwrap_or(usize::MAX) })
}

fn unknown(tool: &str) -> EnvError {
    EnvError::invalid("arguments", format!("Unknown tool: {tool}"), "`tools/list` names those there are")
}
