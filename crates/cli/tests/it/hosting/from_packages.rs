//! Servers from npm and PyPI without a Dockerfile: real packages, from the registries that the bed can reach.

use std::time::Duration;

use cofer_testkit::app::Ran;
use cofer_testkit::engines;
use serde_json::{Value, json};

use super::examples::introduces_itself;
use super::{Host, SERVERS, on_each_provider};

on_each_provider!(
    on gvisor, podman;
    an_npm_package_becomes_a_server_and_its_image_is_used_again,
    server_filesystem_from_npm_keeps_its_files_in_a_volume,
    a_pypi_package_becomes_a_server_and_its_image_is_used_again,
    a_package_that_does_not_exist_is_refused_in_the_installers_words,
);

/// Registries have been seen to be silent for minutes. That is nothing that Cofer could mend.
const REGISTRY_PATIENCE: Duration = Duration::from_mins(4);
const REGISTRY_ATTEMPTS: usize = 3;
/// What is said of one that does not answer: by npm, by pip, by Cofer.
const REGISTRY_IS_SILENT: [&str; 6] =
    ["ETIMEDOUT", "ECONNRESET", "EAI_AGAIN", "ERR_SOCKET_TIMEOUT", "Read timed out", "nothing was heard for"];

/// `cofer server …`, once more where it was the registry that did not answer.
async fn ask_registry(host: &Host, args: &[&str]) -> Ran {
    for attempt in 1.. {
        let ran = tokio::time::timeout(REGISTRY_PATIENCE, host.app.command(args).output()).await;
        let is_last = attempt == REGISTRY_ATTEMPTS;
        match ran {
            Ok(ran) => {
                let ran = Ran::from(ran.unwrap());
                if is_last || !REGISTRY_IS_SILENT.iter().any(|words| ran.stderr.contains(words)) {
                    return ran;
                }
            }
            Err(_late) => assert!(!is_last, "the registry did not answer in {attempt} attempts"),
        }
    }
    unreachable!("it ends with the last attempt")
}

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
        let ran = ask_registry(host, &args).await;
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
    for server in host.app.get(SERVERS).await.json().as_array().unwrap() {
        host.remove(server["name"].as_str().unwrap()).await;
    }
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

async fn server_filesystem_from_npm_keeps_its_files_in_a_volume(host: Host) {
    let host = with_bases(host).await;
    let package = "@modelcontextprotocol/server-filesystem";
    let args = ["server", "add", "files", "--npx", package, "--volume", "/data", "--json", "--", "/data"];
    let ran = ask_registry(&host, &args).await;
    ran.succeeded();
    let made = ran.json();
    let tools = introduces_itself(&host, "files").await;
    assert!(tools.iter().any(|tool| tool == "write_file"), "{tools:?}");
    let written =
        host.tool("files", "write_file", json!({"path": "/data/note.txt", "content": "kept"})).await;
    assert!(written.contains("Successfully"), "{written}");
    host.post("files", "restart").await;
    assert_eq!(host.tool("files", "read_text_file", json!({"path": "/data/note.txt"})).await, "kept");
    let outside = host.try_tool("files", "read_text_file", json!({"path": "/etc/passwd"}), 30_000).await;
    assert_eq!((outside.status, &outside.json()["result"]["isError"]), (200, &json!(true)), "{outside:?}");
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
        let ran = ask_registry(&host, &["server", "add", "x", flag, package]).await;
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
