-- The house: tenants, who may enter, what they keep secret, and the tables the contract names.
-- Its twin is ../sqlite; a test compares the two.

-- The tenants.
CREATE TABLE kb.projects (
    id UUID PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    namespacing TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);

-- Access tokens. `lookup` finds a row, `hash` (SHA-256 of the whole token) decides; the token itself is nowhere.
CREATE TABLE kb.tokens (
    id UUID PRIMARY KEY,
    project_id UUID REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    scopes JSONB NOT NULL,
    lookup BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ
);
CREATE INDEX tokens_by_lookup ON kb.tokens (lookup);
CREATE INDEX tokens_by_project_id ON kb.tokens (project_id);

-- Which master key the secrets are sealed with: its fingerprint, and a known text sealed with it. One row.
CREATE TABLE kb.master_key (
    slot BIGINT PRIMARY KEY CHECK (slot = 1),
    id TEXT NOT NULL,
    sealed_check BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

-- Secrets, sealed under the master key named by `key_id` and bound to project and name.
CREATE TABLE kb.project_secrets (
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, name)
);

-- Hosted servers and environments: what was asked for.
CREATE TABLE kb.agent_workspaces (
    id UUID PRIMARY KEY,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    container_type TEXT NOT NULL,
    name TEXT NOT NULL,
    provider TEXT,
    status TEXT NOT NULL,
    config JSONB NOT NULL,
    restart_count BIGINT NOT NULL DEFAULT 0,
    last_crash TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (project_id, container_type, name)
);

-- External MCP servers.
CREATE TABLE kb.project_mcp_servers (
    id UUID PRIMARY KEY,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    product_id UUID,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    transport TEXT NOT NULL,
    config JSONB NOT NULL,
    enabled BOOLEAN NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (project_id, name)
);

-- Agent conversations.
CREATE TABLE kb.agent_runs (
    id UUID PRIMARY KEY,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    status TEXT NOT NULL,
    reason TEXT,
    model TEXT,
    usage JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX agent_runs_by_project_id_and_created_at ON kb.agent_runs (project_id, created_at);

-- What was said in them.
CREATE TABLE kb.agent_run_messages (
    id UUID PRIMARY KEY,
    run_id UUID NOT NULL REFERENCES kb.agent_runs (id) ON DELETE CASCADE,
    step_number BIGINT NOT NULL,
    role TEXT NOT NULL,
    content JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX agent_run_messages_by_run_id_and_created_at ON kb.agent_run_messages (run_id, created_at);

-- Every tool call, by whichever door it came.
CREATE TABLE kb.agent_run_tool_calls (
    id UUID PRIMARY KEY,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    run_id UUID REFERENCES kb.agent_runs (id) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    server TEXT NOT NULL,
    input JSONB,
    output JSONB,
    status TEXT NOT NULL,
    duration_ms BIGINT,
    step_number BIGINT,
    caller TEXT,
    trace_id TEXT,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX agent_run_tool_calls_by_project_id_and_created_at ON kb.agent_run_tool_calls (project_id, created_at);
CREATE INDEX agent_run_tool_calls_by_run_id ON kb.agent_run_tool_calls (run_id);
