//! Agent runs and what was said in them: written as they happen, read newest first, and a run's messages in their order.

use cofer_model::{MessageId, Moment, ProjectId, RunFilter, RunId, RunMessage, RunRecord, RunStatus, Usage};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Pool, STATEMENT_DEADLINE, Store, on_each, rows_changed_on_each, within};
use crate::failure::{StoreError, without_nul};

/// So many are dropped by one statement, with all that hangs on them.
const DROPPED_AT_ONCE: i64 = 200;
/// Later than anything that was recorded.
const FOR_EVER: std::time::Duration = std::time::Duration::MAX;

/// Where a page of runs ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor {
    pub created_at: Moment,
    pub id: RunId,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    pub steps: i64,
    pub usage: Usage,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    project_id: Stored<Uuid>,
    status: String,
    reason: Option<String>,
    error: Option<String>,
    model: Option<String>,
    system: Option<String>,
    steps: i64,
    usage: Option<String>,
    caller: Option<String>,
    trace_id: Option<String>,
    created_at: Stored<Moment>,
    updated_at: Stored<Moment>,
}

impl TryFrom<Row> for RunRecord {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let usage = row.usage.as_deref().map(serde_json::from_str).transpose();
        Ok(Self {
            id: RunId(row.id.0),
            project_id: ProjectId(row.project_id.0),
            status: row.status.parse().map_err(StoreError::unreadable)?,
            reason: row.reason,
            error: row.error,
            model: row.model.unwrap_or_default(),
            system: row.system,
            steps: row.steps,
            usage: usage.map_err(StoreError::unreadable)?.unwrap_or_default(),
            caller: row.caller,
            trace_id: row.trace_id,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

#[derive(sqlx::FromRow)]
struct MessageRow {
    id: Stored<Uuid>,
    run_id: Stored<Uuid>,
    position: i64,
    step_number: i64,
    role: String,
    content: String,
    created_at: Stored<Moment>,
}

impl TryFrom<MessageRow> for RunMessage {
    type Error = StoreError;

    fn try_from(row: MessageRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: MessageId(row.id.0),
            run_id: RunId(row.run_id.0),
            position: row.position,
            step_number: row.step_number,
            role: row.role.parse().map_err(StoreError::unreadable)?,
            content: row.content,
            created_at: row.created_at.0,
        })
    }
}

fn written(usage: &Usage) -> Result<String, StoreError> {
    serde_json::to_string(usage).map_err(StoreError::unreadable)
}

impl Store {
    pub async fn create_run(&self, run: &RunRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO kb.agent_runs (id, project_id, status, model, system, steps, usage, caller, trace_id, \
             created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)";
        let usage = written(&run.usage)?;
        rows_changed_on_each!(
            self,
            sqlx::query(SQL)
                .bind(Stored(run.id.0))
                .bind(Stored(run.project_id.0))
                .bind(run.status.as_str())
                .bind(without_nul(&run.model))
                .bind(run.system.as_deref().map(without_nul))
                .bind(run.steps)
                .bind(usage.as_str())
                .bind(run.caller.as_deref().map(without_nul))
                .bind(run.trace_id.as_deref().map(without_nul))
                .bind(Stored(run.created_at))
        )
        .map(drop)
    }

    /// Sets a run going again, unless it is: then nothing happens, and this says so.
    pub async fn resume_run(
        &self,
        id: RunId,
        model: &str,
        system: Option<&str>,
        now: Moment,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE kb.agent_runs SET status = 'running', reason = NULL, error = NULL, model = $2, system = $3, \
             updated_at = $4 WHERE id = $1 AND status <> 'running'";
        let changed = rows_changed_on_each!(
            self,
            sqlx::query(SQL)
                .bind(Stored(id.0))
                .bind(without_nul(model))
                .bind(system.map(without_nul))
                .bind(Stored(now))
        )?;
        Ok(changed > 0)
    }

    /// Writes down what was said, and how far the run has come with it, all or nothing.
    pub async fn append_messages(
        &self,
        run: RunId,
        messages: &[RunMessage],
        progress: RunProgress,
        now: Moment,
    ) -> Result<(), StoreError> {
        const MESSAGE: &str = "INSERT INTO kb.agent_run_messages (id, run_id, position, step_number, role, content, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING";
        const PROGRESS: &str =
            "UPDATE kb.agent_runs SET steps = $2, usage = $3, updated_at = $4 WHERE id = $1";
        let usage = written(&progress.usage)?;
        let quick = self.quick();
        on_each!(quick, |db| async {
            let mut transaction = db.begin().await?;
            for message in messages {
                let insert = sqlx::query(MESSAGE)
                    .bind(Stored(message.id.0))
                    .bind(Stored(run.0))
                    .bind(message.position)
                    .bind(message.step_number)
                    .bind(message.role.as_str())
                    .bind(without_nul(&message.content))
                    .bind(Stored(message.created_at));
                insert.execute(&mut *transaction).await?;
            }
            let update = sqlx::query(PROGRESS)
                .bind(Stored(run.0))
                .bind(progress.steps)
                .bind(usage.as_str())
                .bind(Stored(now));
            update.execute(&mut *transaction).await?;
            transaction.commit().await
        })?;
        self.sync_soon();
        Ok(())
    }

    /// Ends a run, unless it has ended.
    pub async fn end_run(
        &self,
        id: RunId,
        status: RunStatus,
        reason: &str,
        error: Option<&str>,
        now: Moment,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kb.agent_runs SET status = $2, reason = $3, error = $4, updated_at = $5 \
             WHERE id = $1 AND status = 'running'";
        rows_changed_on_each!(
            self,
            sqlx::query(SQL)
                .bind(Stored(id.0))
                .bind(status.as_str())
                .bind(without_nul(reason))
                .bind(error.map(without_nul))
                .bind(Stored(now))
        )
        .map(drop)
    }

    /// Says that these runs are still under way.
    pub async fn touch_runs(&self, ids: &[RunId], now: Moment) -> Result<(), StoreError> {
        const ALL: &str =
            "UPDATE kb.agent_runs SET updated_at = $2 WHERE id = ANY($1) AND status = 'running'";
        const ONE: &str = "UPDATE kb.agent_runs SET updated_at = $2 WHERE id = $1 AND status = 'running'";
        self.check_file()?;
        match &self.pool {
            Pool::Postgres(db) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
                let touch = sqlx::query(ALL).bind(ids).bind(Stored(now)).execute(db);
                within(STATEMENT_DEADLINE, touch).await?;
            }
            Pool::Sqlite(db) => {
                for id in ids {
                    let touch = sqlx::query(ONE).bind(Stored(id.0)).bind(Stored(now)).execute(db);
                    within(STATEMENT_DEADLINE, touch).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends runs of which nobody has heard since this moment: whoever had them is gone. Says how many.
    pub async fn end_silent_runs(&self, since: Moment, error: &str, now: Moment) -> Result<u64, StoreError> {
        const SQL: &str = "UPDATE kb.agent_runs SET status = 'failed', reason = 'error', error = $2, updated_at = $3 \
             WHERE status = 'running' AND updated_at < $1";
        rows_changed_on_each!(self, sqlx::query(SQL).bind(Stored(since)).bind(error).bind(Stored(now)))
    }

    pub async fn run(&self, project: ProjectId, id: RunId) -> Result<Option<RunRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.agent_runs WHERE id = $1 AND project_id = $2";
        let row: Option<Row> = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(id.0))
            .bind(Stored(project.0))
            .fetch_optional(db))?;
        row.map(RunRecord::try_from).transpose()
    }

    /// Runs of a project, newest first, from behind the cursor on.
    pub async fn runs(
        &self,
        project: ProjectId,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: u32,
    ) -> Result<Vec<RunRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.agent_runs WHERE project_id = $1 AND created_at >= $2 AND created_at < $3 \
             AND (created_at, id) < ($4, $5) AND ($6 IS NULL OR status = $6) AND ($7 IS NULL OR model = $7) \
             ORDER BY created_at DESC, id DESC LIMIT $8";
        let end_of_time = Moment::now().after(FOR_EVER);
        let cursor = after.unwrap_or(RunCursor { created_at: end_of_time, id: RunId(Uuid::max()) });
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(project.0))
            .bind(Stored(filter.since.unwrap_or(Moment::from_unix_ms(0))))
            .bind(Stored(filter.until.unwrap_or(end_of_time)))
            .bind(Stored(cursor.created_at))
            .bind(Stored(cursor.id.0))
            .bind(filter.status.map(RunStatus::as_str))
            .bind(filter.model.as_deref().map(without_nul))
            .bind(i64::from(limit))
            .fetch_all(db))?;
        rows.into_iter().map(RunRecord::try_from).collect()
    }

    /// What was said in a run, from this position on.
    pub async fn run_messages(
        &self,
        run: RunId,
        from: i64,
        limit: u32,
    ) -> Result<Vec<RunMessage>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.agent_run_messages WHERE run_id = $1 AND position >= $2 ORDER BY position LIMIT $3";
        let rows: Vec<MessageRow> = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(run.0))
            .bind(from)
            .bind(i64::from(limit))
            .fetch_all(db))?;
        rows.into_iter().map(RunMessage::try_from).collect()
    }

    /// Drops runs of a project that ended before this moment, with all that was said and called in them, a limited number at a time.
    /// Says how many; 0 means that none are left.
    pub async fn drop_runs_before(&self, project: ProjectId, before: Moment) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM kb.agent_runs WHERE id IN (SELECT id FROM kb.agent_runs \
             WHERE project_id = $1 AND updated_at < $2 AND status <> 'running' ORDER BY created_at LIMIT $3)";
        rows_changed_on_each!(
            self,
            sqlx::query(SQL).bind(Stored(project.0)).bind(Stored(before)).bind(DROPPED_AT_ONCE)
        )
    }

    /// Whether several processes may have it open at once.
    pub fn is_shared(&self) -> bool {
        self.file.is_none()
    }
}
