//! What a killed Cofer may have left: found, told, and removed when somebody says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofer_sandbox::{Provider, SandboxId};
use serde::Serialize;

use crate::Environments;
use crate::error::{EnvError, Result};
use crate::git::{Source, Worktree};
use crate::locks::Hold;
use crate::state::{self, Home, Stage};

/// Something that belongs to no environment any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Orphan {
    /// Begun and never finished, or half destroyed.
    Unfinished {
        id: String,
    },
    Container {
        id: String,
        environment: String,
    },
    Network {
        name: String,
        environment: String,
    },
    Worktree {
        path: PathBuf,
        environment: String,
    },
    /// What environments share, and none uses now. It is nobody's in particular, so it goes only when somebody asks for that.
    Cache {
        volume: String,
        name: String,
    },
}

impl Environments {
    /// All that nobody owns, of this repository.
    pub async fn orphans(self: &Arc<Self>, path: &Path) -> Result<Vec<Orphan>> {
        let source = self.source(path).await?;
        let ids = state::ids(&source)?;
        let mut orphans = Vec::new();
        for id in &ids {
            if self.is_unfinished(&source, id).await? {
                orphans.push(Orphan::Unfinished { id: id.clone() });
            }
        }
        let unknown = |id: &String| !ids.contains(id);
        for provider in self.engines() {
            // One that is not there has no containers of ours that could be removed now.
            let Ok(all) = provider.list(&state::instance(&source)).await else { continue };
            let left = all.into_iter().filter(|seen| unknown(&seen.owner.name));
            orphans
                .extend(left.map(|seen| Orphan::Container { id: seen.id.0, environment: seen.owner.name }));
            let networks = provider.networks(&state::instance(&source)).await.unwrap_or_default();
            let left = networks.into_iter().filter(|network| unknown(&network.owner.name));
            orphans.extend(
                left.map(|network| Orphan::Network { name: network.name, environment: network.owner.name }),
            );
        }
        for entry in std::fs::read_dir(source.worktrees()).into_iter().flatten().flatten() {
            let environment = entry.file_name().to_string_lossy().into_owned();
            if unknown(&environment) && crate::id::check(&environment).is_ok() {
                orphans.push(Orphan::Worktree { path: entry.path(), environment });
            }
        }
        Ok(orphans)
    }

    /// Caches of this repository that no container has.
    pub async fn unused_caches(self: &Arc<Self>, path: &Path) -> Result<Vec<Orphan>> {
        let source = self.source(path).await?;
        let mut caches = Vec::new();
        for provider in self.engines() {
            let all = provider.volumes(&state::instance(&source)).await.unwrap_or_default();
            let unused = all.into_iter().filter(|volume| !volume.in_use);
            caches.extend(
                unused.map(|volume| Orphan::Cache { volume: volume.name, name: volume.owner.server }),
            );
        }
        Ok(caches)
    }

    async fn is_unfinished(self: &Arc<Self>, source: &Source, id: &str) -> Result<bool> {
        let home = Home::of(source, id);
        let is_ready = matches!(home.load(), Ok(Some(state)) if state.stage == Stage::Ready);
        // Whoever is at work on it holds its lock.
        Ok(!is_ready && home.lock(Hold::Alone, Duration::ZERO).await.is_ok())
    }

    fn engines(&self) -> Vec<Arc<dyn Provider>> {
        let names = self.settings.provider.map_or_else(|| crate::ENGINES.to_vec(), |name| vec![name]);
        names.into_iter().map(|name| self.providers.get(name)).collect()
    }

    async fn engines_that_answer(&self) -> Vec<Arc<dyn Provider>> {
        let mut answering = Vec::new();
        for provider in self.engines() {
            if provider.examine().await.is_ok() {
                answering.push(provider);
            }
        }
        answering
    }

    /// Removes one of them.
    pub async fn remove_orphan(self: &Arc<Self>, path: &Path, orphan: &Orphan) -> Result<()> {
        let source = self.source(path).await?;
        match orphan {
            Orphan::Unfinished { id } => {
                if let Ok(Some(environment)) = self.known(&source, id) {
                    return environment.destroy(true).await.map(drop);
                }
                // A folder without a state that can be read.
                Worktree::of(&source, id).remove(true).await?;
                state::remove_folder(&Home::of(&source, id).folder)
            }
            Orphan::Container { id, .. } => {
                for provider in self.engines() {
                    let removed = provider.destroy(&SandboxId(id.clone())).await;
                    if provider.look(&SandboxId(id.clone())).await.is_ok_and(|seen| seen.is_none()) {
                        removed.map_err(|error| EnvError::engine("containers", &error))?;
                    }
                }
                Ok(())
            }
            Orphan::Network { name, .. } => {
                for provider in self.engines_that_answer().await {
                    let removed = provider.remove_network(name).await;
                    removed.map_err(|error| EnvError::engine("network", &error))?;
                }
                Ok(())
            }
            Orphan::Cache { volume, .. } => {
                for provider in self.engines_that_answer().await {
                    let removed = provider.remove_volume(volume).await;
                    removed.map_err(|error| EnvError::engine("caches", &error))?;
                }
                Ok(())
            }
            Orphan::Worktree { environment, .. } => {
                Worktree::of(&source, environment).remove(true).await.map(drop)
            }
        }
    }
}
