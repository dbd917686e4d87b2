//! Ending a sandbox: signals, the wait for its end, and its removal. All of it may be repeated.

use bollard::query_parameters::{
    KillContainerOptionsBuilder, RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use futures_util::StreamExt as _;

use crate::connection::{ASK_AGAIN_AFTER, DEED_MAX, Open};
use crate::containers::EngineProvider;
use crate::sightings::Seen;
use crate::{SandboxError, SandboxId, SandboxState};

impl EngineProvider {
    /// One that has ended, or is gone, is fine.
    pub(crate) async fn signal(&self, open: &Open, id: &SandboxId, signal: &str) -> Result<(), SandboxError> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        match open.within(DEED_MAX, open.client.kill_container(&id.0, Some(options))).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() || error.is_conflict() || error.is_passing() => Ok(()),
            Err(error) => match self.inspect(open, id).await? {
                Some(seen) if matches!(seen.sighting.state, SandboxState::Running { .. }) => {
                    Err(open.failed(error))
                }
                _ => Ok(()),
            },
        }
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&self, open: &Open, id: &SandboxId) -> Result<(), SandboxError> {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let _whatever_it_says = open.client.wait_container(&id.0, Some(options)).next().await;
        // Podman answers before its own books are right.
        loop {
            match self.inspect(open, id).await? {
                Some(seen) if matches!(seen.sighting.state, SandboxState::Running { .. }) => {}
                _ => return Ok(()),
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    /// Ends it at once. A frozen one is thawed first: gVisor cannot die frozen.
    pub(crate) async fn kill(&self, open: &Open, seen: &Seen) -> Result<(), SandboxError> {
        let id = &seen.sighting.id;
        if !matches!(seen.sighting.state, SandboxState::Running { .. }) {
            return Ok(());
        }
        if seen.paused {
            let _ = open.within(DEED_MAX, open.client.unpause_container(&id.0)).await;
        }
        self.signal(open, id, "SIGKILL").await?;
        let ended = tokio::time::timeout(DEED_MAX, self.ended(open, id)).await;
        ended.unwrap_or_else(|_| Err(open.refused(format!("sandbox {id} was killed and does not end"))))
    }

    /// Removes what has ended; waits for somebody else who does the same.
    pub(crate) async fn remove(&self, open: &Open, id: &SandboxId) -> Result<(), SandboxError> {
        let removal = async {
            loop {
                // `v` removes what the image itself declares as volumes, which have no name and no other user.
                let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
                match open.within(DEED_MAX, open.client.remove_container(&id.0, Some(options))).await {
                    Ok(()) => return Ok(()),
                    Err(error) if error.is_not_found() => return Ok(()),
                    Err(error) if error.is_conflict() || error.is_passing() => {
                        tokio::time::sleep(ASK_AGAIN_AFTER).await;
                    }
                    Err(error) => return Err(open.failed(error)),
                }
            }
        };
        let removed = tokio::time::timeout(DEED_MAX, removal).await;
        removed.unwrap_or_else(|_| Err(open.refused(format!("sandbox {id} could not be removed"))))
    }
}
