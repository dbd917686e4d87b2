//! One message and what comes of it: text as it streams, calls as they happen, questions to the person, and Ctrl-C, which ends the turn
//! and not the program.

use cofer_model::Kind;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::input::Input;
use super::shown::{self, Screen};
use crate::client::Client;
use crate::events::{Event, Events};
use crate::exit::Failure;

pub struct Turn<'a> {
    pub client: &'a Client,
    pub project: &'a str,
    /// Whom to ask, and to show things to. Without anybody nothing is shown.
    pub input: Option<&'a mut Input>,
}

impl Turn<'_> {
    /// Says something; the `done` that it ends with.
    pub async fn run(mut self, body: &Value) -> Result<Value, Failure> {
        let mut screen = Screen::new(self.input.is_some());
        // One for the whole turn: whatever comes while something else is looked at is not missed.
        let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
        let mut is_interrupted = false;
        let mut events = self.begin(body, &mut interrupts, &mut is_interrupted).await?;
        let (mut run, mut failure) = (String::new(), None);
        loop {
            let event = tokio::select! {
                event = events.next() => event.map_err(|error| self.client.no_answer(&error))?,
                _ = interrupts.recv(), if !is_interrupted => {
                    is_interrupted = true;
                    self.cancel(&run, &mut screen).await?;
                    continue;
                }
            };
            let Some(Event { name, data }) = event else {
                let message = format!("the stream of run {run} broke off; the run may be going on");
                return Err(failure.unwrap_or_else(|| Failure::new(Kind::Unavailable, message)));
            };
            match name.as_str() {
                "run" => {
                    data["run_id"].as_str().unwrap_or_default().clone_into(&mut run);
                    if is_interrupted {
                        self.cancel(&run, &mut screen).await?;
                    }
                }
                "approval" => self.ask(&run, &data, &mut screen).await?,
                "error" => failure = Some(self.client.failed(data.to_string().as_bytes())),
                "done" => {
                    screen.end();
                    return match failure {
                        Some(failure) => Err(failure),
                        None => Ok(data),
                    };
                }
                name => screen.show(name, &data),
            }
        }
    }

    /// A turn that is interrupted before it has begun must begin to be cancelled.
    async fn begin(
        &self,
        body: &Value,
        interrupts: &mut Signal,
        is_interrupted: &mut bool,
    ) -> Result<Events, Failure> {
        let path = ["projects", self.project, "chat"];
        let events = self.client.events(&path, body);
        tokio::pin!(events);
        loop {
            tokio::select! {
                events = &mut events => return events,
                _ = interrupts.recv(), if !*is_interrupted => *is_interrupted = true,
            }
        }
    }

    async fn cancel(&self, run: &str, screen: &mut Screen) -> Result<(), Failure> {
        screen.note("interrupting…");
        let path = ["projects", self.project, "agent-runs", run, "cancel"];
        self.client.post(&path, &json!({})).await.map(drop)
    }

    /// Whoever cannot be asked says no.
    async fn ask(&mut self, run: &str, asked: &Value, screen: &mut Screen) -> Result<(), Failure> {
        screen.end();
        let allow = match &mut self.input {
            Some(input) => input.agrees(&shown::question(asked)).await?,
            None => false,
        };
        let body = json!({"approval_id": asked["approval_id"], "allow": allow});
        match self.client.post(&["projects", self.project, "agent-runs", run, "approvals"], &body).await {
            // It took too long to decide: that was a no.
            Err(failure) if failure.kind == Kind::NotFound => Ok(()),
            answered => answered.map(drop),
        }
    }
}
