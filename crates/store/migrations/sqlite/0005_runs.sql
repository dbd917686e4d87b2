-- Agent runs: what is needed to read one back, and to go on with it. Its twin is ../postgres; a test compares the two.

ALTER TABLE kb.agent_runs ADD COLUMN error TEXT;
ALTER TABLE kb.agent_runs ADD COLUMN system TEXT;
ALTER TABLE kb.agent_runs ADD COLUMN steps BIGINT NOT NULL DEFAULT 0;
ALTER TABLE kb.agent_runs ADD COLUMN caller TEXT;
ALTER TABLE kb.agent_runs ADD COLUMN trace_id TEXT;
-- Runs that are under way, however many there were.
CREATE INDEX kb.agent_runs_by_updated_at ON agent_runs (updated_at) WHERE status = 'running';
-- Runs are read newest first, page by page.
DROP INDEX kb.agent_runs_by_project_id_and_created_at;
CREATE INDEX kb.agent_runs_by_project_id_and_created_at ON agent_runs (project_id, created_at, id);

-- Messages have an order, and one that two writers disagree about is refused.
ALTER TABLE kb.agent_run_messages ADD COLUMN position BIGINT NOT NULL DEFAULT 0;
DROP INDEX kb.agent_run_messages_by_run_id_and_created_at;
CREATE UNIQUE INDEX kb.agent_run_messages_by_run_id_and_position ON agent_run_messages (run_id, position);
