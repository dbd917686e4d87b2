//! The record of tool calls: written in batches, read newest first.
//!
//! A batch is one transaction of few statements, because there are many calls and each commit waits for the disk. It may be written
//! again after an answer that never came: a call that is there already is left as it is.
//!
//! On SQLite the statement of every day binds each value, which is twice as fast as anything that looks up projects and runs on
//! the way. Where one of those is gone, the database refuses the batch as a whole, and the forgiving statement takes over.

use cofer_model::{CallFilter, CallId, CallStatus, Moment, ProjectId, RunId, ToolCallRecord};
use serde_json::json;
use sqlx::sqlite::SqlitePool;
use sqlx::types::time::OffsetDateTime;
use sqlx::{QueryBuilder, Sqlite};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Pool, STATEMENT_DEADLINE, Store, on_each, within};
use crate::failure::{StoreError, without_nul};

/// So many are written by one statement, and its text is remembered.
const WRITTEN_AT_ONCE: usize = 256;
/// So many are dropped by one statement: a writer that waits its turn behind it does not wait long.
const DROPPED_AT_ONCE: i64 = 5000;

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCursor {
    pub created_at: Moment,
    pub id: CallId,
}

impl CallCursor {
    /// Just after this one.
    pub fn after(record: &ToolCallRecord) -> Self {
        Self { created_at: record.created_at, id: record.id }
    }
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Stored<Uuid>,
    run_id: Option<Stored<Uuid>>,
    tool_name: String,
    server: String,
    input: Option<String>,
    output: Option<String>,
    status: String,
    duration_ms: Option<i64>,
    step_number: Option<i64>,
    caller: Option<String>,
    trace_id: Option<String>,
    created_at: Stored<Moment>,
}

impl TryFrom<Row> for ToolCallRecord {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: CallId(row.id.0),
            project_id: ProjectId(row.project_id.0),
            run_id: row.run_id.map(|id| RunId(id.0)),
            tool_name: row.tool_name,
            server: row.server,
            input: row.input,
            output: row.output,
            status: row.status.parse().map_err(StoreError::unreadable)?,
            duration_ms: row.duration_ms,
            step_number: row.step_number,
            caller: row.caller,
            trace_id: row.trace_id,
            created_at: row.created_at.0,
        })
    }
}

/// A page of what belongs to `$9`.
macro_rules! select {
    ($whose:literal) => {
        concat!(
            "SELECT * FROM kb.agent_run_tool_calls WHERE ",
            $whose,
            " = $9 AND created_at >= $1 AND created_at <= $2 AND (created_at, id) < ($3, $4) \
             AND ($5 IS NULL OR tool_name = $5) AND ($6 IS NULL OR server = $6) AND ($7 IS NULL OR status = $7) \
             ORDER BY created_at DESC, id DESC LIMIT $8"
        )
    };
}

impl Store {
    /// Writes a batch down, all or nothing, and says how many were new. Calls of projects that are gone are dropped; one of a run
    /// that is not there (any more) is kept without it.
    pub async fn record_calls(&self, records: &[ToolCallRecord]) -> Result<u64, StoreError> {
        self.check_file()?;
        // The next step of a run must not wait for the disk behind the calls of the one before.
        let are_of_runs = records.iter().all(|record| record.run_id.is_some());
        let store = if are_of_runs { self.quick() } else { self.clone() };
        match &store.pool {
            Pool::Sqlite(db) => {
                let written = within(STATEMENT_DEADLINE, write_on_sqlite(db, records)).await?;
                if are_of_runs {
                    self.sync_soon();
                }
                Ok(written)
            }
            Pool::Postgres(db) => {
                let write = Columns::of(records).bind_to(sqlx::query(ON_POSTGRES)).execute(db);
                Ok(within(STATEMENT_DEADLINE, write).await?.rows_affected())
            }
        }
    }

    /// Calls of a project, newest first, from behind the cursor on.
    pub async fn tool_calls(
        &self,
        project: ProjectId,
        filter: &CallFilter,
        after: Option<CallCursor>,
        limit: u32,
    ) -> Result<Vec<ToolCallRecord>, StoreError> {
        const OF_PROJECT: &str = select!("project_id");
        const OF_RUN: &str = select!("run_id");
        let (sql, whose) = match filter.run_id {
            Some(run) => (OF_RUN, run.0),
            None => (OF_PROJECT, project.0),
        };
        let since = filter.since.unwrap_or(Moment::from_unix_ms(0));
        let cursor = after.unwrap_or(CallCursor { created_at: end_of_time(), id: CallId(Uuid::max()) });
        // One bound for both, so that an index finds where to begin; moments are whole milliseconds.
        let last = |until: Moment| Moment::from_unix_ms(until.unix_ms() - 1);
        let newest = filter.until.map_or(cursor.created_at, |until| last(until).min(cursor.created_at));
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(sql)
            .bind(Stored(since))
            .bind(Stored(newest))
            .bind(Stored(cursor.created_at))
            .bind(Stored(cursor.id.0))
            .bind(filter.tool.as_deref().map(without_nul))
            .bind(filter.server.as_deref().map(without_nul))
            .bind(filter.status.map(CallStatus::as_str))
            .bind(i64::from(limit))
            .bind(Stored(whose))
            .fetch_all(db))?;
        // A run is of one project: its calls are all of this one, or none is.
        let of_this_project = rows.into_iter().filter(|row| row.project_id.0 == project.0);
        of_this_project.map(ToolCallRecord::try_from).collect()
    }

    /// Drops calls of a project from before this moment, a limited number at a time. Says how many; fewer than before the limit
    /// means that none are left.
    pub async fn drop_calls_before(&self, project: ProjectId, before: Moment) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM kb.agent_run_tool_calls WHERE id IN (SELECT id FROM kb.agent_run_tool_calls \
             WHERE project_id = $1 AND created_at < $2 ORDER BY created_at LIMIT $3)";
        crate::database::rows_changed_on_each!(
            self,
            sqlx::query(SQL).bind(Stored(project.0)).bind(Stored(before)).bind(DROPPED_AT_ONCE)
        )
    }
}

/// Later than anything that was recorded.
fn end_of_time() -> Moment {
    Moment::now().after(std::time::Duration::MAX)
}

async fn write_on_sqlite(db: &SqlitePool, records: &[ToolCallRecord]) -> sqlx::Result<u64> {
    let mut transaction = db.begin().await?;
    let mut written = 0;
    for batch in records.chunks(WRITTEN_AT_ONCE) {
        let mut insert = bound(batch);
        let insert = insert.build().persistent(batch.len() == WRITTEN_AT_ONCE).execute(&mut *transaction);
        let done = match insert.await {
            Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => {
                sqlx::query(FORGIVING).bind(as_json(batch)).execute(&mut *transaction).await
            }
            done => done,
        };
        written += done?.rows_affected();
    }
    transaction.commit().await?;
    Ok(written)
}

fn bound(batch: &[ToolCallRecord]) -> QueryBuilder<Sqlite> {
    const INSERT: &str = "INSERT INTO kb.agent_run_tool_calls (id, project_id, run_id, tool_name, server, input, output, status, \
         duration_ms, step_number, caller, trace_id, created_at) ";
    let mut query = QueryBuilder::new(INSERT);
    query.push_values(batch, |mut row, record| {
        row.push_bind(Stored(record.id.0))
            .push_bind(Stored(record.project_id.0))
            .push_bind(record.run_id.map(|run| Stored(run.0)))
            .push_bind(without_nul(&record.tool_name))
            .push_bind(without_nul(&record.server))
            .push_bind(record.input.as_deref().map(without_nul))
            .push_bind(record.output.as_deref().map(without_nul))
            .push_bind(record.status.as_str())
            .push_bind(record.duration_ms)
            .push_bind(record.step_number)
            .push_bind(record.caller.as_deref().map(without_nul))
            .push_bind(record.trace_id.as_deref().map(without_nul))
            .push_bind(Stored(record.created_at));
    });
    query.push(" ON CONFLICT (id) DO NOTHING");
    query
}

/// Every column has its place in a JSON array.
const FORGIVING: &str = "INSERT INTO kb.agent_run_tool_calls (id, project_id, run_id, tool_name, server, input, output, status, \
         duration_ms, step_number, caller, trace_id, created_at) \
     SELECT call.value ->> 0, project.id, (SELECT id FROM kb.agent_runs WHERE id = call.value ->> 2), call.value ->> 3, \
         call.value ->> 4, call.value ->> 5, call.value ->> 6, call.value ->> 7, call.value ->> 8, call.value ->> 9, \
         call.value ->> 10, call.value ->> 11, call.value ->> 12 \
     FROM json_each($1) AS call CROSS JOIN kb.projects AS project ON project.id = call.value ->> 1 \
     WHERE true ON CONFLICT (id) DO NOTHING";

fn as_json(records: &[ToolCallRecord]) -> String {
    let row = |record: &ToolCallRecord| {
        json!([
            record.id,
            record.project_id,
            record.run_id,
            without_nul(&record.tool_name),
            without_nul(&record.server),
            record.input.as_deref().map(without_nul),
            record.output.as_deref().map(without_nul),
            record.status,
            record.duration_ms,
            record.step_number,
            record.caller.as_deref().map(without_nul),
            record.trace_id.as_deref().map(without_nul),
            record.created_at,
        ])
    };
    serde_json::Value::Array(records.iter().map(row).collect()).to_string()
}

const ON_POSTGRES: &str = "INSERT INTO kb.agent_run_tool_calls (id, project_id, run_id, tool_name, server, input, output, status, \
         duration_ms, step_number, caller, trace_id, created_at) \
     SELECT call.id, project.id, run.id, call.tool_name, call.server, call.input, call.output, call.status, call.duration_ms, \
         call.step_number, call.caller, call.trace_id, call.created_at \
     FROM UNNEST($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[], \
         $10::bigint[], $11::text[], $12::text[], $13::timestamptz[]) \
         AS call (id, project_id, run_id, tool_name, server, input, output, status, duration_ms, step_number, caller, trace_id, \
         created_at) \
     JOIN kb.projects AS project ON project.id = call.project_id \
     LEFT JOIN kb.agent_runs AS run ON run.id = call.run_id ON CONFLICT (id) DO NOTHING";

/// A batch, column by column.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    projects: Vec<Uuid>,
    runs: Vec<Option<Uuid>>,
    tools: Vec<String>,
    servers: Vec<String>,
    inputs: Vec<Option<String>>,
    outputs: Vec<Option<String>>,
    statuses: Vec<&'static str>,
    durations: Vec<Option<i64>>,
    steps: Vec<Option<i64>>,
    callers: Vec<Option<String>>,
    traces: Vec<Option<String>>,
    times: Vec<OffsetDateTime>,
}

type PostgresQuery<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

impl Columns {
    fn of(records: &[ToolCallRecord]) -> Self {
        let mut columns = Self::default();
        for record in records {
            columns.ids.push(record.id.0);
            columns.projects.push(record.project_id.0);
            columns.runs.push(record.run_id.map(|run| run.0));
            columns.tools.push(kept(&record.tool_name));
            columns.servers.push(kept(&record.server));
            columns.inputs.push(record.input.as_deref().map(kept));
            columns.outputs.push(record.output.as_deref().map(kept));
            columns.statuses.push(record.status.as_str());
            columns.durations.push(record.duration_ms);
            columns.steps.push(record.step_number);
            columns.callers.push(record.caller.as_deref().map(kept));
            columns.traces.push(record.trace_id.as_deref().map(kept));
            columns.times.push(record.created_at.into());
        }
        columns
    }

    fn bind_to(self, query: PostgresQuery<'static>) -> PostgresQuery<'static> {
        query
            .bind(self.ids)
            .bind(self.projects)
            .bind(self.runs)
            .bind(self.tools)
            .bind(self.servers)
            .bind(self.inputs)
            .bind(self.outputs)
            .bind(self.statuses)
            .bind(self.durations)
            .bind(self.steps)
            .bind(self.callers)
            .bind(self.traces)
            .bind(self.times)
    }
}

fn kept(text: &str) -> String {
    without_nul(text).into_owned()
}
