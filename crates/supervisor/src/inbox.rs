//! What the driver was told and has not obeyed yet. Bounded by the kinds of commands there are: saying something again replaces the
//! earlier time, because only the last word counts.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::machine::Command;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    told: Mutex<Told>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Told {
    count: u64,
    waiting: Vec<Command>,
}

impl Inbox {
    /// The command's number.
    pub(crate) fn tell(&self, command: Command) -> u64 {
        let count = {
            let mut told = self.told();
            told.waiting.retain(|waiting| {
                mem::discriminant(waiting) != mem::discriminant(&command) || is_other_wish(*waiting, command)
            });
            told.waiting.push(command);
            told.count += 1;
            told.count
        };
        self.news.notify_one();
        count
    }

    /// What is to be obeyed, and the number of the last of it. Waits until there is something.
    pub(crate) async fn commands(&self) -> (Vec<Command>, u64) {
        loop {
            {
                let mut told = self.told();
                if !told.waiting.is_empty() {
                    return (mem::take(&mut told.waiting), told.count);
                }
            }
            self.news.notified().await;
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// "Run" and "stop" are two things to say; the later does not undo all that came between them.
fn is_other_wish(one: Command, other: Command) -> bool {
    matches!((one, other), (Command::Want(one), Command::Want(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofer_model::Wanted;

    #[tokio::test]
    async fn it_never_holds_more_than_one_of_each_and_counts_all() {
        let inbox = Inbox::default();
        for _ in 0..1000 {
            for command in [
                Command::Want(Wanted::Running),
                Command::Restart,
                Command::Want(Wanted::Stopped),
                Command::Restart,
                Command::Reconfigure,
            ] {
                inbox.tell(command);
            }
        }
        let (commands, seen) = inbox.commands().await;
        assert_eq!(seen, 5000);
        assert_eq!(
            commands,
            [
                Command::Want(Wanted::Running),
                Command::Want(Wanted::Stopped),
                Command::Restart,
                Command::Reconfigure
            ]
        );
    }
}
