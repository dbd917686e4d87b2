//! External servers, products and tools, beside the hosted ones.

use cofer_model::{
    ExternalConfig, ExternalServer, Kind, Moment, ProductId, ProjectId, Reference, RemoteConfig, ServerId,
    ServerName, SessionMode, StdioConfig,
};
use cofer_store::{
    ExternalChange, InstallError, ListedTool, NewExternalServer, NewHostedServer, NewProduct, ProductServer,
    ServerKind, StoreError,
};
use serde_json::json;

use crate::hosted::{config as hosted_config, server_name};
use crate::{Bed, named, on_both};

on_both!(
    an_external_server_comes_back_as_it_went_in,
    a_name_is_used_once_by_hosted_and_external_servers_together,
    of_many_who_register_one_name_at_once_one_succeeds,
    the_order_of_registration_is_over_all_servers_and_no_place_is_used_twice,
    a_change_touches_only_what_it_names_and_the_register_follows_a_new_name,
    what_is_gone_is_neither_changed_nor_deleted,
    tools_are_kept_to_the_letter_and_in_order,
    a_tool_that_was_switched_off_stays_so_by_its_name,
    tools_go_with_their_server_and_a_late_list_brings_none_back,
    a_product_is_installed_brought_up_to_date_and_removed_with_its_servers,
    a_product_that_clashes_changes_nothing,
    a_project_takes_its_registry_with_it,
);

pub(crate) fn stdio(command: &str) -> ExternalConfig {
    ExternalConfig::Stdio(StdioConfig {
        command: command.to_owned(),
        args: vec!["-y".to_owned(), "naïve 'quoted'".to_owned()],
        env: [("KEY".to_owned(), "${SECRET}".to_owned())].into(),
        cwd: Some("/srv".to_owned()),
    })
}

fn http(url: &str) -> ExternalConfig {
    let headers = [("Authorization".to_owned(), "Bearer ${TOKEN}".to_owned())].into();
    ExternalConfig::Http(RemoteConfig { url: url.to_owned(), headers, oauth: None })
}

pub(crate) async fn project(bed: &Bed, name: &str) -> ProjectId {
    match bed.store.project(&named(name)).await.unwrap() {
        Some(project) => project.id,
        None => bed.project(name).await.id,
    }
}

async fn try_external(
    bed: &Bed,
    project_id: ProjectId,
    name: &str,
    config: ExternalConfig,
) -> Result<ServerId, StoreError> {
    let (enabled, session) = (true, SessionMode::Auto);
    let new = NewExternalServer {
        project_id,
        name: server_name(name),
        description: "what it does".to_owned(),
        config,
        enabled,
        session,
    };
    bed.store.create_external_server(&new, Moment::now()).await
}

pub(crate) async fn external(bed: &Bed, project: ProjectId, name: &str) -> ServerId {
    try_external(bed, project, name, stdio("npx")).await.unwrap()
}

async fn try_hosted(bed: &Bed, project_id: ProjectId, name: &str) -> Result<ServerId, StoreError> {
    let new = NewHostedServer { project_id, name: server_name(name), config: hosted_config() };
    bed.store.create_hosted_server(&new, Moment::now()).await
}

async fn find(bed: &Bed, project: ProjectId, name: &str) -> Option<ExternalServer> {
    bed.store.external_server(project, &named(name)).await.unwrap()
}

async fn names(bed: &Bed, project: ProjectId) -> Vec<String> {
    let servers = bed.store.registered_servers(project).await.unwrap();
    servers.into_iter().map(|server| server.name.to_string()).collect()
}

fn listed(name: &str, tool: &str) -> ListedTool {
    ListedTool { name: name.to_owned(), tool: tool.to_owned() }
}

async fn an_external_server_comes_back_as_it_went_in(bed: Bed) {
    let web = project(&bed, "web").await;
    for config in [stdio("npx"), http("https://host/mcp")] {
        let name = format!("with-{}", config.transport());
        let id = try_external(&bed, web, &name, config.clone()).await.unwrap();
        let found = find(&bed, web, &name).await.unwrap();
        assert_eq!((found.id, &found.config, found.enabled), (id, &config, true));
        assert_eq!((found.description.as_str(), found.session), ("what it does", SessionMode::Auto));
        assert_eq!(bed.store.external_server(web, &Reference::Id(id.0)).await.unwrap(), Some(found));
    }
    let other = project(&bed, "other").await;
    assert_eq!(find(&bed, other, "with-stdio").await, None);
    assert_eq!(find(&bed, web, "with-\0stdio").await, None);
    assert_eq!(bed.store.external_servers(web).await.unwrap().len(), 2);
}

async fn a_name_is_used_once_by_hosted_and_external_servers_together(bed: Bed) {
    let (web, shop) = (project(&bed, "web").await, project(&bed, "shop").await);
    external(&bed, web, "time").await;
    try_hosted(&bed, web, "git").await.unwrap();
    external(&bed, shop, "time").await;
    for taken in [
        try_hosted(&bed, web, "time").await,
        try_external(&bed, web, "git", stdio("x")).await,
        try_external(&bed, web, "time", stdio("x")).await,
    ] {
        assert_eq!(taken.unwrap_err().kind(), Kind::Conflict);
    }
    let id = external(&bed, web, "fetch").await;
    let rename = ExternalChange { name: Some(server_name("git")), ..ExternalChange::default() };
    let error = bed.store.change_external_server(id, &rename, Moment::now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert!(find(&bed, web, "fetch").await.is_some());
    assert_eq!(bed.store.hosted_servers().await.unwrap().len(), 1);
}

async fn of_many_who_register_one_name_at_once_one_succeeds(bed: Bed) {
    let web = project(&bed, "web").await;
    let attempts = (0..16).map(|n| {
        let bed = &bed;
        async move {
            match n % 2 {
                0 => try_hosted(bed, web, "contested").await,
                _ => try_external(bed, web, "contested", stdio("x")).await,
            }
        }
    });
    let mut made = 0;
    for outcome in futures_util::future::join_all(attempts).await {
        match outcome {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.kind(), Kind::Conflict, "{error:?}"),
        }
    }
    assert_eq!((made, names(&bed, web).await), (1, vec!["contested".to_owned()]));
}

async fn the_order_of_registration_is_over_all_servers_and_no_place_is_used_twice(bed: Bed) {
    let web = project(&bed, "web").await;
    external(&bed, web, "zebra").await;
    try_hosted(&bed, web, "ant").await.unwrap();
    let last = external(&bed, web, "mole").await;
    assert_eq!(names(&bed, web).await, ["zebra", "ant", "mole"]);
    let servers = bed.store.registered_servers(web).await.unwrap();
    let kinds: Vec<_> = servers.iter().map(|server| server.kind).collect();
    assert_eq!(kinds, [ServerKind::External, ServerKind::Hosted, ServerKind::External]);
    let highest = servers[2].position;
    assert_eq!(bed.store.hosted_servers().await.unwrap()[0].position, servers[1].position);
    assert_eq!(find(&bed, web, "mole").await.unwrap().position, highest);

    assert!(bed.store.delete_external_server(last).await.unwrap());
    external(&bed, web, "newt").await;
    assert!(find(&bed, web, "newt").await.unwrap().position > highest);
}

async fn a_change_touches_only_what_it_names_and_the_register_follows_a_new_name(bed: Bed) {
    let web = project(&bed, "web").await;
    let id = external(&bed, web, "time").await;
    let before = find(&bed, web, "time").await.unwrap();
    let later = before.created_at.after(std::time::Duration::from_secs(5));
    let change = ExternalChange { enabled: Some(false), ..ExternalChange::default() };
    assert!(bed.store.change_external_server(id, &change, later).await.unwrap());
    let after = find(&bed, web, "time").await.unwrap();
    assert_eq!(after, ExternalServer { enabled: false, updated_at: later, ..before.clone() });

    let change = ExternalChange {
        name: Some(server_name("clock")),
        config: Some(http("https://host")),
        session: Some(SessionMode::PerClient),
        description: Some(String::new()),
        ..ExternalChange::default()
    };
    assert!(bed.store.change_external_server(id, &change, later).await.unwrap());
    let after = find(&bed, web, "clock").await.unwrap();
    assert_eq!((after.config, after.session), (http("https://host"), SessionMode::PerClient));
    assert_eq!((names(&bed, web).await, after.position), (vec!["clock".to_owned()], before.position));
    external(&bed, web, "time").await;
}

async fn what_is_gone_is_neither_changed_nor_deleted(bed: Bed) {
    let web = project(&bed, "web").await;
    let nobody = ServerId::generate();
    assert!(!bed.store.delete_external_server(nobody).await.unwrap());
    assert!(
        !bed.store.change_external_server(nobody, &ExternalChange::default(), Moment::now()).await.unwrap()
    );
    assert!(!bed.store.set_tool_enabled(nobody, "x", true).await.unwrap());
    assert_eq!(bed.store.delete_product(ProductId::generate()).await.unwrap(), None);
    assert!(bed.store.delete_project(web).await.unwrap());
    assert_eq!(try_external(&bed, web, "late", stdio("x")).await.unwrap_err().kind(), Kind::NotFound);
}

async fn tools_are_kept_to_the_letter_and_in_order(bed: Bed) {
    let web = project(&bed, "web").await;
    let (first, second) = (external(&bed, web, "zebra").await, try_hosted(&bed, web, "ant").await.unwrap());
    let odd = r#"{ "z":1, "a":1e400, "n":12345678901234567890123, "z":2, "x-unknown":{"\u0000":"ü 🦀"} }"#;
    let huge = format!("{{\"schema\":\"{}\"}}", "s".repeat(1 << 20));
    let tools = [listed("b.tool", odd), listed("a tool/ü", &huge), listed("b.tool", odd)];
    assert!(bed.store.replace_tools(second, &tools).await.unwrap());
    assert!(bed.store.replace_tools(first, &[listed("x", "{}")]).await.unwrap());
    let kept = bed.store.tools_of(web).await.unwrap();
    let places: Vec<_> = kept.iter().map(|tool| (tool.server_id, tool.name.as_str())).collect();
    assert_eq!(places, [(first, "x"), (second, "a tool/ü"), (second, "b.tool")]);
    assert_eq!((kept[1].tool.as_str(), kept[2].tool.as_str()), (huge.as_str(), odd));
    assert!(kept.iter().all(|tool| tool.enabled));
    assert_eq!(bed.store.tool_counts(web).await.unwrap(), [(first, 1), (second, 2)].into());
    assert_eq!(bed.store.tools_of_server(second).await.unwrap(), kept[1..]);
}

async fn a_tool_that_was_switched_off_stays_so_by_its_name(bed: Bed) {
    let web = project(&bed, "web").await;
    let id = external(&bed, web, "time").await;
    bed.store.replace_tools(id, &[listed("a", "1"), listed("b", "2")]).await.unwrap();
    assert!(bed.store.set_tool_enabled(id, "b", false).await.unwrap());
    assert!(!bed.store.set_tool_enabled(id, "c", false).await.unwrap());
    bed.store.replace_tools(id, &[listed("c", "3"), listed("b", "new"), listed("a", "1")]).await.unwrap();
    let kept = bed.store.tools_of_server(id).await.unwrap();
    let states: Vec<_> = kept.iter().map(|tool| (tool.name.as_str(), tool.enabled)).collect();
    assert_eq!(states, [("c", true), ("b", false), ("a", true)]);
    assert!(bed.store.set_tool_enabled(id, "b", true).await.unwrap());
    assert!(bed.store.tools_of_server(id).await.unwrap()[1].enabled);
}

async fn tools_go_with_their_server_and_a_late_list_brings_none_back(bed: Bed) {
    let web = project(&bed, "web").await;
    let (gone, hosted) = (external(&bed, web, "time").await, try_hosted(&bed, web, "git").await.unwrap());
    for id in [gone, hosted] {
        assert!(bed.store.replace_tools(id, &[listed("a", "1")]).await.unwrap());
    }
    assert!(bed.store.delete_external_server(gone).await.unwrap());
    assert!(bed.store.delete_hosted_server(hosted).await.unwrap());
    assert!(bed.store.tools_of(web).await.unwrap().is_empty());
    assert!(!bed.store.replace_tools(gone, &[listed("a", "1")]).await.unwrap());
    assert!(bed.store.tools_of_server(gone).await.unwrap().is_empty());
}

fn product(project_id: ProjectId, version: &str, servers: &[(&str, &str)]) -> NewProduct {
    let server = |(name, command): &(&str, &str)| ProductServer {
        name: server_name(name),
        description: String::new(),
        config: stdio(command),
        enabled: true,
        session: SessionMode::Auto,
    };
    NewProduct {
        project_id,
        name: "kit".to_owned(),
        version: version.to_owned(),
        manifest: json!({"name": "kit", "version": version}),
        servers: servers.iter().map(server).collect(),
    }
}

async fn a_product_is_installed_brought_up_to_date_and_removed_with_its_servers(bed: Bed) {
    let web = project(&bed, "web").await;
    external(&bed, web, "own").await;
    let first = product(web, "1", &[("search", "a"), ("fetch", "a"), ("old", "a")]);
    let installed = bed.store.install_product(&first, Moment::now()).await.unwrap();
    assert_eq!((installed.changed.len(), installed.removed.len()), (3, 0));
    assert_eq!(names(&bed, web).await, ["own", "search", "fetch", "old"]);
    let search = find(&bed, web, "search").await.unwrap();
    assert_eq!(search.product_id, Some(installed.product));
    let off = ExternalChange { enabled: Some(false), ..ExternalChange::default() };
    bed.store.change_external_server(search.id, &off, Moment::now()).await.unwrap();

    let again = bed.store.install_product(&first, Moment::now()).await.unwrap();
    assert_eq!((again.changed.len(), again.removed.len(), again.product), (0, 0, installed.product));

    let second = product(web, "2", &[("search", "b"), ("fetch", "a"), ("new", "a")]);
    let upgraded = bed.store.install_product(&second, Moment::now()).await.unwrap();
    let new = find(&bed, web, "new").await.unwrap();
    assert_eq!(upgraded.changed, [search.id, new.id]);
    assert_eq!(upgraded.removed.len(), 1);
    assert_eq!(names(&bed, web).await, ["own", "search", "fetch", "new"]);
    let search = find(&bed, web, "search").await.unwrap();
    assert_eq!((search.config, search.enabled), (stdio("b"), false));
    let [kept] = <[_; 1]>::try_from(bed.store.products(web).await.unwrap()).unwrap();
    assert_eq!((kept.version.as_str(), &kept.manifest), ("2", &second.manifest));
    assert_eq!(bed.store.product(web, &named("kit")).await.unwrap().unwrap().id, kept.id);

    assert_eq!(bed.store.delete_product(kept.id).await.unwrap().unwrap().len(), 3);
    assert_eq!(names(&bed, web).await, ["own"]);
    assert_eq!(bed.store.external_servers(web).await.unwrap().len(), 1);
}

async fn a_product_that_clashes_changes_nothing(bed: Bed) {
    let web = project(&bed, "web").await;
    bed.store.install_product(&product(web, "1", &[("a", "x")]), Moment::now()).await.unwrap();
    try_hosted(&bed, web, "mine").await.unwrap();
    let clash = product(web, "2", &[("b", "x"), ("mine", "x")]);
    match bed.store.install_product(&clash, Moment::now()).await.unwrap_err() {
        InstallError::NameTaken(name) => assert_eq!(name, ServerName::try_from("mine".to_owned()).unwrap()),
        other @ InstallError::Store(_) => panic!("{other:?}"),
    }
    assert_eq!(names(&bed, web).await, ["a", "mine"]);
    assert_eq!(bed.store.products(web).await.unwrap()[0].version, "1");
    let nowhere = product(ProjectId::generate(), "1", &[]);
    let error = bed.store.install_product(&nowhere, Moment::now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

async fn a_project_takes_its_registry_with_it(bed: Bed) {
    let web = project(&bed, "web").await;
    let id = external(&bed, web, "time").await;
    bed.store.replace_tools(id, &[listed("a", "1")]).await.unwrap();
    bed.store.install_product(&product(web, "1", &[("kit", "x")]), Moment::now()).await.unwrap();
    assert!(bed.store.delete_project(web).await.unwrap());
    assert!(bed.store.tools_of_server(id).await.unwrap().is_empty());
    assert!(names(&bed, web).await.is_empty() && bed.store.products(web).await.unwrap().is_empty());
    assert!(bed.store.external_servers(web).await.unwrap().is_empty());
}
