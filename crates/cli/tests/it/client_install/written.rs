//! What each client reads, and what comes of it.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{CLIENTS, home, in_folder, read, token_in, tokens_of_clients, told_alike, write};
use crate::gateway::Gate;
use crate::{serving, start};

#[tokio::test]
async fn each_client_gets_a_program_to_start_in_its_own_spelling() {
    let start = start();
    let mut files = Vec::new();
    for (client, file) in CLIENTS {
        let said = start.cofer(&["client", "install", client]).await;
        assert!(said.succeeded().contains("which is new"), "{said:?}");
        files.push(format!("{client}: {}", told_alike(&read(&start.path().join(file)), start.path()).trim()));
    }
    insta::assert_snapshot!(files.join("\n"), @r#"
    claude: {
      "mcpServers": {
        "cofer": {
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    claude-code: {
      "mcpServers": {
        "cofer": {
          "type": "stdio",
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    cursor: {
      "mcpServers": {
        "cofer": {
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    vscode: {
      "servers": {
        "cofer": {
          "type": "stdio",
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    windsurf: {
      "mcpServers": {
        "cofer": {
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    gemini: {
      "mcpServers": {
        "cofer": {
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      }
    }
    codex: [mcp_servers.cofer]
    command = "/bin/cofer"
    args = ["stdio", "--project", "default", "--data-dir", "~/data"]
    "#);
}

#[tokio::test]
async fn each_client_gets_an_address_and_a_token_in_its_own_spelling_when_asked() {
    let app = serving().await;
    app.cofer(&["project", "create", "web"]).await.succeeded();
    let mut files = Vec::new();
    for (client, file) in CLIENTS.into_iter().skip(1) {
        let install = ["client", "install", client, "--http", "--project", "web", "--name", "web"];
        app.cofer(&install).await.succeeded();
        let path = home(&app).join(file);
        let text = read(&path);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{client}");
        let token = token_in(&text);
        assert_eq!(app.call(reqwest::Method::GET, "/api/v1/projects", token, None).await.status, 403);
        files.push(format!("{client}: {}", text.replace(token, "TOKEN").replace(&app.url, "URL").trim()));
    }
    insta::assert_snapshot!(files.join("\n"), @r#"
    claude-code: {
      "mcpServers": {
        "web": {
          "type": "http",
          "url": "URL/projects/web/mcp",
          "headers": {
            "Authorization": "Bearer TOKEN"
          }
        }
      }
    }
    cursor: {
      "mcpServers": {
        "web": {
          "url": "URL/projects/web/mcp",
          "headers": {
            "Authorization": "Bearer TOKEN"
          }
        }
      }
    }
    vscode: {
      "servers": {
        "web": {
          "type": "http",
          "url": "URL/projects/web/mcp",
          "headers": {
            "Authorization": "Bearer TOKEN"
          }
        }
      }
    }
    windsurf: {
      "mcpServers": {
        "web": {
          "serverUrl": "URL/projects/web/mcp",
          "headers": {
            "Authorization": "Bearer TOKEN"
          }
        }
      }
    }
    gemini: {
      "mcpServers": {
        "web": {
          "httpUrl": "URL/projects/web/mcp",
          "headers": {
            "Authorization": "Bearer TOKEN"
          }
        }
      }
    }
    codex: [mcp_servers.web]
    url = "URL/projects/web/mcp"
    http_headers = { Authorization = "Bearer TOKEN" }
    "#);
    assert_eq!(tokens_of_clients(&app).await.len(), CLIENTS.len() - 1);
    let refused = app.cofer(&["client", "install", "claude", "--http"]).await;
    assert!(refused.failed_with(2).contains("takes no addresses"), "{refused:?}");
    let default = app.cofer(&["client", "install", "cursor", "--http"]).await;
    default.succeeded();
    assert!(read(&home(&app).join(".cursor/mcp.json")).contains(&format!("\"{}/mcp\"", app.url)));
    app.stop().await;
}

#[tokio::test]
async fn what_was_written_starts_and_lists_the_tools_of_a_running_cofer() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    gate.app.cofer(&["client", "install", "claude"]).await.succeeded();
    let file: Value = serde_json::from_str(&read(&home(&gate.app).join(CLIENTS[0].1))).unwrap();
    let entry = &file["mcpServers"]["cofer"];
    let args: Vec<_> = entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    // As a client would: with none of the variables that a person may have set in a terminal.
    let mut command = tokio::process::Command::new(entry["command"].as_str().unwrap());
    command.args(args).env_clear().env("HOME", home(&gate.app)).kill_on_drop(true);
    let mut started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = started.stdin.take().unwrap();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}),
    ] {
        stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
    let mut lines = BufReader::new(started.stdout.take().unwrap()).lines();
    let tools = loop {
        let line = tokio::time::timeout(Duration::from_mins(1), lines.next_line()).await.unwrap().unwrap();
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if message["id"] == 2 {
            break message["result"]["tools"].clone();
        }
    };
    assert!(tools.as_array().unwrap().iter().any(|tool| tool["name"] == "echo"), "{tools}");
    drop(stdin);
    assert!(started.wait().await.unwrap().success());
    gate.stop().await;
}

#[tokio::test]
async fn an_entry_for_environments_needs_no_project_and_no_running_cofer() {
    let start = start();
    start.cofer(&["client", "install", "codex", "--environments", "--name", "work"]).await.succeeded();
    let text = told_alike(&read(&start.path().join(".codex/config.toml")), start.path());
    assert_eq!(text, "[mcp_servers.work]\ncommand = \"/bin/cofer\"\nargs = [\"stdio\"]\n");
    let both = start.cofer(&["client", "install", "codex", "--environments", "--project", "web"]).await;
    both.failed_with(2);
}

#[tokio::test]
async fn a_data_directory_is_named_only_if_it_is_not_the_usual_one() {
    let start = start().variable("COFER_DATA_DIR", "");
    let usual = start.path().join(".local/share/cofer").display().to_string();
    for args in [&["client", "install", "cursor"][..], &["client", "install", "gemini", "--data-dir", &usual]]
    {
        start.cofer(args).await.succeeded();
    }
    for file in [".cursor/mcp.json", ".gemini/settings.json"] {
        assert!(read(&start.path().join(file)).contains(r#"["stdio", "--project", "default"]"#), "{file}");
    }
    start.cofer(&["client", "install", "cursor", "--data-dir", "/elsewhere"]).await.succeeded();
    assert!(read(&start.path().join(".cursor/mcp.json")).contains(r#""--data-dir", "/elsewhere"]"#));
}

#[tokio::test]
async fn a_project_has_files_of_its_own_in_the_current_directory() {
    let start = start();
    let folder = start.path().join("shop");
    std::fs::create_dir(&folder).unwrap();
    for (client, file) in [
        ("claude-code", ".mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("gemini", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
    ] {
        let install = ["client", "install", client, "--scope", "project"];
        let said = in_folder(&start, &folder, &install).await;
        assert!(said.succeeded().contains(&format!("undo {client} --scope project")), "{said:?}");
        assert!(read(&folder.join(file)).contains("stdio"), "{client}");
    }
    for client in ["claude", "windsurf"] {
        let refused = in_folder(&start, &folder, &["client", "install", client, "--scope", "project"]).await;
        assert!(refused.failed_with(2).contains("--scope"), "{refused:?}");
    }
    let listed = in_folder(&start, &folder, &["client", "ls", "--json"]).await.json();
    let own = listed.as_array().unwrap().iter().filter(|row| row["scope"] == "project").count();
    assert_eq!(own, 5);
}

#[tokio::test]
async fn clients_are_listed_with_their_files_and_what_is_in_them() {
    let start = start();
    start.cofer(&["client", "install", "claude"]).await.succeeded();
    write(&start.path().join(".cursor/mcp.json"), "{");
    write(&start.path().join(".gemini/settings.json"), "{}");
    let listed = start.cofer(&["client", "ls"]).await;
    insta::assert_snapshot!(told_alike(listed.succeeded(), start.path()), @r#"
    CLIENT       SCOPE  FOUND  COFER          FILE
    claude       user   yes    cofer (stdio)  ~/.config/Claude/claude_desktop_config.json
    claude-code  user   no     -              ~/.claude.json
    cursor       user   yes    unreadable     ~/.cursor/mcp.json
    vscode       user   no     -              ~/.config/Code/User/mcp.json
    windsurf     user   no     -              ~/.codeium/windsurf/mcp_config.json
    gemini       user   yes    -              ~/.gemini/settings.json
    codex        user   no     -              ~/.codex/config.toml
    "#);
    let rows = start.cofer(&["client", "ls", "--json"]).await.json();
    assert_eq!(rows[0]["entries"], json!([{"name": "cofer", "by": "stdio"}]));
    assert!(rows[2]["problem"].as_str().unwrap().contains("line 1"), "{rows}");
}
