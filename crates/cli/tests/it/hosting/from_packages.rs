//! Servers from npm and PyPI without a Dockerfile: real packages, from the registries that the bed can reach.

use cofer_testkit::engines;
use serde_json::{Value, json};

use super::{Host, SERVERS, on_each_provider};

on_each_provider!(
    on gvisor, podman;
    an_npm_package_becomes_a_server_and_its_image_is_used_again,
    a_pypi_package_becomes_a_server_and_its_image_is_used_again,
    a_package_that_does_not_exist_is_refused_in_the_installers_words,
);

async fn with_bases(host: Host) -> Host {
    let provider = host.provider;
    host.stop().await;
    let bases = |start: cofer_testkit::app::Start| {
        let start = start.variable("COFER_NPX_BASE_IMAGE", "cofer-test/npm-base");
        start.variable("COFER_UVX_BASE_IMAGE", "cofer-test/pip-base")
    };
    Host::started(provider, bases).await.unwrap()
}

async fn client(host: &Host) -> bollard::Docker {
    let engine = if host.provider == "podman" { engines::podman() } else { engines::docker() };
    engine.unwrap().client().await.unwrap()
}

/// What an engine says of an image; `None` when it is not there.
async fn made_at(host: &Host, image: &str) -> Option<String> {
    let found = client(host).await.inspect_image(image).await.ok()?;
    Some(format!("{:?} {:?}", found.id, found.created))
}

/// Adds it twice: the first time an image is made, the second time it is found. The image goes at the end, also when the test
/// was stopped half-way the last time.
async fn add_twice(host: &Host, flag: &str, package: &str, more: &[&str]) -> Value {
    let base = if flag == "--npx" { "cofer-test/npm-base" } else { "cofer-test/pip-base" };
    let add = async |name: &str| {
        let args = [&["server", "add", name, flag, package, "--json"], more].concat();
        let ran = host.app.cofer(&args).await;
        ran.succeeded();
        ran.json()
    };
    let first = add("one").await;
    let image = first["image"].as_str().unwrap().to_owned();
    assert!(image.starts_with(&format!("cofer-{}/", flag.trim_start_matches('-'))), "{image}");
    let made = made_at(host, &image).await;
    let second = add("two").await;
    assert_eq!(
        (second["image"].as_str(), made_at(host, &image).await),
        (Some(image.as_str()), made),
        "from {base}"
    );
    for server in [&first, &second] {
        assert_eq!(
            (&server["status"], &server["provider"]),
            (&json!("ready"), &json!(host.provider)),
            "{server:#}"
        );
    }
    first
}

async fn clean_up(host: Host, image: &str) {
    host.remove("one").await;
    host.remove("two").await;
    let options = bollard::query_parameters::RemoveImageOptionsBuilder::new().force(true).build();
    client(&host).await.remove_image(image, Some(options), None).await.unwrap();
    assert_eq!(made_at(&host, image).await, None);
    host.stop().await;
}

async fn an_npm_package_becomes_a_server_and_its_image_is_used_again(host: Host) {
    let host = with_bases(host).await;
    let made = add_twice(&host, "--npx", "@modelcontextprotocol/server-memory", &["--volume", "/data"]).await;
    let listed = host.call("one", "tools/list", json!({})).await.json();
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "create_entities"), "{listed:#}");
    let read = host.try_tool("one", "read_graph", json!({}), 30_000).await;
    assert_eq!(read.status, 200, "{read:?}");
    clean_up(host, made["image"].as_str().unwrap()).await;
}

async fn a_pypi_package_becomes_a_server_and_its_image_is_used_again(host: Host) {
    let host = with_bases(host).await;
    // What follows the dashes is the server's own command line.
    let more = ["--", "--local-timezone", "Europe/Berlin"];
    let made = add_twice(&host, "--uvx", "mcp-server-time", &more).await;
    let now = host.facts("one", "get_current_time", json!({"timezone": "UTC"})).await;
    assert_eq!(now["timezone"], "UTC", "{now:#}");
    clean_up(host, made["image"].as_str().unwrap()).await;
}

async fn a_package_that_does_not_exist_is_refused_in_the_installers_words(host: Host) {
    let host = with_bases(host).await;
    for (flag, package, said) in [
        ("--npx", "@cofer-test/there-is-no-such-package", "404"),
        ("--uvx", "cofer-test-there-is-no-such-package", "No matching distribution"),
    ] {
        let ran = host.app.cofer(&["server", "add", "x", flag, package]).await;
        let error = ran.failed_with(2);
        assert!(error.contains(said) && error.contains(package), "{error}");
        assert!(error.lines().count() <= 40, "{error}");
    }
    assert_eq!(host.app.get(SERVERS).await.json(), json!([]));
    host.stop().await;
}

#[tokio::test]
async fn without_a_base_image_the_error_says_how_to_come_by_one() {
    let Some(host) =
        Host::started("docker", |start| start.variable("COFER_NPX_BASE_IMAGE", "localhost:1/no-such-base"))
            .await
    else {
        return;
    };
    let ran = host.app.cofer(&["server", "add", "x", "--npx", "whatever"]).await;
    let error = ran.failed_with(2);
    for part in ["localhost:1/no-such-base", "docker load", "npx_base_image"] {
        assert!(error.contains(part), "{error}");
    }
    let other = host.app.cofer(&["server", "add", "x", "--uvx", "y", "--base", "localhost:1/other"]).await;
    assert!(other.failed_with(2).contains("localhost:1/other"), "{other:?}");
    for (flag, package) in
        [("--npx", "../x"), ("--npx", "--global"), ("--uvx", "git+https://x/y"), ("--uvx", "a b")]
    {
        let ran = host.app.cofer(&["server", "add", "x", &format!("{flag}={package}")]).await;
        assert!(ran.failed_with(2).contains("package is a name"), "{ran:?}");
    }
    host.stop().await;
}
