//! The two schemas are twins, and the tests' own look behind the store's back.

use std::collections::BTreeSet;

use cofer_store::DatabaseUrl;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::Bed;

#[tokio::test]
async fn both_databases_have_the_same_tables_and_columns_and_those_of_the_contract() {
    let Some(postgres) = Bed::postgres().await else { return };
    let sqlite = Bed::sqlite().await;
    let (on_sqlite, on_postgres) = (columns(&sqlite).await, columns(&postgres).await);
    assert_eq!(on_sqlite, on_postgres);
    for table in [
        "agent_workspaces",
        "project_mcp_servers",
        "agent_runs",
        "agent_run_messages",
        "agent_run_tool_calls",
    ] {
        assert!(on_sqlite.contains(&format!("{table}.id")), "{table}");
    }
}

/// Databases that were made before the registry.
#[tokio::test]
async fn servers_that_were_hosted_before_have_their_place_in_the_register() {
    const SERVERS: &str = "INSERT INTO kb.agent_workspaces (id, project_id, container_type, name, status, config, created_at, updated_at) \
         SELECT $1, id, $2, $3, 'ready', '{}', created_at, created_at FROM kb.projects";
    const PROJECT: &str = "INSERT INTO kb.projects (id, name, description, namespacing, created_at, updated_at) \
         VALUES ('01a1e11c-205e-72aa-971d-bff336380426', 'web', '', 'off', '2026-11-16T03:00:00.000Z', '2026-11-16T03:00:00.000Z')";
    let mut db = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql("ATTACH DATABASE ':memory:' AS kb").execute(&mut db).await.unwrap();
    for migration in [
        include_str!("../../migrations/sqlite/0001_house.sql"),
        include_str!("../../migrations/sqlite/0002_hosting.sql"),
    ] {
        sqlx::raw_sql(migration).execute(&mut db).await.unwrap();
    }
    sqlx::query(PROJECT).execute(&mut db).await.unwrap();
    for (id, kind, name) in
        [("2", "mcp_server", "second"), ("1", "mcp_server", "first"), ("3", "environment", "other")]
    {
        sqlx::query(SERVERS).bind(id).bind(kind).bind(name).execute(&mut db).await.unwrap();
    }
    sqlx::raw_sql(include_str!("../../migrations/sqlite/0003_registry.sql")).execute(&mut db).await.unwrap();
    let names = sqlx::query_scalar::<_, String>("SELECT name FROM kb.server_register ORDER BY position");
    assert_eq!(names.fetch_all(&mut db).await.unwrap(), ["first", "second"]);
}

/// What an agent would have left.
pub(crate) async fn add_run(bed: &Bed, run: uuid::Uuid, project: uuid::Uuid) {
    const SQL: &str = "INSERT INTO kb.agent_runs (id, project_id, status, created_at, updated_at) \
         SELECT $1, id, 'completed', created_at, created_at FROM kb.projects WHERE id = $2";
    match behind(bed).await {
        Behind::Sqlite(mut db) => {
            let add = sqlx::query(SQL).bind(run.to_string()).bind(project.to_string());
            add.execute(&mut db).await.map(drop).unwrap();
        }
        Behind::Postgres(mut db) => {
            sqlx::query(SQL).bind(run).bind(project).execute(&mut db).await.map(drop).unwrap();
        }
    }
}

enum Behind {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

async fn behind(bed: &Bed) -> Behind {
    match &bed.url {
        DatabaseUrl::Sqlite(path) => {
            let mut connection = SqliteConnection::connect_with(&SqliteConnectOptions::new()).await.unwrap();
            let attach = sqlx::query("ATTACH DATABASE $1 AS kb").bind(path.to_string_lossy().into_owned());
            attach.execute(&mut connection).await.unwrap();
            Behind::Sqlite(connection)
        }
        DatabaseUrl::Postgres(options) => {
            Behind::Postgres(PgConnection::connect_with(options).await.unwrap())
        }
    }
}

/// `table.column` of everything in `kb`.
async fn columns(bed: &Bed) -> BTreeSet<String> {
    const SQLITE: &str = "SELECT t.name || '.' || c.name FROM kb.sqlite_schema t, pragma_table_info(t.name, 'kb') c \
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";
    const POSTGRES: &str =
        "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'kb'";
    let columns: Vec<String> = match behind(bed).await {
        Behind::Sqlite(mut db) => sqlx::query_scalar(SQLITE).fetch_all(&mut db).await.unwrap(),
        Behind::Postgres(mut db) => sqlx::query_scalar(POSTGRES).fetch_all(&mut db).await.unwrap(),
    };
    columns.into_iter().collect()
}

/// What a thief of the database would read: every row of the tables with secrets and tokens.
pub(crate) async fn everything_as_text(bed: &Bed) -> String {
    const POSTGRES: &str = "SELECT row_to_json(s)::text FROM kb.project_secrets s UNION ALL \
         SELECT row_to_json(t)::text FROM kb.tokens t UNION ALL SELECT row_to_json(k)::text FROM kb.master_key k UNION ALL \
         SELECT row_to_json(l)::text FROM kb.server_logins l";
    match (behind(bed).await, &bed.url) {
        (Behind::Postgres(mut db), _) => {
            sqlx::query_scalar::<_, String>(POSTGRES).fetch_all(&mut db).await.unwrap().join("\n")
        }
        (Behind::Sqlite(_), DatabaseUrl::Sqlite(path)) => {
            // The file and its log, byte for byte.
            let files = std::fs::read_dir(path.parent().unwrap()).unwrap();
            let bytes: Vec<u8> =
                files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => unreachable!("a SQLite connection is made for a SQLite address"),
    }
}

pub(crate) async fn count_of_secrets(bed: &Bed) -> i64 {
    const SQL: &str = "SELECT COUNT(*) FROM kb.project_secrets";
    match behind(bed).await {
        Behind::Sqlite(mut db) => sqlx::query_scalar(SQL).fetch_one(&mut db).await.unwrap(),
        Behind::Postgres(mut db) => sqlx::query_scalar(SQL).fetch_one(&mut db).await.unwrap(),
    }
}

async fn execute(bed: &Bed, sql: &'static str) {
    match behind(bed).await {
        Behind::Sqlite(mut db) => _ = sqlx::query(sql).execute(&mut db).await.unwrap(),
        Behind::Postgres(mut db) => _ = sqlx::query(sql).execute(&mut db).await.unwrap(),
    }
}

/// What an attacker who can write to the database might try.
pub(crate) async fn swap_two_secrets(bed: &Bed) {
    execute(
        bed,
        "UPDATE kb.project_secrets SET sealed = (SELECT o.sealed FROM kb.project_secrets o WHERE o.name <> kb.project_secrets.name)",
    )
    .await;
}

/// The same with logins.
pub(crate) async fn swap_two_logins(bed: &Bed) {
    execute(
        bed,
        "UPDATE kb.server_logins SET sealed = (SELECT o.sealed FROM kb.server_logins o WHERE o.server_id <> kb.server_logins.server_id)",
    )
    .await;
}

/// Two tokens whose hashes begin alike, as about one in 2^64 pairs do.
pub(crate) async fn give_all_tokens_the_lookup_of_the_first(bed: &Bed) {
    execute(bed, "UPDATE kb.tokens SET lookup = (SELECT o.lookup FROM kb.tokens o WHERE o.name = 'first')")
        .await;
}

/// As a newer Cofer would leave it.
pub(crate) async fn add_migration_of_the_future(bed: &Bed) {
    execute(
        bed,
        "INSERT INTO kb.schema_migrations (version, description, installed_on, success, checksum, execution_time) \
         SELECT 9999, 'future', installed_on, success, checksum, 0 FROM kb.schema_migrations WHERE version = 1",
    )
    .await;
}
