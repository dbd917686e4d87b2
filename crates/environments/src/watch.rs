//! What happens in the environments of a repository, whoever does it: looked for now and then, and cheaply, since files change when
//! something was done.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::Environments;
use crate::environment::Environment;
use crate::error::Result;
use crate::git::Source;
use crate::state::{self, LastCommand, Stage, TOLD_BY};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Of many commits at once the newest are told.
const COMMITS_TOLD: &str = "--max-count=50";

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum News {
    Created { environment: String, title: String },
    Command { environment: String, command: String, exit_code: Option<i32> },
    Commit { environment: String, commit: String, subject: String },
    Destroyed { environment: String },
}

/// Follows all environments of one repository.
#[derive(Debug)]
pub struct Watch {
    house: Arc<Environments>,
    path: PathBuf,
    source: Source,
    seen: BTreeMap<String, Seen>,
}

/// One environment when it was looked at last.
#[derive(Debug, Default)]
struct Seen {
    stamps: Stamps,
    head: String,
    last_command: Option<LastCommand>,
}

type Stamps = [Option<(SystemTime, u64)>; TOLD_BY.len()];

impl Environments {
    /// What is there now is no news.
    pub async fn watch(self: &Arc<Self>, path: &Path) -> Result<Watch> {
        let source = self.source(path).await?;
        let mut watch = Watch { house: self.clone(), path: path.to_owned(), source, seen: BTreeMap::new() };
        watch.look().await?;
        Ok(watch)
    }
}

impl Watch {
    /// The next things that happen. May be dropped between two looks.
    pub async fn next(&mut self) -> Result<Vec<News>> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let news = self.look().await?;
            if !news.is_empty() {
                return Ok(news);
            }
        }
    }

    async fn look(&mut self) -> Result<Vec<News>> {
        let mut news = Vec::new();
        // Looks whether the repository is still one of ours.
        self.source = self.house.source(&self.path).await?;
        let ids = state::ids(&self.source)?;
        for id in &ids {
            let stamps = stamps(&self.source, id);
            if self.seen.get(id).is_some_and(|seen| seen.stamps == stamps) {
                continue;
            }
            // One that cannot be read now is looked at again.
            let Ok(Some(environment)) = self.house.known(&self.source, id) else { continue };
            if environment.state.stage == Stage::Ready {
                let seen = self.seen.entry(id.clone()).or_default();
                news.extend(seen.compare(&environment, stamps).await);
            }
        }
        let gone: Vec<String> = self.seen.keys().filter(|id| !ids.contains(id)).cloned().collect();
        for environment in gone {
            self.seen.remove(&environment);
            news.push(News::Destroyed { environment });
        }
        Ok(news)
    }
}

impl Seen {
    async fn compare(&mut self, environment: &Environment, stamps: Stamps) -> Vec<News> {
        let mut news = Vec::new();
        let id = || environment.id().to_owned();
        if self.head.is_empty() {
            environment.state.base.clone_into(&mut self.head);
            news.push(News::Created { environment: id(), title: environment.state.title.clone() });
        }
        let last_command = environment.last_command();
        if last_command != self.last_command
            && let Some(LastCommand { command, exit_code, .. }) = &last_command
        {
            news.push(News::Command { environment: id(), command: command.clone(), exit_code: *exit_code });
        }
        self.last_command = last_command;
        // What cannot be told now is told with the next change.
        if let Ok(head) = environment.worktree.head().await {
            if let Ok(commits) = commits(environment, &self.head, &head).await {
                news.extend(commits);
            }
            self.head = head;
        }
        self.stamps = stamps;
        news
    }
}

async fn commits(environment: &Environment, from: &str, to: &str) -> Result<Vec<News>> {
    if from == to {
        return Ok(Vec::new());
    }
    let range = format!("{from}..{to}");
    let asked = ["log", "--reverse", COMMITS_TOLD, "--format=%h %s", &range, "--"];
    let answer = environment.source.git().run("watch", asked).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let commits = answer.lines().filter_map(|line| line.split_once(' '));
    let told = commits.map(|(commit, subject)| News::Commit {
        environment: environment.id().to_owned(),
        commit: commit.to_owned(),
        subject: subject.to_owned(),
    });
    Ok(told.collect())
}

fn stamps(source: &Source, id: &str) -> Stamps {
    let folder = source.environments().join(id);
    TOLD_BY.map(|name| {
        let about = std::fs::metadata(folder.join(name)).ok()?;
        Some((about.modified().ok()?, about.len()))
    })
}
