//! The driver against an engine in memory, on a clock that stands still. One bed knows the API.

mod calls;
mod life;
mod simulation;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofer_mcp::Reply;
use cofer_model::{
    HostedEvent, HostedEventKind, HostedStatus, Isolation, NetworkMode, ResourceLimits, RestartPolicy,
    ServerId, ServerName, Wanted,
};
use cofer_sandbox::{Owner, Rights, SandboxSpec, Stdio};
use serde_json::Value;
use serde_json::value::to_raw_value;

use crate::testing::{Engine, Fake};
use crate::{Bridge, CallRefused, Memory, Plan, PlanError, Planner, Rules, Supervised, Truth};

const SECOND: Duration = Duration::from_secs(1);
/// Of paused time: longer than anything that is meant to happen.
const FOR_EVER: Duration = Duration::from_hours(24);

#[derive(Debug)]
struct TestPlanner {
    engine: Arc<Engine>,
    id: ServerId,
    image: Mutex<String>,
    policy: RestartPolicy,
    bridge: Mutex<Bridge>,
}

#[async_trait]
impl Planner for TestPlanner {
    async fn plan(&self, run: u64) -> Result<Plan, PlanError> {
        Ok(Plan {
            provider: Arc::new(Fake(self.engine.clone())),
            isolation: Isolation::Container,
            spec: SandboxSpec {
                owner: Owner {
                    instance: "test".to_owned(),
                    kind: "mcp_server".to_owned(),
                    id: self.id.0,
                    name: "fake".to_owned(),
                    run,
                },
                image: self.image.lock().unwrap().clone(),
                entrypoint: None,
                cmd: None,
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
            },
            mask: Arc::default(),
            restart_policy: self.policy,
            bridge: self.bridge.lock().unwrap().clone(),
            health_interval: 30 * SECOND,
            warnings: Vec::new(),
        })
    }
}

struct Bed {
    engine: Arc<Engine>,
    planner: Arc<TestPlanner>,
    server: Supervised,
    events: Arc<Mutex<Vec<HostedEvent>>>,
}

impl Bed {
    fn new() -> Self {
        Self::on(Engine::new(), Memory::default(), RestartPolicy::Always)
    }

    fn on(engine: Arc<Engine>, memory: Memory, policy: RestartPolicy) -> Self {
        let planner = Arc::new(TestPlanner {
            engine: engine.clone(),
            id: ServerId::generate(),
            image: Mutex::new("image".to_owned()),
            policy,
            bridge: Mutex::new(Bridge::Stdio { in_flight_max: 1, queue_max: 4, message_bytes_max: 1 << 20 }),
        });
        Self::with(engine, planner, memory)
    }

    fn with(engine: Arc<Engine>, planner: Arc<TestPlanner>, memory: Memory) -> Self {
        let events: Arc<Mutex<Vec<HostedEvent>>> = Arc::default();
        let told = events.clone();
        let rules = Arc::new(Rules { unavailable_spread: Duration::ZERO, ..Rules::default() });
        let name = ServerName::try_from("fake".to_owned()).unwrap();
        let history: crate::History = Arc::new(move |_, event| told.lock().unwrap().push(event));
        let server = Supervised::start(planner.id, name, planner.clone(), memory, rules, history);
        Self { engine, planner, server, events }
    }

    async fn ready() -> Self {
        let bed = Self::new();
        bed.server.want(Wanted::Running);
        bed.until_ready().await;
        bed
    }

    async fn until(&self, is_so: impl FnMut(&Truth) -> bool) -> Truth {
        let mut truth = self.server.truth();
        let Ok(so) = tokio::time::timeout(FOR_EVER, truth.wait_for(is_so)).await else {
            panic!("it never was so: {:?}", self.server.truth().borrow());
        };
        let Ok(truth) = so else { panic!("the driver ended: {:?}", self.server.truth().borrow()) };
        truth.clone()
    }

    async fn until_status(&self, status: HostedStatus) -> Truth {
        self.until(|truth| truth.status == status).await
    }

    async fn until_ready(&self) -> Truth {
        self.until_status(HostedStatus::Ready).await
    }

    /// Until this command was taken in and it is ready.
    async fn until_ready_after(&self, seen: u64) -> Truth {
        self.until(|truth| truth.seen >= seen && truth.status == HostedStatus::Ready).await
    }

    async fn call(&self, method: &str, params: Value, timeout: Duration) -> Result<Value, CallRefused> {
        let params = to_raw_value(&params).unwrap();
        match self.server.call(method, Some(params), timeout).await? {
            Reply::Result(result) => Ok(serde_json::from_str(result.get()).unwrap()),
            Reply::Error(error) => panic!("{error:?}"),
        }
    }

    fn count(&self, kind: HostedEventKind) -> usize {
        self.events.lock().unwrap().iter().filter(|event| event.kind == kind).count()
    }

    async fn removed(self) {
        self.server.remove();
        self.until(|truth| truth.gone).await;
        assert!(self.engine.boxes().is_empty(), "left behind: {:?}", self.engine.boxes());
        assert!(self.engine.running_max() <= 1, "two at once");
    }
}
