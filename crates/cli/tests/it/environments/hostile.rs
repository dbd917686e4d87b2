//! What somebody inside an environment, or a careless client, may try; and what must not come of it.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{Place, git, on_each_engine};

on_each_engine!(
    nothing_that_lies_in_a_worktree_runs_on_the_machine,
    file_tools_do_not_leave_the_worktree,
    what_is_half_made_when_its_client_leaves_is_undone,
);

/// Git obeys what it finds in a repository: hooks, monitors, filters. So it must not find any.
async fn nothing_that_lies_in_a_worktree_runs_on_the_machine(place: Place) {
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let mark = place.start.path().join("it-ran");
    let program = place.start.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\ntouch '{}'\ncat\n", mark.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!(
        "[core]\n\tfsmonitor = {0}\n\thooksPath = /workdir/evil/hooks\n\tworktree = ..\n\tsshCommand = {0}\n\tpager = {0}\n[filter \"x\"]\n\tclean = {0}\n\tsmudge = {0}\n[diff]\n\texternal = {0}\n[diff \"x\"]\n\ttextconv = {0}\n",
        program.display()
    );
    let script = format!(
        "mkdir -p evil/objects evil/refs evil/hooks sub; printf 'ref: refs/heads/main\\n' > evil/HEAD; cat > evil/config <<'END'\n{config}END\n\
         rm -f .git; printf 'gitdir: /workdir/evil\\n' > .git; cp -r evil sub/.git; printf '* filter=x diff=x\\n' > .gitattributes; echo data > data; \
         printf '[submodule \"sub\"]\\n\\tpath = sub\\n\\turl = ./sub\\n\\tupdate = !{}\\n' > .gitmodules",
        program.display()
    );
    let ran = agent.run(&id, &script).await;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    agent.run(&id, "echo more >> data").await;
    agent.done("environment_file_write", json!({"environment_id": id, "target_file": "data", "contents": "x\n"})).await;
    agent.done("environment_log", json!({"environment_id": id, "patch": true})).await;
    let diff = agent.done("environment_diff", json!({"environment_id": id})).await;
    assert!(diff["diff"].as_str().unwrap().contains("+x\n"), "what was written is committed all the same: {diff}");
    agent.done("environment_list", json!({})).await;
    agent.destroy(&id).await;
    assert!(!mark.exists(), "something of the worktree was run on the machine");
    agent.leave().await;
}

async fn file_tools_do_not_leave_the_worktree(place: Place) {
    let secret = place.start.path().join("secret");
    std::fs::write(&secret, "untouched").unwrap();
    let mut agent = place.agent().await;
    let id = agent.create().await;
    let folder = place.start.path().display().to_string();
    agent.run(&id, &format!("ln -s {folder} out; ln -s {folder}/secret link; ln -s ../../../../../../../../etc/passwd up")).await;
    for path in ["out/secret", "link", "up", "../../../README.md", "/etc/passwd", ".git"] {
        for (tool, more) in [
            ("environment_file_read", json!({"should_read_entire_file": true})),
            ("environment_file_write", json!({"contents": "x"})),
            ("environment_file_edit", json!({"search_text": "untouched", "replace_text": "x"})),
        ] {
            let mut arguments = json!({"environment_id": id, "target_file": path});
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let result = agent.call(tool, arguments).await;
            // A link itself may be replaced by a file; what it led to may not.
            assert!(result["isError"] == true, "{tool} {path}: {result}");
        }
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "untouched");
    agent.destroy(&id).await;
    agent.leave().await;
}

/// On Docker, because Podman keeps a process for minutes for each command that goes the long way.
#[tokio::test]
async fn a_channel_that_was_tampered_with_harms_nobody_else() {
    let Some(place) = Place::new("docker").await else { return };
    let mut agent = place.agent().await;
    let (bad, good) = (agent.create().await, agent.create().await);
    agent.run(&bad, "rm -rf /.cofer/channel/*; mkdir -p /.cofer/channel/sock; ln -s /etc/passwd /.cofer/channel/log.0; true").await;
    let result = agent
        .call("environment_run_cmd", json!({"environment_id": bad, "command": "echo still here"}))
        .await;
    // By the engine's own exec it still works; what counts is that nothing hangs and nothing leaks.
    assert!(result["isError"] == false || result["structuredContent"]["error"]["kind"].is_string(), "{result}");
    assert_eq!(agent.run(&good, "echo fine").await["stdout"], "fine\n");
    agent.destroy(&bad).await;
    agent.destroy(&good).await;
    assert_eq!(place.traces(), [""; 0]);
    agent.leave().await;
}

async fn what_is_half_made_when_its_client_leaves_is_undone(place: Place) {
    let slow = json!({"setup_commands": ["touch /workdir/begun; sleep 1000"]});
    std::fs::write(place.path.join(".cofer/environment.json"), slow.to_string()).unwrap();
    let mut agent = place.agent().await;
    let arguments = json!({"environment_source": place.source(), "title": "t", "environment_id": "half"});
    let call = agent.send("tools/call", json!({"name": "environment_create", "arguments": arguments})).await;
    let begun = place.path.join(".cofer/worktrees/half/begun");
    cofer_testkit::until("it is being made", async || begun.exists()).await;
    let error = agent.refused("environment_run_cmd", json!({"environment_id": "half", "command": "true"})).await;
    assert_eq!(error["kind"], "conflict", "{error}");
    agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}})).await;
    agent.leave().await;
    assert_eq!(place.traces(), [""; 0]);
}

#[tokio::test]
async fn whatever_a_client_sends_is_answered_with_a_clear_error() {
    let Some(place) = Place::new("podman").await else { return };
    let mut agent = place.agent().await;
    for (tool, arguments, kind) in [
        ("environment_create", json!({}), "invalid"),
        ("environment_create", json!({"title": 7}), "invalid"),
        ("environment_create", json!({"title": "t", "environment_source": "relative/path"}), "invalid"),
        ("environment_create", json!({"title": "t", "environment_source": "/no/such/place"}), "invalid"),
        ("environment_create", json!({"title": "t", "environment_source": "/"}), "invalid"),
        ("environment_create", json!({"title": "t", "environment_source": format!("{}/../x", place.source())}), "invalid"),
        ("environment_create", json!({"title": "t", "environment_id": "../../x"}), "invalid"),
        ("environment_run_cmd", json!({"environment_id": "x", "ports": ["a"], "background": true}), "invalid"),
        ("environment_run_cmd", json!({"environment_id": "x", "ports": [70000], "background": true}), "invalid"),
        ("environment_run_cmd", json!({"environment_id": ["x"]}), "invalid"),
        ("environment_config", json!({"environment_id": "x", "config": "y"}), "invalid"),
    ] {
        assert_eq!(agent.refused(tool, arguments.clone()).await["kind"], kind, "{tool} {arguments}");
    }
    // Lines that are no messages, and one that is far too long.
    for line in ["", "not json", "[]", "{\"jsonrpc\":\"2.0\"}", "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}"] {
        agent.say_raw(line.as_bytes()).await;
    }
    agent.say_raw(&vec![b'x'; 33 << 20]).await;
    assert_eq!(agent.ask("ping", json!({})).await, json!({}));
    let refusals = agent.said.iter().filter(|said| said["error"]["code"].is_i64()).count();
    assert_eq!(refusals, 5, "{:?}", agent.said);
    let unknown = agent.call("no_such_tool", json!({})).await;
    assert_eq!(unknown["isError"], true);
    agent.leave().await;
}

#[tokio::test]
async fn secrets_that_only_a_commit_names_are_not_given() {
    let Some(place) = Place::new("podman").await else { return };
    let place = place.with("MACHINES_OWN", "never-to-be-seen-9981");
    std::fs::create_dir(place.path.join(".container-use")).unwrap();
    let file = place.path.join(".container-use/environment.json");
    std::fs::write(&file, json!({"secrets": ["STOLEN=env://MACHINES_OWN"]}).to_string()).unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message", "as an agent might"]);
    std::fs::remove_file(&file).unwrap();
    let mut agent = place.agent().await;
    let made = agent.call("environment_create", json!({"title": "t"})).await;
    assert!(made["content"].to_string().contains("secret `STOLEN`"), "{made}");
    let id = made["structuredContent"]["id"].as_str().unwrap();
    assert_eq!(agent.run(id, "echo =$STOLEN=").await["stdout"], "==\n");
    let tools = agent.ask("tools/list", json!({})).await;
    let config = tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "environment_config").unwrap();
    assert_eq!(config["inputSchema"]["properties"]["config"]["properties"]["secrets"], Value::Null);
    agent.destroy(id).await;
    agent.leave().await;
}

#[tokio::test]
async fn a_lock_that_a_killed_git_left_does_not_stand_in_the_way_for_ever() {
    let Some(place) = Place::new("podman").await else { return };
    let place = place.with("COFER_TIMEOUT_GIT", "3000");
    let mut agent = place.agent().await;
    let id = agent.create().await;
    std::fs::write(place.path.join(".cofer/repo.git/worktrees").join(&id).join("index.lock"), "").unwrap();
    let ran = agent.run(&id, "echo x > y").await;
    assert!(ran["commit"].is_string(), "{ran}");
    agent.destroy(&id).await;
    // Whoever came without submodules knows nothing of this repository's; they are only told of.
    let inner = place.start.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "--quiet", "."]);
    git(&inner, &["-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "-m", "x"]);
    place.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner.to_str().unwrap(), "sub"]);
    std::fs::write(place.path.join(".gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n").unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message", "with a submodule"]);
    let made = agent.call("environment_create", json!({"title": "t"})).await;
    let warnings = made["content"][1]["text"].as_str().unwrap();
    assert!(warnings.contains("submodules") && warnings.contains("Git LFS"), "{warnings}");
    let id = made["structuredContent"]["id"].as_str().unwrap();
    assert_eq!(agent.run(id, "echo z > z").await["warnings"], json!([]));
    assert_eq!(place.git(&["diff", "--name-only", "HEAD", &format!("cofer/{id}")]), "z");
    agent.destroy(id).await;
    agent.leave().await;
}
