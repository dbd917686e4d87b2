//! A status object as a person reads it.

use serde_json::{Value, json};

use crate::output::{harmless, size, table};

const COLUMNS: [(&str, &str); 8] = [
    ("NAME", "name"),
    PROJECT,
    ("STATUS", "status"),
    ("UP", "uptime"),
    ("RESTARTS", "restart_count"),
    ("MEMORY", "memory"),
    ("FROM", "from"),
    ("WHY", "why"),
];
const PROJECT: (&str, &str) = ("PROJECT", "project");
const WHY_CHARS_MAX: usize = 80;
const FROM_CHARS_MAX: usize = 60;

/// What a person wants to know of each: state, why, since when, restarts, memory.
pub(super) fn table_of(servers: &Value) -> String {
    let row = |server: &Value| {
        json!({
            "name": server["name"],
            "project": server["project"],
            "status": server["status"],
            "uptime": server["uptime"],
            "restart_count": server["restart_count"],
            "memory": memory(&server["usage"]),
            "from": from(server),
            "why": why(server).map(|why| why.chars().take(WHY_CHARS_MAX).collect::<String>()),
        })
    };
    let rows: Vec<_> = servers.as_array().into_iter().flatten().map(row).collect();
    // A name is found in its project alone, so whoever sees several projects is told which.
    let several = rows.windows(2).any(|pair| pair[0]["project"] != pair[1]["project"]);
    let columns: Vec<_> = COLUMNS.into_iter().filter(|column| several || *column != PROJECT).collect();
    table(&Value::Array(rows), &columns)
}

/// Its image, its command or its address.
fn from(server: &Value) -> Value {
    let config = &server["config"];
    match (config["command"].as_str(), config["url"].as_str()) {
        (Some(command), _) => {
            let args = config["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let words: Vec<_> = std::iter::once(command).chain(args).collect();
            json!(words.join(" ").chars().take(FROM_CHARS_MAX).collect::<String>())
        }
        (None, Some(url)) => json!(url.chars().take(FROM_CHARS_MAX).collect::<String>()),
        (None, None) => server["image"].clone(),
    }
}

/// One line on how a change came out.
pub(super) fn outcome_of(server: &Value) -> String {
    let text = |field: &str| server[field].as_str().unwrap_or_default();
    let why = why(server).map(|why| format!(": {why}")).unwrap_or_default();
    let by = server["provider"].as_str().or_else(|| server["transport"].as_str());
    let provider = by.map(|by| format!(" ({by})")).unwrap_or_default();
    let endpoints = endpoints(server).map(|urls| format!(" at {urls}")).unwrap_or_default();
    format!("server {} is {}{provider}{endpoints}{why}", text("name"), text("status"))
}

fn memory(usage: &Value) -> Option<String> {
    let (used, limit) = (usage["memory_bytes"].as_u64()?, usage["memory_limit_bytes"].as_u64()?);
    Some(format!("{}/{}", size(used), size(limit)))
}

fn why(server: &Value) -> Option<String> {
    if server["enabled"] == false {
        return Some("switched off".to_owned());
    }
    let reason = ["reason", "progress", "last_error"].iter().find_map(|field| server[*field].as_str());
    reason.map(harmless)
}

fn endpoints(server: &Value) -> Option<String> {
    let urls: Vec<_> =
        server["endpoints"].as_array()?.iter().filter_map(|endpoint| endpoint["url"].as_str()).collect();
    (!urls.is_empty()).then(|| urls.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_a_person_wants_to_know() {
        let servers = json!([
            {"name": "time", "status": "ready", "uptime": "2h15m30s", "restart_count": 0, "image": "mcp/time", "reason": null,
             "usage": {"memory_bytes": 47_395_635, "memory_limit_bytes": 536_870_912}},
            {"name": "git", "status": "restarting", "uptime": null, "restart_count": 3, "image": "mcp/git",
             "reason": "exited with code 1\u{1b}[2J", "usage": null},
        ]);
        insta::assert_snapshot!(table_of(&servers), @r"
        NAME  STATUS      UP        RESTARTS  MEMORY        FROM      WHY
        time  ready       2h15m30s  0         45.1M/512.0M  mcp/time  -
        git   restarting  -         3         -             mcp/git   exited with code 1 [2J
        ");
    }

    #[test]
    fn external_servers_stand_in_the_same_list() {
        let servers = json!([
            {"name": "time", "status": "idle", "transport": "stdio", "config": {"command": "uvx", "args": ["mcp-server-time"]}, "enabled": true},
            {"name": "crm", "status": "unavailable", "transport": "http", "config": {"url": "https://crm.example.com/mcp"},
             "last_error": "connection refused", "enabled": true},
            {"name": "old", "status": "idle", "transport": "sse", "config": {"url": "https://old.example.com"}, "enabled": false},
        ]);
        insta::assert_snapshot!(table_of(&servers), @r"
        NAME  STATUS       UP  RESTARTS  MEMORY  FROM                         WHY
        time  idle         -   -         -       uvx mcp-server-time          -
        crm   unavailable  -   -         -       https://crm.example.com/mcp  connection refused
        old   idle         -   -         -       https://old.example.com      switched off
        ");
        assert_eq!(outcome_of(&servers[0]), "server time is idle (stdio)");
    }

    #[test]
    fn servers_of_several_projects_are_told_apart() {
        let server = |project: &str| json!({"name": "time", "project": project, "status": "ready"});
        let heading = |servers: Value| table_of(&servers).lines().next().unwrap_or_default().to_owned();
        assert!(heading(json!([server("a"), server("b")])).starts_with("NAME  PROJECT  STATUS"));
        assert!(heading(json!([server("a"), server("a")])).starts_with("NAME  STATUS"));
    }

    #[test]
    fn an_outcome_is_one_line() {
        let server = json!({"name": "web", "status": "ready", "provider": "gvisor", "endpoints": [{"url": "http://127.0.0.1:1/mcp"}]});
        assert_eq!(outcome_of(&server), "server web is ready (gvisor) at http://127.0.0.1:1/mcp");
    }
}
