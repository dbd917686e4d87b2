use std::collections::BTreeMap;

use cofer_model::{
    HostedConfig, HostedEvent, HostedEventKind, HostedStatus, Kind, LastExit, Moment, NetworkMode,
    ProviderName, ResourceLimits, RestartPolicy, ServerId, Wanted,
};
use cofer_store::{HostedServer, NewHostedServer, Seen};
use serde_json::json;

use crate::{Bed, on_both};

on_both!(
    an_instance_is_decided_once,
    a_server_comes_back_as_it_went_in_in_the_order_of_registration,
    a_name_can_be_used_once_in_each_project,
    what_a_person_wants_and_what_was_seen_do_not_overwrite_each_other,
    a_project_takes_its_servers_and_their_history_with_it,
    the_history_is_read_from_its_end_and_page_by_page,
    the_history_keeps_only_its_newest_part,
    whatever_a_server_said_can_be_kept,
    uses_are_written_down,
);

pub(crate) fn config() -> HostedConfig {
    HostedConfig {
        image: "emergent/mcp-langfuse:latest".to_owned(),
        cmd: Some(vec!["node".to_owned(), "server.js".to_owned()]),
        stdio_bridge: true,
        ports: Vec::new(),
        http_path: "/mcp".to_owned(),
        restart_policy: RestartPolicy::Always,
        environment: BTreeMap::from([("KEY".to_owned(), "${SECRET}".to_owned())]),
        volumes: vec!["/data".to_owned()],
        resource_limits: ResourceLimits::default(),
        provider: None,
        network: NetworkMode::Egress,
        call_timeout_ms: 30_000,
        max_in_flight: 1,
        health_interval_ms: 30_000,
        user: None,
        workdir: None,
    }
}

async fn register(bed: &Bed, project: &str, name: &str) -> ServerId {
    let project = match bed.store.project(&crate::named(project)).await.unwrap() {
        Some(project) => project,
        None => bed.project(project).await,
    };
    let new = NewHostedServer { project_id: project.id, name: server_name(name), config: config() };
    bed.store.create_hosted_server(&new, Moment::now()).await.unwrap()
}

pub(crate) fn server_name(text: &str) -> cofer_model::ServerName {
    text.to_owned().try_into().unwrap()
}

async fn only(bed: &Bed) -> HostedServer {
    let [server] = <[_; 1]>::try_from(bed.store.hosted_servers().await.unwrap()).unwrap();
    server
}

fn event(text: &str) -> HostedEvent {
    let (at, kind) = (Moment::now(), HostedEventKind::Crashed);
    HostedEvent { at, kind, message: text.to_owned(), details: json!({"stderr_tail": text}) }
}

async fn an_instance_is_decided_once(bed: Bed) {
    let first = bed.store.instance(Moment::now()).await.unwrap();
    assert_eq!(bed.another().await.instance(Moment::now()).await.unwrap(), first);
}

async fn a_server_comes_back_as_it_went_in_in_the_order_of_registration(bed: Bed) {
    for name in ["zebra", "ant", "mole"] {
        register(&bed, "web", name).await;
    }
    let servers = bed.store.hosted_servers().await.unwrap();
    let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["zebra", "ant", "mole"]);
    let first = &servers[0];
    assert_eq!((&first.config, first.wanted, first.revision), (&config(), Wanted::Running, 1));
    assert_eq!((first.seen.status, first.project.as_str()), (HostedStatus::Creating, "web"));
}

async fn a_name_can_be_used_once_in_each_project(bed: Bed) {
    register(&bed, "web", "time").await;
    register(&bed, "shop", "time").await;
    let project = bed.store.project(&crate::named("web")).await.unwrap().unwrap();
    let again = NewHostedServer { project_id: project.id, name: server_name("time"), config: config() };
    let error = bed.store.create_hosted_server(&again, Moment::now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
}

async fn what_a_person_wants_and_what_was_seen_do_not_overwrite_each_other(bed: Bed) {
    let id = register(&bed, "web", "time").await;
    let exit = LastExit {
        code: Some(137),
        signal: Some(9),
        oom_killed: true,
        at: Moment::now(),
        stderr_tail: "boom".to_owned(),
    };
    let seen = Seen {
        status: HostedStatus::Restarting,
        runs: 7,
        restart_count: 3,
        last_crash: Some(Moment::now()),
        last_exit: Some(exit),
        sandbox: Some(json!({"id": "abc"})),
    };
    bed.store.note_hosted_seen(id, Some(ProviderName::Gvisor), &seen).await.unwrap();
    let other = HostedConfig { image: "other".to_owned(), ..config() };
    assert!(
        bed.store.change_hosted_config(id, &other, only(&bed).await.placed, Moment::now()).await.unwrap()
    );
    assert!(bed.store.set_hosted_wanted(id, Wanted::Stopped, Moment::now()).await.unwrap());
    let server = only(&bed).await;
    assert_eq!((&server.seen, server.revision, server.wanted), (&seen, 2, Wanted::Stopped));
    assert_eq!((server.config, server.placed), (other, Some(ProviderName::Gvisor)));
    assert!(bed.store.delete_hosted_server(id).await.unwrap());
    assert!(!bed.store.delete_hosted_server(id).await.unwrap());
    assert!(!bed.store.set_hosted_wanted(id, Wanted::Running, Moment::now()).await.unwrap());
    bed.store.note_hosted_seen(id, None, &seen).await.unwrap();
}

async fn a_project_takes_its_servers_and_their_history_with_it(bed: Bed) {
    let id = register(&bed, "web", "time").await;
    bed.store.add_hosted_events(&[(id, event("x"))]).await.unwrap();
    let project = bed.store.project(&crate::named("web")).await.unwrap().unwrap();
    assert!(bed.store.delete_project(project.id).await.unwrap());
    assert!(bed.store.hosted_servers().await.unwrap().is_empty());
    assert!(bed.store.hosted_events(id, None, 10).await.unwrap().is_empty());
    // News of a server that is gone is no error.
    bed.store.add_hosted_events(&[(id, event("late"))]).await.unwrap();
}

async fn the_history_is_read_from_its_end_and_page_by_page(bed: Bed) {
    let id = register(&bed, "web", "time").await;
    let events: Vec<_> = (1..=5).map(|n| (id, event(&n.to_string()))).collect();
    bed.store.add_hosted_events(&events).await.unwrap();
    let mut read = Vec::new();
    let mut cursor = None;
    loop {
        let page = bed.store.hosted_events(id, cursor, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        cursor = Some(last.id);
        read.extend(page.into_iter().map(|recorded| recorded.event.message));
    }
    assert_eq!(read, ["5", "4", "3", "2", "1"]);
}

async fn the_history_keeps_only_its_newest_part(bed: Bed) {
    let (id, other) = (register(&bed, "web", "time").await, register(&bed, "web", "other").await);
    bed.store.add_hosted_events(&[(other, event("untouched"))]).await.unwrap();
    let events: Vec<_> = (1..=1100).map(|n| (id, event(&n.to_string()))).collect();
    bed.store.add_hosted_events(&events).await.unwrap();
    let kept = bed.store.hosted_events(id, None, 2000).await.unwrap();
    assert_eq!((kept.len(), kept[0].event.message.as_str()), (1000, "1100"));
    assert_eq!(bed.store.hosted_events(other, None, 10).await.unwrap().len(), 1);
}

async fn whatever_a_server_said_can_be_kept(bed: Bed) {
    let id = register(&bed, "web", "time").await;
    bed.store.add_hosted_events(&[(id, event("a\0b\u{1b}[31m\u{ffff}"))]).await.unwrap();
    let kept = bed.store.hosted_events(id, None, 1).await.unwrap();
    assert_eq!(kept[0].event.message, "a\u{fffd}b\u{1b}[31m\u{ffff}");
    assert_eq!(kept[0].event.details["stderr_tail"], "a\u{fffd}b\u{1b}[31m\u{ffff}");
}

async fn uses_are_written_down(bed: Bed) {
    let id = register(&bed, "web", "time").await;
    let at = Moment::now();
    bed.store.note_hosted_uses(&BTreeMap::from([(id, at), (ServerId::generate(), at)])).await.unwrap();
    assert_eq!(only(&bed).await.last_used_at, Some(at));
}

#[tokio::test]
async fn of_two_processes_on_one_postgres_one_hosts_and_the_other_takes_over_when_it_ends() {
    let Some(bed) = Bed::postgres().await else { return };
    let (first, second) = (bed.store.clone(), bed.another().await);
    let mut held = first.try_lease().await.unwrap().unwrap();
    assert!(held.is_held().await);
    assert!(second.try_lease().await.unwrap().is_none());
    drop(held);
    cofer_testkit::until("the lease is free", async || second.try_lease().await.unwrap().is_some()).await;
}
