//! A user who is not root, with an engine that is: what the container's root makes is the user's own, and can be removed by them.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::{Agent, Place};

const USER: u32 = 1000;

/// An agent that runs as somebody else, who may use the engine; and what lets them, which ends with the test.
async fn as_a_user(place: &Place) -> (Agent, JoinHandle<()>) {
    let chowned = Command::new("chown").args(["-R", "1000:1000"]).arg(place.start.path()).status().await;
    assert!(chowned.unwrap().success());
    let socket = place.start.path().join("engine.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let engine = place.bed.host().strip_prefix("unix://").unwrap().to_owned();
    let door = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let engine = engine.clone();
            tokio::spawn(async move {
                if let Ok(mut server) = UnixStream::connect(engine).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    let cofer = place.start.command(&["stdio"]);
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=1000", "--regid=1000", "--clear-groups"])
        .arg(cofer.as_std().get_program())
        .arg("stdio");
    command.env_clear().envs(cofer.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("COFER_DOCKER_HOST", format!("unix://{}", socket.display())).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (Agent::greeted(command.spawn().unwrap(), place.source()).await, door)
}

fn owner(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().uid()
}

#[tokio::test]
async fn what_the_containers_root_makes_is_the_users_own() {
    let Some(place) = Place::new("docker").await else { return };
    std::fs::write(place.path.join(".git/info/exclude"), ".cofer/\nignored/\n").unwrap();
    let (mut agent, _door) = as_a_user(&place).await;
    let id = agent.create().await;
    let command = "mkdir -p deep/er ignored; echo x > deep/er/file; echo x > ignored/file; ln -s /etc/passwd link; echo more >> README.md; id -u";
    let ran = agent.run(&id, command).await;
    assert_eq!((&ran["stdout"], &ran["warnings"]), (&json!("0\n"), &json!([])), "{ran}");
    assert!(ran["commit"].is_string(), "{ran}");
    let worktree = place.path.join(".cofer/worktrees").join(&id);
    for path in ["deep", "deep/er/file", "ignored", "ignored/file", "link", "README.md"] {
        assert_eq!(owner(&worktree.join(path)), USER, "{path}");
    }
    assert_eq!(owner(Path::new("/etc/passwd")), 0);
    let write = json!({"environment_id": id, "target_file": "deep/er/file", "contents": "by the user\n"});
    agent.done("environment_file_write", write).await;
    assert_eq!(agent.run(&id, "cat deep/er/file").await["stdout"], "by the user\n");
    agent.destroy(&id).await;
    agent.leave().await;
    assert_eq!(place.traces(), [""; 0]);
}

/// Requirement 3.3: an error on removal is overcome by trying again by other means, with a warning.
#[tokio::test]
async fn with_force_what_could_not_be_removed_at_first_is_removed_with_a_warning() {
    let Some(place) = Place::new("docker").await else { return };
    let (mut agent, _door) = as_a_user(&place).await;
    let id = agent.create().await;
    agent.run(&id, "mkdir -p locked/inner; echo x > locked/inner/file").await;
    let locked = place.path.join(".cofer/worktrees").join(&id).join("locked");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
    place.remove_containers().await;
    let error = agent.refused("environment_destroy", json!({"environment_id": id})).await;
    assert_eq!((&error["kind"], &error["step"]), (&json!("internal"), &json!("worktree")), "{error}");
    let gone = agent.refused("environment_run_cmd", json!({"environment_id": id, "command": "true"})).await;
    assert_eq!(gone["kind"], "not_found", "half destroyed: {gone}");
    let destroyed = agent.done("environment_destroy", json!({"environment_id": id, "force": true})).await;
    assert!(destroyed["warnings"].to_string().contains("could not be removed at first"), "{destroyed}");
    assert_eq!(place.traces(), [""; 0]);
    agent.leave().await;
}
