//! What is registered, as the gateway wants to know it: a project's servers in their order, each with a way to reach it and with
//! what it offered last.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use cofer_gateway::{Dial, ProjectEntry, Registry, ServerEntry};
use cofer_mcp::raw;
use cofer_model::{ExternalConfig, ExternalServer, ProjectId, Reference, ServerId, SessionMode};
use cofer_store::{CachedTool, ListedTool, RegisteredServer, ServerKind, Store, StoreError};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::external::{ExternalDial, KnownEra, Means};
use super::file::{FileServer, ServersFile};
use super::hosted::HostedDial;
use crate::hosting::Hosting;
use crate::http::error::chain;

#[derive(Debug)]
pub(super) struct StoredRegistry {
    pub store: Store,
    pub hosting: Arc<Hosting>,
    pub means: Arc<Means>,
    pub default_project: ProjectId,
    pub file: Arc<ServersFile>,
    pub found: mpsc::UnboundedSender<Found>,
}

#[async_trait]
impl Registry for StoredRegistry {
    async fn project(&self, id: ProjectId) -> Result<Option<ProjectEntry>, String> {
        self.read(id).await.map_err(|error| chain(&error))
    }

    fn tools_found(&self, _project: ProjectId, server: ServerId, tools: Vec<Arc<RawValue>>) {
        let listed = |tool: Arc<RawValue>| ListedTool {
            name: raw::text_at(&tool, &["name"]).unwrap_or_default().into_owned(),
            tool: tool.get().to_owned(),
        };
        let tools: Vec<_> = tools.into_iter().map(listed).collect();
        // The writer ends with this registry.
        let _ = self.found.send(Found::Tools(server, tools));
    }

    /// Hosted servers have a history; of the others the log tells.
    fn warned(&self, server: ServerId, warning: &str) {
        if let Some(entry) = self.hosting.find(None, &Reference::Id(server.0)) {
            entry.supervised.warn(warning);
        }
    }

    async fn settled(&self) {
        let (done, settled) = oneshot::channel();
        if self.found.send(Found::Settled(done)).is_ok() {
            let _ = settled.await;
        }
    }
}

/// For the writer of what was found, which writes one list after the other: of two lists of one server the later one stays.
#[derive(Debug)]
pub(super) enum Found {
    Tools(ServerId, Vec<ListedTool>),
    /// Everything before this is written.
    Settled(oneshot::Sender<()>),
}

/// Starts the writer.
pub(super) fn writer(store: Store) -> mpsc::UnboundedSender<Found> {
    let (found, mut findings) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(finding) = findings.recv().await {
            match finding {
                Found::Settled(done) => _ = done.send(()),
                Found::Tools(server, tools) => {
                    if let Err(error) = store.replace_tools(server, &tools).await {
                        let why = chain(&error);
                        tracing::warn!(server.id = %server, "the tools of server {server} could not be kept: {why}");
                    }
                }
            }
        }
    });
    found
}

impl StoredRegistry {
    async fn read(&self, id: ProjectId) -> Result<Option<ProjectEntry>, StoreError> {
        let Some(project) = self.store.project(&Reference::Id(id.0)).await? else { return Ok(None) };
        let registered = self.store.registered_servers(id).await?;
        let external = self.store.external_servers(id).await?;
        let external: HashMap<_, _> = external.into_iter().map(|server| (server.id, server)).collect();
        let mut tools: HashMap<ServerId, Vec<CachedTool>> = HashMap::new();
        for tool in self.store.tools_of(id).await? {
            tools.entry(tool.server_id).or_default().push(tool);
        }
        let entry = |server: RegisteredServer| {
            self.entry(id, &server, external.get(&server.id), tools.remove(&server.id))
        };
        let mut servers: Vec<_> = registered.into_iter().filter_map(entry).collect();
        if id == self.default_project {
            servers.extend(self.file.servers.iter().map(|server| self.file_entry(server)));
        }
        Ok(Some(ProjectEntry {
            id,
            name: project.name.to_string(),
            namespacing: project.namespacing,
            repeat_safe_calls: project.repeat_safe_calls,
            servers,
        }))
    }

    fn external(
        &self,
        project: ProjectId,
        id: ServerId,
        name: String,
        config: &ExternalConfig,
    ) -> ExternalDial {
        ExternalDial::new(self.means.clone(), project, id, name, config.clone())
    }

    fn file_entry(&self, FileServer { id, declared }: &FileServer) -> ServerEntry {
        let name = declared.name.to_string();
        ServerEntry {
            id: *id,
            fingerprint: 0,
            sessions: declared.session,
            dial: Arc::new(
                self.external(self.default_project, *id, name.clone(), &declared.config).without_login(),
            ),
            name,
            tools: None,
            disabled: HashSet::new(),
        }
    }

    /// `None` for one that is switched off, or that is going.
    fn entry(
        &self,
        project: ProjectId,
        server: &RegisteredServer,
        external: Option<&ExternalServer>,
        tools: Option<Vec<CachedTool>>,
    ) -> Option<ServerEntry> {
        let (dial, fingerprint, sessions): (Arc<dyn Dial>, _, _) = match server.kind {
            ServerKind::Hosted => {
                let entry = self.hosting.find(Some(project), &Reference::Id(server.id.0))?;
                (
                    Arc::new(HostedDial { entry, means: self.means.clone(), era: KnownEra::default() }),
                    0,
                    SessionMode::Auto,
                )
            }
            ServerKind::External => {
                let external = external.filter(|external| external.enabled)?;
                let dial = self.external(project, server.id, external.name.to_string(), &external.config);
                (Arc::new(dial), fingerprint(&external.config, external.session), external.session)
            }
        };
        let off = |tool: &&CachedTool| !tool.enabled;
        let disabled: HashSet<String> =
            tools.iter().flatten().filter(off).map(|tool| tool.name.clone()).collect();
        let known = |tool: &CachedTool| RawValue::from_string(tool.tool.clone()).ok();
        let tools = tools.map(|tools| tools.iter().filter_map(known).collect());
        let name = server.name.to_string();
        Some(ServerEntry { id: server.id, name, fingerprint, sessions, dial, tools, disabled })
    }
}

/// Another one for everything that makes a conversation another one.
fn fingerprint(config: &ExternalConfig, session: SessionMode) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(config).unwrap_or_default().hash(&mut hasher);
    config.transport().as_str().hash(&mut hasher);
    session.as_str().hash(&mut hasher);
    hasher.finish()
}
