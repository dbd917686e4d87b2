//! What the documents promise is there.

use cofer_model::Kind;

use crate::start;

fn document(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    std::fs::read_to_string(format!("{path}{name}")).unwrap()
}

#[tokio::test]
async fn every_setting_is_explained_to_operators() {
    let help = start().cofer(&["serve", "--help"]).await;
    let operating = document("docs/operating.md");
    let words = help.stdout.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    let begins = |word: &&str| {
        ["--", "COFER_", "WORKSPACE_", "ENABLE_"].iter().any(|beginning| word.starts_with(beginning))
    };
    let mut settings: Vec<_> = words.filter(begins).collect();
    settings.retain(|setting| !["--", "--help", "--json"].contains(setting));
    assert!(settings.len() > 60, "{settings:?}");
    for setting in settings {
        assert!(operating.contains(&format!("`{setting}`")), "{setting} is not in docs/operating.md");
    }
}

#[test]
fn every_kind_of_error_is_explained() {
    let errors = document("docs/errors.md");
    for kind in Kind::ALL {
        assert!(
            errors.contains(&format!("| `{}` |", kind.code())),
            "{} is not in docs/errors.md",
            kind.code()
        );
    }
}

#[tokio::test]
async fn every_verb_of_environments_is_explained() {
    let guide = document("docs/environments.md");
    let help = start().cofer(&["env", "--help"]).await.stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let verbs = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next());
    let verbs: Vec<_> = verbs.filter(|verb| *verb != "help").collect();
    assert!(verbs.len() > 12, "{verbs:?}");
    for verb in verbs {
        assert!(guide.contains(&format!("| `cofer env {verb}")), "{verb} is not in docs/environments.md");
    }
    let completions = start().cofer(&["completions", "bash"]).await;
    assert!(
        completions.succeeded().contains("cofer__subcmd__env__subcmd__checkout"),
        "completions know the verbs"
    );
}

#[tokio::test]
async fn every_client_that_is_known_is_explained() {
    let guide = document("docs/clients.md");
    let clients = start().cofer(&["client", "ls", "--json"]).await.json();
    for client in clients.as_array().unwrap() {
        let (name, title) = (client["client"].as_str().unwrap(), client["title"].as_str().unwrap());
        assert!(guide.contains(&format!("| `{name}` | {title} |")), "{name} is not in docs/clients.md");
    }
}

#[test]
fn every_room_is_on_the_map() {
    let map = document("ARCHITECTURE.md");
    for room in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        let room = room.unwrap().file_name().into_string().unwrap();
        assert!(map.contains(&format!("| `{room}` |")), "{room} is not in ARCHITECTURE.md");
    }
}

/// A tester from elsewhere makes up requests, right and wrong, from the API's description, and compares the answers with it.
#[tokio::test]
async fn requests_made_up_from_the_description_are_answered_as_described() {
    let Some(tools) = cofer_testkit::engines::tools() else { return };
    let nowhere = "unix:///nowhere/engine.sock";
    let app = start().variable("COFER_DOCKER_HOST", nowhere).variable("COFER_PODMAN_HOST", nowhere);
    let app = app.arg("--open-openapi").serve().await;
    // Too many made-up tokens are answered with 429, as they should be, and 7.0 is an integer to JSON Schema alone.
    let unfit = "ignored_auth,positive_data_acceptance";
    // No engine is here, so that nothing that was made up is started; 503 says so, and is described.
    let allowed = "[checks.not_a_server_error]\nexpected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"503\"]\n";
    std::fs::write(app.data_dir().join("schemathesis.toml"), allowed).unwrap();
    let tester = tokio::process::Command::new(tools.join("bin/schemathesis"))
        .args([
            "run",
            &format!("{}/api/openapi.json", app.url),
            "--checks=all",
            "--max-examples=30",
            "--seed=2026",
        ])
        .args([&format!("--exclude-checks={unfit}"), "-H", &format!("Authorization: Bearer {}", app.token)])
        .current_dir(app.data_dir())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let report = String::from_utf8_lossy(&tester.stdout);
    assert!(tester.status.success(), "{report}");
    let document = app.get("/api/openapi.json").await.json();
    // All but the document itself, which it has read by then.
    let paths =
        document["paths"].as_object().unwrap().iter().filter(|(path, _)| *path != "/api/openapi.json");
    let operations: usize = paths.map(|(_, operations)| operations.as_object().unwrap().len()).sum();
    assert!(report.contains(&format!("Tested: {operations}")), "{operations} operations: {report}");
    assert!(!app.log().contains("ERROR"), "{}", app.log());
    app.stop().await;
}
