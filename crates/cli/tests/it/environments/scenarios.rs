//! What agents do all day, and what goes wrong while they do it.

use std::os::unix::fs::PermissionsExt;

use cofer_testkit::until;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Agent, Place, git, on_each_engine};

on_each_engine!(
    ten_agents_at_once_on_one_repository,
    a_single_tenant_need_not_name_its_environment,
    an_agent_that_is_killed_in_the_middle_of_a_command_is_followed_by_one_that_goes_on,
    a_cancelled_command_ends_with_all_that_it_started,
    a_command_tells_its_progress,
    what_changes_is_committed_with_the_explanation_and_nothing_is_when_nothing_did,
    files_of_any_name_are_committed_as_git_would,
    configuration_is_read_and_can_be_changed,
    services_are_reached_by_name,
    caches_are_shared_and_secrets_are_not_written_down,
    a_container_that_was_removed_is_made_anew,
    an_image_of_the_environment_is_kept,
);

/// As container-use's own test does it.
async fn ten_agents_at_once_on_one_repository(place: Place) {
    let place = place.with("COFER_MAX_ENVIRONMENTS", "10");
    let work = (0..10).map(|number| {
        let place = &place;
        async move {
            let mut agent = place.agent().await;
            let id = agent.create().await;
            for file in 0..3 {
                let name = format!("server{number}_file{file}.txt");
                let arguments = json!({"environment_id": id, "target_file": name, "contents": format!("{number} {file}\n")});
                agent.done("environment_file_write", arguments).await;
            }
            let first = json!({"environment_id": id, "target_file": format!("server{number}_file0.txt"), "should_read_entire_file": true});
            assert_eq!(agent.done("environment_file_read", first).await["content"], format!("{number} 0\n"));
            let command = format!("ls -la server{number}_*.txt | wc -l");
            let counted = agent.call("environment_run_cmd", json!({"environment_id": id, "command": command})).await;
            assert_eq!(counted["content"][0]["text"].as_str().unwrap().lines().next(), Some("3"), "{counted}");
            assert_eq!(place.git(&["rev-list", "--count", &format!("main..cofer/{id}")]), "3");
            agent.destroy(&id).await;
            agent.leave().await;
            id
        }
    });
    let mut ids = join_all(work).await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    assert_eq!(place.traces(), [""; 0]);
}

async fn a_single_tenant_need_not_name_its_environment(place: Place) {
    let mut agent = place.agent_with(&["--single-tenant"]).await;
    let tools = agent.ask("tools/list", json!({})).await;
    let arguments = |name: &str| -> Vec<String> {
        let tools = tools["tools"].as_array().unwrap();
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        tool["inputSchema"]["properties"].as_object().unwrap().keys().cloned().collect()
    };
    for (tool, source, id) in [
        ("environment_create", true, true),
        ("environment_list", true, false),
        ("environment_open", true, true),
        ("environment_log", true, true),
        ("environment_run_cmd", false, false),
        ("environment_file_read", false, false),
        ("environment_destroy", false, false),
    ] {
        let named = arguments(tool);
        assert_eq!(named.contains(&"environment_source".to_owned()), source, "{tool}: {named:?}");
        assert_eq!(named.contains(&"environment_id".to_owned()), id, "{tool}: {named:?}");
    }
    let early = agent
        .ask("tools/call", json!({"name": "environment_run_cmd", "arguments": {"command": "true"}}))
        .await;
    assert_eq!(early["structuredContent"]["error"]["kind"], "precondition_failed");
    let id = agent.create().await;
    let again = agent.refused("environment_create", json!({"title": "another"})).await;
    assert_eq!(again["kind"], "conflict");
    assert!(
        again["message"]
            .as_str()
            .unwrap()
            .contains(&format!("environment_id {id} already exists for this session"))
    );
    let run = json!({"name": "environment_run_cmd", "arguments": {"command": "echo here"}});
    assert_eq!(agent.ask("tools/call", run).await["structuredContent"]["stdout"], "here\n");
    let destroyed = agent.ask("tools/call", json!({"name": "environment_destroy", "arguments": {}})).await;
    assert_eq!(destroyed["structuredContent"]["environment_id"], id);
    agent.leave().await;
}

async fn an_agent_that_is_killed_in_the_middle_of_a_command_is_followed_by_one_that_goes_on(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let command = "echo begun > begun; sleep 1000";
    let arguments = json!({"environment_source": place.source(), "environment_id": id, "command": command});
    agent.send("tools/call", json!({"name": "environment_run_cmd", "arguments": arguments})).await;
    let begun = place.path.join(".cofer/worktrees").join(&id).join("begun");
    until("the command has begun", async || begun.exists()).await;
    agent.child.kill().await.unwrap();
    let mut agent = place.agent().await;
    gone(&mut agent, &id, "sleep 1000").await;
    assert_eq!(agent.run(&id, "cat begun").await["stdout"], "begun\n");
    assert_eq!(
        place.git(&["show", &format!("cofer/{id}:begun")]),
        "begun",
        "what it had changed is committed"
    );
    agent.destroy(&id).await;
    agent.leave().await;
}

/// Waits until no process of the environment has these words.
async fn gone(agent: &mut Agent, id: &str, words: &str) {
    let (agent, id) = (Mutex::new(agent), id.to_owned());
    until(&format!("the end of {words}"), async || {
        let ran = agent.lock().await.run(&id, "ps").await;
        !ran["stdout"].as_str().unwrap().contains(words)
    })
    .await;
}

async fn a_cancelled_command_ends_with_all_that_it_started(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let command = "echo > begun; setsid sleep 4242 & sleep 4242";
    let arguments = json!({"environment_source": place.source(), "environment_id": id, "command": command});
    let call = agent.send("tools/call", json!({"name": "environment_run_cmd", "arguments": arguments})).await;
    let begun = place.path.join(".cofer/worktrees").join(&id).join("begun");
    until("the command has begun", async || begun.exists()).await;
    agent
        .say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}))
        .await;
    gone(&mut agent, &id, "sleep 4242").await;
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn a_command_tells_its_progress(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let arguments = json!({"environment_source": place.source(), "environment_id": id, "command": "echo step one; sleep 2"});
    let params =
        json!({"name": "environment_run_cmd", "arguments": arguments, "_meta": {"progressToken": "mine"}});
    agent.ask("tools/call", params).await;
    let told = agent.said.iter().find(|said| said["method"] == "notifications/progress").unwrap();
    assert_eq!(told["params"]["progressToken"], "mine");
    assert_eq!(told["params"]["message"], "step one");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn what_changes_is_committed_with_the_explanation_and_nothing_is_when_nothing_did(place: Place) {
    // Hooks would say so, and signing would fail.
    for hook in ["pre-commit", "post-commit", "commit-msg", "post-checkout", "reference-transaction"] {
        let file = place.path.join(".git/hooks").join(hook);
        std::fs::write(&file, "#!/bin/sh\ntouch \"$(git rev-parse --show-toplevel)/../hook-ran\"\nexit 1\n")
            .unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    place.git(&["config", "commit.gpgSign", "true"]);
    place.git(&["config", "user.signingKey", "nobody"]);
    std::fs::write(place.path.join("uncommitted"), "x").unwrap();
    let mut agent = place.agent().await;
    let made = agent.call("environment_create", json!({"title": "t"})).await;
    let warning = made["content"][1]["text"].as_str().unwrap();
    assert!(warning.contains("uncommitted changes") && warning.contains("uncommitted"), "{warning}");
    let id = made["structuredContent"]["id"].as_str().unwrap().to_owned();
    let reference = format!("cofer/{id}");
    let before = place.git(&["rev-parse", &reference]);
    assert_eq!(agent.run(&id, "true").await["commit"], Value::Null);
    assert_eq!(place.git(&["rev-parse", &reference]), before);
    let arguments = json!({"environment_id": id, "command": "echo new > new; rm README.md", "explanation": "Replace the \"readme\"\n\nwith something $new"});
    let ran = agent.done("environment_run_cmd", arguments).await;
    assert_eq!(ran["commit"], place.git(&["rev-parse", &reference]));
    assert_eq!(
        place.git(&["log", "-1", "--format=%B|%an|%ae", &reference]),
        "Replace the \"readme\"\n\nwith something $new\n|A Person|person@example.org"
    );
    assert_eq!(place.git(&["diff", "--name-status", &before, &reference]), "D\tREADME.md\nA\tnew");
    let log = agent.done("environment_log", json!({"environment_id": id})).await;
    assert!(log["log"].as_str().unwrap().contains("$ echo new > new; rm README.md\nexit 0"), "{log}");
    let diff = agent.done("environment_diff", json!({"environment_id": id})).await;
    assert!(diff["diff"].as_str().unwrap().contains("+new\n"), "{diff}");
    assert!(!place.path.parent().unwrap().join("hook-ran").exists());
    assert_eq!(std::fs::read_to_string(place.path.join("uncommitted")).unwrap(), "x");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn files_of_any_name_are_committed_as_git_would(place: Place) {
    std::fs::write(place.path.join(".gitignore"), "ignored/\n*.log\n").unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message", "ignore"]);
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let command = r#"mkdir -p 'a dir' ignored node_modules build; printf x > 'a dir/with "quotes" and '"'"'single'"'"''; printf x > "$(printf 'new\nline')";
        printf x > 'übergröße 日本'; printf x > ' leading'; printf x > ignored/one; printf x > some.log; printf 'a\0b' > binary.png;
        printf x > node_modules/kept.js; printf x > build/out; ln -s /etc/passwd link; head -c 20000000 /dev/zero > large.bin; mkfifo pipe"#;
    let ran = agent.run(&id, command).await;
    assert_eq!((&ran["exit_code"], &ran["warnings"]), (&json!(0), &json!([])), "{ran}");
    let committed = place.git(&["ls-tree", "-r", "-z", "--name-only", &format!("cofer/{id}")]);
    let mut names: Vec<&str> = committed.split('\0').filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let mut expected = vec![
        " leading",
        ".gitignore",
        "README.md",
        "a dir/with \"quotes\" and 'single'",
        "binary.png",
        "build/out",
        "large.bin",
        "link",
        "new\nline",
        "node_modules/kept.js",
        "übergröße 日本",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    // A repository inside, with and without a commit, is left out or linked as git does, and fails nothing.
    let inner = place.path.join(".cofer/worktrees").join(&id);
    for (name, commit) in [("empty", false), ("with", true)] {
        let folder = inner.join(name);
        std::fs::create_dir(&folder).unwrap();
        git(&folder, &["init", "--quiet", "."]);
        if commit {
            git(
                &folder,
                &[
                    "-c",
                    "user.name=x",
                    "-c",
                    "user.email=x@x",
                    "commit",
                    "--quiet",
                    "--allow-empty",
                    "-m",
                    "x",
                ],
            );
        }
    }
    let ran = agent.run(&id, "echo more > more").await;
    assert!(ran["commit"].is_string(), "{ran}");
    assert!(ran["warnings"].to_string().contains("empty"), "{ran}");
    assert_eq!(place.git(&["show", &format!("cofer/{id}:more")]), "more");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn configuration_is_read_and_can_be_changed(place: Place) {
    std::fs::create_dir(place.path.join(".container-use")).unwrap();
    let file = json!({"base_image": super::IMAGE, "setup_commands": ["echo set up > /setup"], "install_commands": ["cat README.md > /installed"], "env": ["COLOUR=blue sky"]});
    std::fs::write(place.path.join(".container-use/environment.json"), file.to_string()).unwrap();
    place.git(&["add", "--force", "."]);
    place.git(&["commit", "--quiet", "--message", "configure"]);
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let ran = agent.run(&id, "cat /setup /installed; echo $COLOUR; touch /lost; echo kept > kept").await;
    assert_eq!(ran["stdout"], "set up\none\ntwo\nthree\nblue sky\n");
    let config = json!({"envs": ["COLOUR=green"], "setup_commands": []});
    let changed = agent.done("environment_config", json!({"environment_id": id, "config": config})).await;
    assert_eq!(changed["config"]["env"], json!(["COLOUR=green"]));
    let ran = agent.run(&id, "echo $COLOUR; cat kept; ls /lost /setup 2>&1").await;
    assert!(ran["stdout"].as_str().unwrap().starts_with("green\nkept\n"), "{ran}");
    assert!(!ran["stdout"].as_str().unwrap().contains("\n/lost"), "{ran}");
    let bad = json!({"environment_id": id, "config": {"setup_commands": ["exit 9"]}});
    assert_eq!(agent.refused("environment_config", bad).await["step"], "setup");
    assert_eq!(agent.run(&id, "echo $COLOUR").await["stdout"], "green\n", "as it was before");
    let title =
        agent.call("environment_update_metadata", json!({"environment_id": id, "title": "another"})).await;
    assert!(
        title["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("Environment metadata updated successfully.\n{")
    );
    let listed = agent.call("environment_list", json!({})).await;
    assert_eq!(listed["structuredContent"]["environments"][0]["title"], "another");
    assert!(
        listed["content"][0]["text"]
            .as_str()
            .unwrap()
            .ends_with("]\n\nDO NOT change environments without explicit permission from the user")
    );
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn services_are_reached_by_name(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let service = json!({
        "environment_id": id, "name": "web", "image": super::IMAGE, "ports": [80], "envs": ["GREETING=hello"],
        "command": "mkdir /www; echo $GREETING > /www/index.html; exec httpd -f -p 80 -h /www",
    });
    let result = agent.call("environment_add_service", service.clone()).await;
    assert!(
        result["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("Service added and started successfully: {"),
        "{result}"
    );
    let added = &result["structuredContent"];
    assert_eq!(added["endpoints"]["80"]["environment_internal"], "tcp://web:80");
    let wait = "for i in $(seq 100); do wget -q -O - http://web/ && exit; done; exit 1";
    assert_eq!(agent.run(&id, wait).await["stdout"], "hello\n");
    let external = added["endpoints"]["80"]["host_external"].as_str().unwrap().replace("tcp://", "http://");
    assert_eq!(reqwest::get(external).await.unwrap().text().await.unwrap(), "hello\n");
    assert_eq!(agent.refused("environment_add_service", service).await["kind"], "conflict");
    let bad = json!({"environment_id": id, "name": "Bad Name", "image": super::IMAGE});
    assert_eq!(agent.refused("environment_add_service", bad).await["kind"], "invalid");
    let opened = agent.done("environment_open", json!({"environment_id": id})).await;
    assert_eq!(opened["services"][0]["config"]["name"], "web");
    let destroyed = agent.destroy(&id).await;
    assert_eq!(destroyed["stopped_containers"].as_array().unwrap().len(), 2);
    agent.leave().await;
}

async fn caches_are_shared_and_secrets_are_not_written_down(place: Place) {
    let secret_file = place.start.path().join("secret");
    std::fs::write(&secret_file, "from-a-file-3141\n").unwrap();
    let file = json!({
        "caches": ["/var/cache/shared"],
        "secrets": ["FROM_ENV=env://MY_SECRET", format!("FROM_FILE=file://{}", secret_file.display())],
    });
    let place = place.with("MY_SECRET", "from-the-environment-2718");
    std::fs::write(place.path.join(".cofer/environment.json"), file.to_string()).unwrap();
    let mut agent = place.agent().await;
    let (one, two) = (agent.create().await, agent.create().await);
    agent.run(&one, "echo warm > /var/cache/shared/kept").await;
    assert_eq!(agent.run(&two, "cat /var/cache/shared/kept").await["stdout"], "warm\n");
    let ran = agent.run(&one, "echo $FROM_ENV $FROM_FILE; echo x > changed").await;
    assert_eq!(ran["stdout"], "from-the-environment-2718 from-a-file-3141\n");
    let log = agent.done("environment_log", json!({"environment_id": one, "patch": true})).await;
    assert!(log["log"].as_str().unwrap().contains("[masked]"), "{log}");
    for secret in ["from-the-environment-2718", "from-a-file-3141"] {
        assert!(!log.to_string().contains(secret), "{log}");
        let kept =
            std::process::Command::new("grep").args(["-r", "-l", secret]).arg(&place.path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&kept.stdout), "", "{secret} was written down");
    }
    agent.destroy(&one).await;
    agent.destroy(&two).await;
    let logged = agent.leave().await;
    assert!(!logged.contains("2718") && !logged.contains("3141"), "{logged}");
    let pruned = place.start.cofer(&["env", "prune", "-C", place.source(), "--caches", "--yes"]).await;
    assert!(pruned.succeeded().contains("1 removed"), "{pruned:?}");
}

async fn a_container_that_was_removed_is_made_anew(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "echo kept > kept; touch /lost").await;
    place.remove_containers().await;
    let ran = agent.run(&id, "cat kept; ls /lost").await;
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("kept\n"), &json!(1)), "{ran}");
    agent.destroy(&id).await;
    agent.leave().await;
}

async fn an_image_of_the_environment_is_kept(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    agent.run(&id, "echo installed > /installed").await;
    let image = format!("cofer-test/checkpoint-{id}");
    agent.done("environment_checkpoint", json!({"environment_id": id, "destination": image})).await;
    agent.destroy(&id).await;
    let made = agent.done("environment_create", json!({"title": "from it", "image": image})).await;
    let id = made["id"].as_str().unwrap();
    assert_eq!(agent.run(id, "cat /installed").await["stdout"], "installed\n");
    agent.destroy(id).await;
    let bad =
        agent.refused("environment_checkpoint", json!({"environment_id": id, "destination": "x"})).await;
    assert_eq!(bad["kind"], "not_found");
    agent.leave().await;
    place.remove_image(&image).await;
}
