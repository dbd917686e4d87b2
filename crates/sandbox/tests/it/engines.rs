//! Engines that are elsewhere, that go away, and that come back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofer_model::{Kind, ProviderName};
use cofer_sandbox::{EngineSettings, Provider as _, Providers, Variable};
use cofer_testkit::engines;
use cofer_testkit::until;
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinSet;

use crate::bed::{Bed, Lines as _, Log};

conformance! {
    one_over_tcp_goes_away_and_comes_back,
}

/// An engine's socket, reachable over TCP while this lives.
async fn forward(address: SocketAddr, host: &str) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let path = host.strip_prefix("unix://").unwrap().to_owned();
    let mut forwarding = JoinSet::new();
    forwarding.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let path = path.clone();
            connections.spawn(async move {
                let mut far = UnixStream::connect(path).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, forwarding)
}

async fn one_over_tcp_goes_away_and_comes_back(bed: &Bed) {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let (address, engine) = forward(any_port, bed.engine.host()).await;
    let provider = bed.provider_at(&format!("tcp://{address}"));
    let launched = provider.launch(&bed.spec("cat"), Log::default().sink()).await.unwrap();
    let mut streams = launched.streams.unwrap();
    streams.say("over TCP").await;
    assert_eq!(streams.line().await, "over TCP");

    drop(engine);
    until("its absence", async || provider.list(&bed.instance).await.is_err()).await;
    let start = Instant::now();
    let error = provider.examine().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(start.elapsed() < Duration::from_secs(6), "it took {:?} to notice", start.elapsed());

    let (_, _engine) = forward(address, bed.engine.host()).await;
    until("its return", async || provider.examine().await.is_ok()).await;
    assert_eq!(provider.list(&bed.instance).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_strongest_that_is_available_is_picked_and_each_is_reported() {
    let (Some(docker), Some(podman)) = (engines::docker(), engines::podman()) else { return };
    let settings =
        EngineSettings { docker_host: Some(docker.host().into()), podman_host: Some(podman.host().into()) };
    let variable: Variable = Arc::new(|_: &str| None);
    let providers = Providers::new(&settings, &variable);
    let picked = async |asked, default, require_sandbox| {
        providers.pick(asked, default, require_sandbox).await.map(|pick| pick.provider.name())
    };
    assert_eq!(picked(None, None, true).await.unwrap(), ProviderName::Gvisor);
    assert_eq!(picked(None, Some(ProviderName::Podman), false).await.unwrap(), ProviderName::Podman);
    assert_eq!(
        picked(Some(ProviderName::Docker), Some(ProviderName::Podman), false).await.unwrap(),
        ProviderName::Docker
    );
    let error = picked(Some(ProviderName::Docker), None, true).await.unwrap_err();
    assert!(error.to_string().contains("require_sandbox"), "{error}");
    let report = providers.report().await;
    let available: Vec<_> =
        report.iter().filter(|one| one.is_available()).map(|one| one.name.as_str()).collect();
    assert_eq!((report.len(), available), (6, vec!["gvisor", "docker", "podman"]));
    assert!(report.iter().all(|one| one.is_available() != one.reason().is_some()), "{report:?}");
}
