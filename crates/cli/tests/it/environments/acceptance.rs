//! The acceptance criteria of the document that environments come from, each a test named after it.

use std::path::Path;

use cofer_testkit::until;
use serde_json::json;

use super::{IMAGE, Place, on_each_engine};

on_each_engine!(
    create_makes_a_worktree_and_a_container_and_answers_as_container_use_does,
    from_git_ref_becomes_the_branch_and_the_first_checkout,
    the_same_id_without_allow_replace_is_a_conflict_and_the_old_one_stays,
    run_cmd_answers_with_the_last_512_lines_and_the_exit_code,
    background_with_ports_answers_with_an_endpoint_for_each,
    longer_than_the_timeout_ends_the_whole_process_tree,
    while_a_command_prints_no_more_than_a_ring_is_held,
    destroy_removes_container_and_worktree_and_tells_what_it_removed,
    processes_that_are_left_are_ended_by_force_and_how_they_ended_is_told,
    an_unknown_environment_is_not_found_and_sending_again_will_not_help,
    at_the_limit_of_environments_a_new_one_is_refused,
    every_call_is_logged_with_time_and_mode,
);

// Requirement 1

async fn create_makes_a_worktree_and_a_container_and_answers_as_container_use_does(place: Place) {
    let mut agent = place.agent().await;
    let arguments = json!({"title": "a feature", "image": IMAGE, "from_git_ref": "main"});
    let result = agent.call("environment_create", arguments).await;
    let made: serde_json::Value =
        serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).expect("the first block is pure JSON");
    assert_eq!(made, result["structuredContent"]);
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["title"], "a feature");
    assert_eq!(made["config"]["base_image"], IMAGE);
    assert_eq!(made["config"]["workdir"], "/workdir");
    assert_eq!(made["remote_ref"], format!("cofer/{id}"));
    for verb in ["checkout", "log", "diff"] {
        let command = format!("cofer env {verb} {id}");
        assert_eq!(made[format!("{verb}_command")], command);
        assert_eq!(made[format!("{verb}_command_to_share_with_user")], command);
    }
    let worktree = place.path.join(".cofer/worktrees").join(id);
    assert_eq!(std::fs::read_to_string(worktree.join("README.md")).unwrap(), "one\ntwo\nthree\n");
    // Nothing is copied: what is written on one side is there on the other.
    std::fs::write(worktree.join("from outside"), "x").unwrap();
    assert_eq!(agent.run(id, "cat 'from outside'; echo y > 'from inside'").await["stdout"], "x");
    assert_eq!(std::fs::read_to_string(worktree.join("from inside")).unwrap(), "y\n");
    agent.destroy(id).await;
    agent.leave().await;
}

async fn from_git_ref_becomes_the_branch_and_the_first_checkout(place: Place) {
    let first = place.git(&["rev-parse", "HEAD"]);
    place.git(&["tag", "v1"]);
    place.git(&["update-ref", "refs/remotes/origin/elsewhere", "HEAD"]);
    std::fs::write(place.path.join("later"), "x").unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message", "second"]);
    let mut agent = place.agent().await;
    for reference in ["v1", "HEAD~1", "origin/elsewhere", &first[..12]] {
        let made = agent.done("environment_create", json!({"title": "t", "from_git_ref": reference})).await;
        let id = made["id"].as_str().unwrap();
        assert_eq!(place.git(&["rev-parse", &format!("cofer/{id}")]), first, "{reference}");
        assert_eq!(place.git(&["ls-remote", "cofer", &format!("refs/heads/cofer/{id}")])[..40], first);
        assert_eq!(agent.run(id, "ls").await["stdout"], "README.md\n");
        agent.destroy(id).await;
    }
    for bad in ["nothing", "-n", "--upload-pack=touch x", "HEAD\n", "a..b"] {
        let error = agent.refused("environment_create", json!({"title": "t", "from_git_ref": bad})).await;
        assert_eq!(error["kind"], "invalid", "{bad}: {error}");
    }
    agent.leave().await;
}

async fn the_same_id_without_allow_replace_is_a_conflict_and_the_old_one_stays(place: Place) {
    let mut agent = place.agent().await;
    let arguments = json!({"title": "first", "environment_id": "mine"});
    agent.done("environment_create", arguments.clone()).await;
    agent.run("mine", "echo precious > kept; touch /in-the-container").await;
    let error = agent.refused("environment_create", arguments).await;
    assert_eq!(error["kind"], "conflict");
    assert_eq!(agent.run("mine", "cat kept; ls /in-the-container").await["stdout"], "precious\n/in-the-container\n");
    let replacing = json!({"title": "second", "environment_id": "mine", "allow_replace": true});
    assert_eq!(agent.done("environment_create", replacing).await["title"], "second");
    assert_eq!(agent.run("mine", "ls").await["stdout"], "README.md\n");
    agent.destroy("mine").await;
    agent.leave().await;
}

#[tokio::test]
async fn without_the_remote_cofer_create_asks_for_cofer_init() {
    let Some(place) = Place::uninitialised("podman").await else { return };
    let mut agent = place.agent().await;
    let error = agent.refused("environment_create", json!({"title": "t"})).await;
    assert_eq!(error["kind"], "precondition_failed");
    assert!(error["recovery"].as_str().unwrap().contains("cofer init"), "{error}");
    assert!(!place.path.join(".cofer").exists());
    place.start.cofer(&["init", "-C", place.source()]).await.succeeded();
    place.start.cofer(&["init", "-C", place.source()]).await.succeeded();
    let id = agent.create().await;
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    agent.destroy(&id).await;
    agent.leave().await;
}

// Requirement 2

async fn run_cmd_answers_with_the_last_512_lines_and_the_exit_code(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let arguments = json!({"environment_id": id, "command": "seq 1 2000; seq 1 600 >&2; exit 7", "shell": "ash"});
    let result = agent.call("environment_run_cmd", arguments).await;
    assert_eq!(result["isError"], false, "a command that fails is no tool error: {result}");
    let ran = &result["structuredContent"];
    let lines = |field: &str| ran[field].as_str().unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((lines("stdout").len(), lines("stderr").len()), (512, 512));
    assert_eq!((lines("stdout")[0].as_str(), lines("stdout")[511].as_str()), ("1489", "2000"));
    assert_eq!(lines("stderr")[0], "89");
    assert_eq!((&ran["exit_code"], &ran["truncated"], &ran["mode"]), (&json!(7), &json!(true), &json!("foreground")));
    assert!(ran["elapsed_ms"].is_u64());
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("\nstderr: 89\n"), "{text}");
    assert!(text.ends_with(&format!("have been committed and pushed to cofer/{id} remote ref")), "{text}");
    let killed = agent.run(&id, "kill -9 $$").await;
    assert_eq!((&killed["exit_code"], &killed["signal"]), (&json!(null), &json!(9)));
    let error = agent.refused("environment_run_cmd", json!({"environment_id": id, "command": "x", "shell": "python"})).await;
    assert_eq!((error["kind"].as_str(), error["message"].as_str()), (Some("invalid"), Some("unsupported shell: python")));
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn background_with_ports_answers_with_an_endpoint_for_each(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "echo 'hello from the background' > index.html").await;
    let arguments = json!({
        "environment_id": id, "background": true, "ports": [8080],
        "command": "echo serving; exec httpd -f -p 8080 -h /workdir",
    });
    let result = agent.call("environment_run_cmd", arguments.clone()).await;
    assert_eq!(result["isError"], false, "{result:#}");
    let started = &result["structuredContent"];
    assert_eq!(started["mode"], "background");
    let background = started["background_id"].as_str().unwrap();
    let endpoint = &started["endpoints"]["8080"];
    let (internal, external) =
        (endpoint["environment_internal"].as_str().unwrap(), endpoint["host_external"].as_str().unwrap());
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(&started["endpoints"].to_string()), "{text}");
    let page = reqwest::get(external.replace("tcp://", "http://")).await.unwrap().text().await.unwrap();
    assert_eq!(page, "hello from the background\n");
    let inside = agent.run(&id, &format!("wget -q -O - {}", internal.replace("tcp://", "http://"))).await;
    assert_eq!(inside["stdout"], "hello from the background\n");
    let clash = agent.refused("environment_run_cmd", arguments).await;
    assert_eq!(clash["kind"], "conflict");
    let listed = agent.done("environment_background_list", json!({"environment_id": id})).await;
    assert_eq!((&listed["background"][0]["running"], listed["background"].as_array().unwrap().len()), (&json!(true), 1));
    let which = json!({"environment_id": id, "background_id": background});
    assert_eq!(agent.done("environment_background_read", which.clone()).await["output"], "serving\n");
    agent.done("environment_background_stop", which.clone()).await;
    assert_eq!(agent.refused("environment_background_read", which).await["kind"], "not_found");
    let dying = json!({"environment_id": id, "background": true, "command": "echo no such luck; exit 4"});
    let error = agent.refused("environment_run_cmd", dying).await;
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("exit code 4") && message.contains("no such luck"), "{message}");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn longer_than_the_timeout_ends_the_whole_process_tree(place: Place) {
    let place = place.with("COHERRA_TIMEOUT_RUN", "1500");
    let mut agent = place.agent().await;
    let id = agent.create().await;
    // One that ignores SIGTERM, one that detached itself, and the shell.
    let command = "echo so far; (trap '' TERM; while :; do sleep 1; done) & setsid sh -c 'sleep 1000' & sleep 1000";
    let result = agent.call("environment_run_cmd", json!({"environment_id": id, "command": command})).await;
    assert_eq!(result["isError"], true);
    let ran = &result["structuredContent"];
    assert_eq!((&ran["error"]["kind"], &ran["exit_code"]), (&json!("timeout"), &json!(null)), "{ran:#}");
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("so far\n"), &json!("")));
    let left = agent.run(&id, "ps | grep -c '[s]leep'").await;
    assert_eq!(left["stdout"], "0\n", "{left}");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn while_a_command_prints_no_more_than_a_ring_is_held(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "true").await;
    let pid = agent.child.id().unwrap();
    let before = peak_bytes(pid);
    let ran = agent.run(&id, "yes 0123456789abcdef | head -c 1073741824; echo; echo the end").await;
    assert!(ran["stdout"].as_str().unwrap().ends_with("\nthe end\n"));
    assert!(ran["stdout"].as_str().unwrap().len() <= 64 << 10);
    assert_eq!((&ran["exit_code"], &ran["truncated"]), (&json!(0), &json!(true)));
    let grown = peak_bytes(pid).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more were held");
    agent.destroy(&id).await;
    agent.leave().await;
}

/// The most memory that a process ever had.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

// Requirement 3

async fn destroy_removes_container_and_worktree_and_tells_what_it_removed(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "echo x > y").await;
    let worktree = place.path.join(".cofer/worktrees").join(&id);
    let result = agent.call("environment_destroy", json!({"environment_id": id})).await;
    let destroyed = &result["structuredContent"];
    assert_eq!(serde_json::from_str::<serde_json::Value>(result["content"][0]["text"].as_str().unwrap()).unwrap(), *destroyed);
    assert_eq!(destroyed["environment_id"], id);
    let removed: Vec<&str> = destroyed["removed_paths"].as_array().unwrap().iter().filter_map(|path| path.as_str()).collect();
    assert!(removed.iter().any(|path| Path::new(path) == worktree), "{removed:?}");
    assert_eq!(destroyed["stopped_containers"].as_array().unwrap().len(), 1);
    assert_eq!(destroyed["stopped_containers"][0]["ended"], "terminated");
    assert_eq!(destroyed["warnings"], json!([]));
    assert_eq!(place.traces(), [""; 0]);
    agent.leave().await;
}

async fn processes_that_are_left_are_ended_by_force_and_how_they_ended_is_told(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let stubborn = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 &";
    let ran = agent.run(&id, stubborn).await;
    assert_eq!(ran["exit_code"], 0, "a command that leaves a daemon ends when it ends: {ran}");
    assert!(agent.run(&id, "ps").await["stdout"].as_str().unwrap().contains("trap"), "the daemon lives on");
    let destroyed = agent.destroy(&id).await;
    assert_eq!(destroyed["stopped_containers"][0]["ended"], "killed");
    until("no process of it is left", async || !any_process_with("trap \"\" TERM; while")).await;
    assert_eq!(place.traces(), [""; 0]);
    agent.leave().await;
}

fn any_process_with(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(words))
}

async fn an_unknown_environment_is_not_found_and_sending_again_will_not_help(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    for tool in ["environment_destroy", "environment_run_cmd", "environment_open", "environment_log"] {
        let error = agent.refused(tool, json!({"environment_id": "no-such", "command": "true"})).await;
        assert_eq!((&error["kind"], &error["retryable"]), (&json!("not_found"), &json!(false)));
        assert!(error["recovery"].as_str().unwrap().contains("sending this again will not help"), "{error}");
    }
    agent.destroy(&id).await;
    assert_eq!(agent.refused("environment_destroy", json!({"environment_id": id})).await["kind"], "not_found");
    for bad in ["../outside", "", "a/b", "A B", "x\u{0}"] {
        let error = agent.refused("environment_destroy", json!({"environment_id": bad})).await;
        assert_eq!(error["kind"], "invalid", "{bad:?}");
    }
    agent.leave().await;
}

// Requirement 4

#[tokio::test]
async fn the_three_tools_are_registered_with_the_arguments_of_container_use() {
    let Some(place) = Place::new("podman").await else { return };
    let mut agent = place.agent_with(&["--tools", "core"]).await;
    let tools = agent.ask("tools/list", json!({})).await;
    let tools = tools["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["environment_create", "environment_destroy", "environment_run_cmd"]);
    let required = |tool: usize| tools[tool]["inputSchema"]["required"].clone();
    assert_eq!(required(0), json!(["environment_source", "title"]));
    assert_eq!(required(1), json!(["environment_source", "environment_id"]));
    assert_eq!(required(2), json!(["environment_source", "environment_id"]));
    let run = &tools[2]["inputSchema"]["properties"];
    for argument in ["explanation", "command", "shell", "background", "use_entrypoint", "ports"] {
        assert!(run.get(argument).is_some(), "{argument}: {run}");
    }
    let unknown = agent.call("environment_file_read", json!({"environment_id": "x", "target_file": "y"})).await;
    assert_eq!(unknown["isError"], true);
    assert!(agent.hello["instructions"].as_str().unwrap().contains("environment_create"));
    agent.leave().await;
}

async fn at_the_limit_of_environments_a_new_one_is_refused(place: Place) {
    let place = place.with("COFER_MAX_ENVIRONMENTS", "2");
    let mut agent = place.agent().await;
    let (one, two) = (agent.create().await, agent.create().await);
    let error = agent.refused("environment_create", json!({"title": "three"})).await;
    assert_eq!((&error["kind"], &error["retryable"]), (&json!("limit_exceeded"), &json!(true)));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&one) && message.contains(&two), "{message}");
    agent.destroy(&one).await;
    let three = agent.create().await;
    agent.destroy(&two).await;
    agent.destroy(&three).await;
    agent.leave().await;
}

#[tokio::test]
async fn a_failure_tells_its_step_what_to_do_and_a_trace_id_that_the_log_has_too() {
    let Some(place) = Place::new("podman").await else { return };
    let mut agent = place.agent().await;
    let error = agent.refused("environment_create", json!({"title": "t", "image": "cofer-test/no-such-image"})).await;
    assert_eq!((&error["kind"], &error["step"]), (&json!("precondition_failed"), &json!("image")), "{error}");
    assert_eq!(place.traces(), [""; 0], "what was half made is undone");
    let failing = place.path.join(".cofer/environment.json");
    std::fs::write(&failing, json!({"setup_commands": ["echo a; echo b >&2; exit 5"]}).to_string()).unwrap();
    let error = agent.refused("environment_create", json!({"title": "t"})).await;
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["step"], "setup");
    assert!(message.contains("exit code 5") && message.contains("stdout: a") && message.contains("stderr: b"), "{message}");
    assert_eq!(place.traces(), [""; 0]);
    let log = agent.leave().await;
    assert!(log.contains(error["trace_id"].as_str().unwrap()), "{log}");
}

async fn every_call_is_logged_with_time_and_mode(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "echo a secret thing").await;
    let serving = json!({"environment_id": id, "background": true, "command": "sleep 1000"});
    agent.done("environment_run_cmd", serving).await;
    agent.destroy(&id).await;
    let log = agent.leave().await;
    let calls: Vec<&str> = log.lines().filter(|line| line.contains("tool=")).collect();
    assert_eq!(calls.len(), 4, "{log}");
    for (line, mode) in calls.iter().zip(["foreground", "foreground", "background", "foreground"]) {
        let time = line.split_whitespace().next().unwrap();
        assert!(time.len() >= 20 && time.contains('T') && time.ends_with('Z'), "{line}");
        for part in [format!("mode=\"{mode}\""), format!("environment=\"{id}\""), "outcome=\"ok\"".into(), "duration_ms=".into(), "trace_id=".into()] {
            assert!(line.contains(&part), "{part}: {line}");
        }
    }
}
