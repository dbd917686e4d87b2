-- The house: tenants, who may enter, what they keep secret, and the tables the contract names.
-- Its twin is ../postgres; a test compares the two.

-- The tenants.
CREATE TABLE kb.projects (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    namespacing TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);

-- Access tokens. `lookup` finds a row, `hash` (SHA-256 of the whole token) decides; the token itself is nowhere.
CREATE TABLE kb.tokens (
    id TEXT PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    lookup BIGINT NOT NULL,
    hash BLOB NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    last_used_at TEXT
);
CREATE INDEX kb.tokens_by_lookup ON tokens (lookup);
CREATE INDEX kb.tokens_by_project_id ON tokens (project_id);

-- Which master key the secrets are sealed with: its fingerprint, and a known text sealed with it. One row.
CREATE TABLE kb.master_key (
    slot BIGINT PRIMARY KEY CHECK (slot = 1),
    id TEXT NOT NULL,
    sealed_check BLOB NOT NULL,
    created_at TEXT NOT NULL
);

-- Secrets, sealed under the master key named by `key_id` and bound to project and name.
CREATE TABLE kb.project_secrets (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (project_id, name)
);

-- Hosted servers and environments: what was asked for.
CREATE TABLE kb.agent_workspaces (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    container_type TEXT NOT NULL,
    name TEXT NOT NULL,
    provider TEXT,
    status TEXT NOT NULL,
    config TEXT NOT NULL,
    restart_count BIGINT NOT NULL DEFAULT 0,
    last_crash TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (project_id, container_type, name)
);

-- External MCP servers.
CREATE TABLE kb.project_mcp_servers (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    product_id TEXT,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    transport TEXT NOT NULL,
    config TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (project_id, name)
);

-- Agent conversations.
CREATE TABLE kb.agent_runs (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    status TEXT NOT NULL,
    reason TEXT,
    model TEXT,
    usage TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE INDEX kb.agent_runs_by_project_id_and_created_at ON agent_runs (project_id, created_at);

-- What was said in them.
CREATE TABLE kb.agent_run_messages (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES agent_runs (id) ON DELETE CASCADE,
    step_number BIGINT NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE INDEX kb.agent_run_messages_by_run_id_and_created_at ON agent_run_messages (run_id, created_at);

-- Every tool call, by whichever door it came.
CREATE TABLE kb.agent_run_tool_calls (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    run_id TEXT REFERENCES agent_runs (id) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    server TEXT NOT NULL,
    input TEXT,
    output TEXT,
    status TEXT NOT NULL,
    duration_ms BIGINT,
    step_number BIGINT,
    caller TEXT,
    trace_id TEXT,
    created_at TEXT NOT NULL
);
CREATE INDEX kb.agent_run_tool_calls_by_project_id_and_created_at ON agent_run_tool_calls (project_id, created_at);
CREATE INDEX kb.agent_run_tool_calls_by_run_id ON agent_run_tool_calls (run_id);
