//! What only servers know: methods that are none of ours, and tasks. Whom are these asked of?

use cofer_mcp::message::{INVALID_PARAMS, METHOD_NOT_FOUND, Reply, RpcError};

use crate::endpoint::{Answer, Request, refusal};
use crate::tasks::Home;

impl Request {
    /// A method that we do not know.
    pub(crate) async fn of_who_knows_it(&self) -> Answer {
        self.of_anybody(is_known).await
    }

    /// Of the server that began it.
    pub(crate) async fn of_task(&self) -> Answer {
        let task = self.text(&["taskId"])?;
        match self.project.tasks.home(&task, self.session.owner) {
            Some(Home::Server(id)) => match self.project.upstream(id) {
                Some(upstream) => self.forward(&upstream).await,
                None => Err(RpcError::new(INVALID_PARAMS, "the server of this task is not there any more")),
            },
            Some(Home::SomebodyElses) => Err(RpcError::new(INVALID_PARAMS, "there is no such task")),
            // One from before our own beginning: whoever has it answers.
            None => self.of_anybody(|reply| matches!(reply, Reply::Result(_))).await,
        }
    }

    /// The first server whose answer settles it, which is the first to be asked from then on.
    async fn of_anybody(&self, settles: fn(&Reply) -> bool) -> Answer {
        let mut unsettled = None;
        for upstream in self.project.likeliest_for(&self.method) {
            match self.sent_to(&upstream).await {
                Ok(reply) if settles(&reply) => {
                    self.project.learn_method(&self.method, &upstream);
                    return Ok(reply);
                }
                Ok(reply) if !is_known(&reply) => {}
                // Perhaps it is done: nobody else is to do it once more.
                Err(failed) if failed.may_have_executed => return Err(refusal(failed)),
                otherwise => unsettled = Some(otherwise.map_err(refusal)),
            }
        }
        unsettled.unwrap_or_else(|| Err(RpcError::new(METHOD_NOT_FOUND, "Method not found")))
    }
}

/// Whether who answered knows the method.
fn is_known(reply: &Reply) -> bool {
    !matches!(reply, Reply::Error(error) if error.code == METHOD_NOT_FOUND)
}
