//! `cofer env watch`.

use clap::Args;
use cofer_environments::News;
use cofer_model::Moment;
use serde_json::json;

use super::{Place, failure};
use crate::exit::Failure;
use crate::output::{Format, harmless, harmless_json, print_line};
use crate::signals::unless_told_to_end;

/// Follow what happens in all environments of a repository, until Ctrl-C
#[derive(Debug, Args)]
pub struct Watch {}

impl Watch {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let mut watch = place.environments.watch(&place.path).await.map_err(failure)?;
        let following = async {
            loop {
                for news in watch.next().await.map_err(failure)? {
                    tell(place.format, &news)?;
                }
            }
        };
        unless_told_to_end(following).await.unwrap_or(Ok(()))
    }
}

fn tell(format: Format, news: &News) -> Result<(), Failure> {
    let at = Moment::now();
    if format == Format::Json {
        let mut told = json!(news);
        told["at"] = json!(at);
        return print_line(&harmless_json(&told.to_string()));
    }
    print_line(&harmless(&format!("{at}  {}", line(news))))
}

fn line(news: &News) -> String {
    match news {
        News::Created { environment, title } => format!("{environment}  created: {title}"),
        News::Command { environment, command, exit_code } => {
            let code = exit_code.map_or_else(|| "ended".to_owned(), |code| format!("exit {code}"));
            format!("{environment}  $ {command}  ({code})")
        }
        News::Commit { environment, commit, subject } => format!("{environment}  {commit} {subject}"),
        News::Destroyed { environment } => format!("{environment}  destroyed"),
    }
}
