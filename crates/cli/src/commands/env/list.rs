//! `cofer env list`.

use clap::Args;
use cofer_environments::Summary;
use cofer_model::Moment;
use serde_json::{Value, json};

use super::{Place, failure};
use crate::exit::Failure;
use crate::output::{age, print_line, table, with_spinner};

const COLUMNS: [(&str, &str); 8] = [
    ("ID", "id"),
    ("TITLE", "title"),
    ("AGE", "age"),
    ("RUNNING", "running"),
    ("COMMITS", "commits"),
    ("FILES", "changed_files"),
    ("LAST COMMAND", "command"),
    ("EXIT", "exit_code"),
];
const TITLE_CHARS_MAX: usize = 40;
const COMMAND_CHARS_MAX: usize = 40;

/// List the environments of a repository
#[derive(Debug, Args)]
pub struct List {
    /// Ids alone
    #[arg(short, long)]
    quiet: bool,
    /// Show titles and commands in full
    #[arg(long)]
    no_trunc: bool,
}

impl List {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        if self.quiet {
            let all = place.environments.list(&place.path).await.map_err(failure)?;
            let ids: Vec<&str> = all.iter().map(cofer_environments::Environment::id).collect();
            return place.format.print(&ids, || ids.join("\n"));
        }
        let asked = place.environments.summaries(&place.path);
        let all = with_spinner("looking around", asked).await.map_err(failure)?;
        if all.is_empty() && place.format == crate::output::Format::Text {
            return print_line("there are no environments; `cofer env create TITLE` makes one");
        }
        let now = Moment::now();
        let rows: Value = all.iter().map(|one| row(one, now, self.no_trunc)).collect();
        place.format.print(&all, || table(&rows, &COLUMNS))
    }
}

fn row(one: &Summary, now: Moment, in_full: bool) -> Value {
    let cut = |text: &str, max: usize| if in_full { text.to_owned() } else { shortened(text, max) };
    let last = one.last_command.as_ref();
    json!({
        "id": one.id,
        "title": cut(&one.title, TITLE_CHARS_MAX),
        "age": age(now.seconds_since(one.created_at)),
        "running": if one.running { "yes" } else { "no" },
        "commits": one.commits,
        "changed_files": one.changed_files,
        "command": last.map(|last| cut(&last.command, COMMAND_CHARS_MAX)),
        "exit_code": last.and_then(|last| last.exit_code),
    })
}

fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofer_environments::LastCommand;

    #[test]
    fn a_list_shows_what_a_person_wants_to_know() {
        let now = Moment::from_unix_ms(10_000_000);
        let made = Moment::from_unix_ms(2_000_000);
        let last_command =
            Some(LastCommand { command: "cargo test\n--all".to_owned(), exit_code: Some(101), at: now });
        let one = Summary {
            id: "fancy-mallard".to_owned(),
            title: "Mend the door that will not close however hard one tries".to_owned(),
            created_at: made,
            updated_at: now,
            running: true,
            last_command,
            commits: 3,
            changed_files: 12,
        };
        let idle = Summary {
            id: "plain-ox".to_owned(),
            title: "x".to_owned(),
            running: false,
            last_command: None,
            ..one.clone()
        };
        let rows: Value = [one, idle].iter().map(|one| row(one, now, false)).collect();
        insta::assert_snapshot!(table(&rows, &COLUMNS), @r"
        ID             TITLE                                     AGE  RUNNING  COMMITS  FILES  LAST COMMAND      EXIT
        fancy-mallard  Mend the door that will not close howev…  2h   yes      3        12     cargo test --all  101
        plain-ox       x                                         2h   no       3        12     -                 -
        ");
    }
}
