//! A call through Cofer to a server in a container, beside an attach by hand to the same container.

use serde_json::json;

use crate::attach::Attach;
use crate::figures::{median, median_micros, row};
use crate::served::Served;

const ROUNDS: usize = 15;
const CALLS: usize = 200;
const PARAMS: &str = r#"{"name":"echo","arguments":{"text":"hello"}}"#;

pub async fn measure() {
    for provider in ["gvisor", "docker", "podman"] {
        let variable = if provider == "podman" { "COFER_TEST_PODMAN_HOST" } else { "COFER_TEST_DOCKER_HOST" };
        let Ok(host) = std::env::var(variable) else { continue };
        let cofer = Served::cofer().await;
        let status = cofer.register("echo", json!({"provider": provider})).await;
        let container = container_of(&host, &status["workspace_id"]).await;
        let mut by_hand = Attach::new(&host, &container).await;
        let mut caller = cofer.caller("echo", PARAMS).await;
        let (mut floors, mut calls, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut times = Vec::new();
            for _ in 0..CALLS {
                times.push(by_hand.call(PARAMS).await);
            }
            let floor = median_micros(&times);
            times.clear();
            for _ in 0..CALLS {
                times.push(caller.call().await);
            }
            let call = median_micros(&times);
            floors.push(floor);
            calls.push(call);
            ratios.push(call / floor);
        }
        drop(by_hand);
        cofer.stop().await;
        let (floor, call, ratio) = (median(floors), median(calls), median(ratios));
        let figure = format!("{ratio:.2} x ({call:.0} µs beside {floor:.0} µs)");
        row(&format!("{provider}: p50 of a call beside an attach by hand"), &figure, "aim <= 1.5 x");
    }
}

async fn container_of(host: &str, id: &serde_json::Value) -> String {
    let engine = bollard::Docker::connect_with_host(host).expect("the engine").negotiate_version().await;
    let label = format!("cofer.id={}", id.as_str().expect("an id"));
    let filters = std::collections::HashMap::from([("label", vec![label.as_str()])]);
    let options = bollard::query_parameters::ListContainersOptionsBuilder::new().filters(&filters).build();
    let found = engine.expect("the engine").list_containers(Some(options)).await.expect("containers");
    found.into_iter().next().and_then(|container| container.id).expect("the container")
}
