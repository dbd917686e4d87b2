-- Hosting: which Cofer this is, what a person wants of a server, what was last known of it, and its history.
-- Its twin is ../postgres; a test compares the two.

-- Written on every sandbox and volume, so that several Cofers can share an engine. One row.
CREATE TABLE kb.instance (
    slot BIGINT PRIMARY KEY CHECK (slot = 1),
    id TEXT NOT NULL,
    created_at TEXT NOT NULL
);

ALTER TABLE kb.agent_workspaces ADD COLUMN wanted TEXT NOT NULL DEFAULT 'running';
ALTER TABLE kb.agent_workspaces ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE kb.agent_workspaces ADD COLUMN runs BIGINT NOT NULL DEFAULT 0;
ALTER TABLE kb.agent_workspaces ADD COLUMN last_exit TEXT;
ALTER TABLE kb.agent_workspaces ADD COLUMN sandbox TEXT;
ALTER TABLE kb.agent_workspaces ADD COLUMN last_used_at TEXT;

-- What happened to each server, newest kept.
CREATE TABLE kb.agent_workspace_events (
    id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL REFERENCES agent_workspaces (id) ON DELETE CASCADE,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX kb.agent_workspace_events_by_workspace_id_and_id ON agent_workspace_events (workspace_id, id);
