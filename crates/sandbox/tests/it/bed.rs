//! A provider on a real engine, an instance of its own, and the few things that tests do with sandboxes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofer_model::{NetworkMode, ProviderName, ResourceLimits};
use cofer_sandbox::{
    EngineProvider, EngineSettings, Exit, Launched, LogSink, LogStream, Owner, ProgressSink, Provider,
    Rights, SandboxId, SandboxSpec, SandboxState, Stdio, Streams, Variable, VolumeMount, VolumeOwner,
};
use cofer_testkit::engines::{self, Engine};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;

pub const BUSYBOX: &str = "cofer-test/busybox:latest";
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Makes a test for each provider of each function named.
macro_rules! conformance {
    ($($test:ident),+ $(,)?) => {
        conformance!(@provider docker $($test)+);
        conformance!(@provider gvisor $($test)+);
        conformance!(@provider podman $($test)+);
    };
    (@provider $provider:ident $($test:ident)+) => {
        mod $provider {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let Some(bed) = crate::bed::Bed::$provider() else { return };
                    super::$test(&bed).await;
                    bed.clear().await;
                }
            )+
        }
    };
}

pub struct Bed {
    pub provider: EngineProvider,
    pub instance: String,
    pub engine: Engine,
    launched: Mutex<Vec<SandboxId>>,
    /// Dropped last.
    _leaks: Leaks,
}

impl Bed {
    pub fn docker() -> Option<Self> {
        engines::docker().map(|engine| Self::new(EngineProvider::docker, engine))
    }

    pub fn gvisor() -> Option<Self> {
        engines::docker().map(|engine| Self::new(EngineProvider::gvisor, engine))
    }

    pub fn podman() -> Option<Self> {
        engines::podman().map(|engine| Self::new(EngineProvider::podman, engine))
    }

    fn new(make: impl Fn(EngineSettings, Variable) -> EngineProvider, engine: Engine) -> Self {
        let instance = Uuid::now_v7().to_string();
        let leaks = Leaks::watch().label(format!("cofer.instance={instance}"));
        let provider = provider(make, engine.host());
        Self { provider, instance, engine, launched: Mutex::default(), _leaks: leaks }
    }

    /// The same engine, seen by a Cofer that has just started.
    pub fn second_provider(&self) -> EngineProvider {
        self.provider_at(self.engine.host())
    }

    /// The same provider with its engine elsewhere.
    pub fn provider_at(&self, host: &str) -> EngineProvider {
        let make = match self.provider.name() {
            ProviderName::Docker => EngineProvider::docker,
            ProviderName::Podman => EngineProvider::podman,
            _ => EngineProvider::gvisor,
        };
        provider(make, host)
    }

    pub fn provider_name(&self) -> ProviderName {
        self.provider.name()
    }

    pub fn is(&self, name: ProviderName) -> bool {
        self.provider.name() == name
    }

    /// A sandbox of its own that runs this in a shell.
    pub fn spec(&self, script: &str) -> SandboxSpec {
        SandboxSpec {
            owner: Owner {
                instance: self.instance.clone(),
                kind: "mcp_server".into(),
                id: Uuid::new_v4(),
                name: "test".into(),
                run: 1,
            },
            image: BUSYBOX.into(),
            entrypoint: None,
            cmd: Some(vec!["sh".into(), "-c".into(), script.into()]),
            environment: Vec::new(),
            user: None,
            workdir: None,
            volumes: Vec::new(),
            binds: Vec::new(),
            limits: Some(ResourceLimits::default()),
            rights: Rights::Dropped,
            network: NetworkMode::None,
            network_name: None,
            aliases: Vec::new(),
            ports: Vec::new(),
            stdio: Stdio::Bridged,
        }
    }

    pub fn volume(&self, name: &str, path: &str) -> VolumeMount {
        VolumeMount {
            name: format!("cofer-{name}-{}", &self.instance[24..]),
            path: path.into(),
            owner: VolumeOwner {
                instance: self.instance.clone(),
                project_id: Uuid::nil(),
                server: name.into(),
            },
        }
    }

    pub async fn launch(&self, spec: &SandboxSpec) -> Sandbox {
        let log = Log::default();
        let launched = self.provider.launch(spec, log.sink()).await.expect("it is launched");
        self.launched.lock().unwrap().push(launched.id.clone());
        let Launched { id, streams, endpoints, warnings } = launched;
        let ports =
            endpoints.into_iter().map(|endpoint| (endpoint.container_port, endpoint.host_port)).collect();
        assert_eq!(warnings, Vec::<String>::new());
        Sandbox { id, streams, log, ports }
    }

    /// One that was launched in another way.
    pub fn note(&self, id: &SandboxId) {
        self.launched.lock().unwrap().push(id.clone());
    }

    pub async fn run(&self, script: &str) -> Sandbox {
        self.launch(&self.spec(script)).await
    }

    /// How it came to its end, once it has.
    pub async fn exit(&self, id: &SandboxId) -> Exit {
        until("the sandbox's end", async || matches!(self.state(id).await, SandboxState::Ended(_))).await;
        match self.state(id).await {
            SandboxState::Ended(exit) => exit,
            other => panic!("it ended, and now is {other:?}"),
        }
    }

    pub async fn state(&self, id: &SandboxId) -> SandboxState {
        self.provider.look(id).await.expect("it can be looked at").expect("it is there").state
    }

    /// What a shell in a sandbox of this shape writes to stdout until its end.
    pub async fn output_of(&self, spec: &SandboxSpec) -> String {
        let mut sandbox = self.launch(spec).await;
        let output = sandbox.rest().await;
        self.provider.destroy(&sandbox.id).await.expect("it is destroyed");
        output
    }

    pub async fn output(&self, script: &str) -> String {
        self.output_of(&self.spec(script)).await
    }

    /// Takes everything away, and sees to it that nothing of the machine is left either.
    pub async fn clear(&self) {
        for sighting in self.provider.list(&self.instance).await.expect("they can be listed") {
            self.provider.destroy(&sighting.id).await.expect("it is destroyed");
        }
        for volume in self.provider.volumes(&self.instance).await.expect("they can be listed") {
            self.provider.remove_volume(&volume.name).await.expect("it is removed");
        }
        for network in self.provider.networks(&self.instance).await.expect("they can be listed") {
            self.provider.remove_network(&network.name).await.expect("it is removed");
        }
        let launched = self.launched.lock().unwrap().clone();
        until("the end of the sandboxes' processes", async || {
            launched.iter().all(|id| processes_of(id).is_empty())
        })
        .await;
    }
}

fn provider(make: impl Fn(EngineSettings, Variable) -> EngineProvider, host: &str) -> EngineProvider {
    let host = Some(host.to_owned());
    let settings = EngineSettings { docker_host: host.clone(), podman_host: host };
    make(settings, Arc::new(|_: &str| None))
}

/// Processes of this machine that name the sandbox: shims, monitors, and those of gVisor.
fn processes_of(id: &SandboxId) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    commands
        .map(|command| String::from_utf8_lossy(&command).replace('\0', " "))
        .filter(|command| command.contains(&id.0))
        .collect()
}

pub fn no_progress() -> ProgressSink {
    Arc::new(|_| ())
}

/// A sandbox that was launched.
pub struct Sandbox {
    pub id: SandboxId,
    pub streams: Option<Streams>,
    pub log: Log,
    /// Container port and host port.
    pub ports: Vec<(u16, u16)>,
}

impl Sandbox {
    pub async fn say(&mut self, line: &str) {
        self.streams.as_mut().expect("it has streams").say(line).await;
    }

    pub async fn line(&mut self) -> String {
        self.streams.as_mut().expect("it has streams").line().await
    }

    /// Everything that it still says.
    pub async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        let stdout = &mut self.streams.as_mut().expect("it has streams").stdout;
        within(stdout.read_to_end(&mut text)).await.expect("it is read");
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Lines over streams.
pub trait Lines {
    async fn say(&mut self, line: &str);
    async fn line(&mut self) -> String;
}

impl Lines for Streams {
    async fn say(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.expect("it is written");
        self.stdin.flush().await.expect("it is flushed");
    }

    async fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            match within(self.stdout.read_u8()).await.expect("a line comes") {
                b'\n' => return String::from_utf8_lossy(&line).into_owned(),
                byte => line.push(byte),
            }
        }
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(ANSWER_MAX, future).await.expect("it comes in time")
}

/// What went to a log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Piece>>>);

type Piece = (LogStream, Vec<u8>);

impl Log {
    pub fn sink(&self) -> LogSink {
        let pieces = self.0.clone();
        Arc::new(move |stream, piece: &[u8]| pieces.lock().unwrap().push((stream, piece.to_vec())))
    }

    pub fn text(&self, stream: LogStream) -> String {
        let pieces = self.0.lock().unwrap();
        let bytes: Vec<u8> =
            pieces.iter().filter(|(of, _)| *of == stream).flat_map(|(_, piece)| piece.clone()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
