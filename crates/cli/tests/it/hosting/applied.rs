//! Servers that Cofer runs, out of a file: `cofer apply`, and the request behind it.

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, VOLUMES, on_each_provider};

on_each_provider!(a_file_is_applied_as_often_as_one_likes_and_only_a_difference_makes_a_new_container);

/// A file with this text, to be named on a command line.
fn file(host: &Host, text: &str) -> String {
    let path = host.app.data_dir().join("project.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn a_file_is_applied_as_often_as_one_likes_and_only_a_difference_makes_a_new_container(host: Host) {
    let server = |word: &str| {
        format!(
            "[servers.first]\nimage = \"{MISBEHAVING}\"\nprovider = \"{}\"\nvolumes = [\"/data\"]\n\
             environment = {{ WORD = \"{word} ${{SECRET_WORD}}\" }}\nresource_limits = {{ memory = \"128M\" }}\n\
             [servers.elsewhere]\ncommand = \"true\"\n",
            host.provider
        )
    };
    let apply = async |text: &str, more: &[&str]| {
        let file = file(&host, text);
        host.app.cofer(&[&["apply", "-f", &file], more].concat()).await
    };
    let poor = apply(&server("one"), &[]).await;
    assert!(
        poor.failed_with(2).contains("server first: ") && poor.stderr.contains("`SECRET_WORD`"),
        "{poor:?}"
    );
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.app.put("/api/v1/projects/default/secrets/SECRET_WORD", &json!({"value": "hush"})).await;
    let told = format!("+ server first (image {MISBEHAVING})");
    let dry = apply(&server("one"), &["--dry-run"]).await;
    assert_eq!(dry.succeeded(), format!("{told}\n1 change; nothing was done"));
    assert_eq!(host.in_engines().await, Vec::<String>::new());

    assert_eq!(apply(&server("one"), &[]).await.succeeded(), format!("{told}\ndone: 1 change"));
    assert_eq!(host.facts("first", "env", json!({})).await["env"]["WORD"], "one hush");
    let container = host.container("first").await;
    assert_eq!(apply(&server("one"), &[]).await.succeeded(), "nothing to do");
    assert_eq!(host.container("first").await, container, "it was left alone");

    let changed = apply(&server("two"), &[]).await;
    assert_eq!(changed.succeeded(), "~ server first: environment\ndone: 1 change");
    assert_ne!(host.container("first").await, container);
    assert_eq!(host.facts("first", "env", json!({})).await["env"]["WORD"], "two hush");

    let pruned = apply("", &["--prune"]).await;
    assert_eq!(pruned.succeeded(), "- server elsewhere\n- server first\ndone: 2 changes");
    let volumes = host.app.get(VOLUMES).await.json();
    assert_eq!(volumes.as_array().map(Vec::len), Some(1), "its volume stays: {volumes}");
    let volume = volumes[0]["name"].as_str().unwrap();
    assert_eq!(host.app.delete(&format!("{VOLUMES}/{volume}")).await.status, 204);
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.stop().await;
}

#[tokio::test]
async fn what_is_put_is_made_so_and_refusals_leave_everything_as_it_was() {
    let Some(host) = Host::new("docker").await else { return };
    let put = async |query: &str, more: Value| {
        let mut body = json!({"name": "first", "image": MISBEHAVING, "provider": "docker"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.app.put(&format!("{SERVERS}/first{query}"), &body).await
    };
    let dry = put("?dry_run=true", json!({})).await;
    assert_eq!(dry.status, 200, "{dry:?}");
    assert_eq!(dry.json(), json!({"action": "add", "fields": [], "server": null}));
    assert_eq!(host.app.get(SERVERS).await.json(), json!([]));
    let added = put("", json!({})).await;
    assert_eq!((added.status, &added.json()["action"]), (201, &json!("add")), "{added:?}");
    assert_eq!(added.json()["server"]["status"], "ready");
    let same = put("", json!({"restart_policy": "always", "environment": {}})).await;
    assert_eq!((same.status, &same.json()["action"]), (200, &json!("none")), "{same:?}");

    let container = host.container("first").await;
    for (more, refusal, field) in [
        (json!({"name": "other"}), "422 validation_error", "name"),
        (json!({"image": "no such image"}), "422 validation_error", "image"),
        (json!({"volumes": ["data"]}), "422 validation_error", "volumes"),
        (json!({"colour": "red"}), "422 validation_error", "colour"),
        (json!({"image": "cofer-test/not-there"}), "422 validation_error", "image"),
    ] {
        let answer = put("", more.clone()).await;
        assert_eq!(answer.refusal(), refusal, "{more}: {answer:?}");
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{answer:?}");
    }
    assert_eq!(host.container("first").await, container);
    let changed = put("", json!({"max_in_flight": 4, "call_timeout_ms": 5000})).await;
    assert_eq!(changed.json()["fields"], json!(["call_timeout_ms", "max_in_flight"]), "{changed:?}");
    host.works("first").await;
    host.remove("first").await;
    host.stop().await;
}

#[tokio::test]
async fn a_package_of_a_file_gets_its_image_and_a_name_is_used_once() {
    let Some(host) = Host::new("docker").await else { return };
    let time = file(&host, "[servers.time]\nuvx = \"mcp-server-time\"\nbase = \"cofer-test/python\"\n");
    let dry = host.app.cofer(&["apply", "-f", &time, "--dry-run", "--json"]).await.json();
    let changes = dry["changes"].as_array().unwrap();
    assert_eq!((&changes[0]["what"], &changes[1]["what"]), (&json!("image"), &json!("server")), "{dry}");
    assert!(changes[0]["name"].as_str().unwrap().starts_with("cofer-uvx/mcp-server-time:"), "{dry}");

    let elsewhere = file(&host, "[servers.time]\ncommand = \"true\"\n");
    host.app.cofer(&["apply", "-f", &elsewhere]).await.succeeded();
    let image = file(&host, &format!("[servers.time]\nimage = \"{MISBEHAVING}\"\n"));
    let taken = host.app.cofer(&["apply", "-f", &image]).await;
    assert!(taken.failed_with(4).contains("`time` already, which lives elsewhere"), "{taken:?}");
    let both = file(&host, "[servers.x]\nimage = \"a\"\nnpx = \"b\"\n");
    let refused = host.app.cofer(&["apply", "-f", &both]).await;
    assert!(refused.failed_with(2).contains("at `servers.x.npx`"), "{refused:?}");
    host.stop().await;
}
