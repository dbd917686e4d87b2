//! The registry of external servers: over HTTP, by hand and out of files. Nothing here needs a server to connect to.

mod by_hand;
mod files;
mod over_http;
mod records;
mod tools;

use cofer_testkit::app::{Answer, App};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

const SERVERS: &str = "/api/v1/projects/default/mcp-servers";

fn stdio(name: &str) -> Value {
    json!({"name": name, "transport": "stdio", "config": {"command": "uvx", "args": ["mcp-server-time"]}})
}

/// Registers it, and gives what was answered.
async fn register(app: &App, body: &Value) -> Value {
    let made = app.post(SERVERS, body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

/// `status code field` of a refusal.
fn refusal_of(answer: &Answer) -> String {
    let field = answer.json()["error"]["details"]["field"].as_str().unwrap_or_default().to_owned();
    format!("{} {field}", answer.refusal())
}

/// The database, behind the server's back: what a connection would have written.
async fn behind(app: &App) -> SqliteConnection {
    let file = app.data_dir().join("cofer.db");
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.unwrap()
}

/// As if this server had been connected to and had listed these tools.
async fn discover(app: &App, server: &str, tools: &[(&str, &str)]) {
    let mut db = behind(app).await;
    for (position, (name, tool)) in (0_i64..).zip(tools) {
        let insert = "INSERT INTO project_mcp_tools (server_id, position, name, enabled, tool) \
             SELECT server_id, $2, $3, true, $4 FROM server_register WHERE name = $1";
        let insert = sqlx::query(insert).bind(server).bind(position).bind(*name).bind(*tool);
        assert_eq!(insert.execute(&mut db).await.unwrap().rows_affected(), 1);
    }
}
