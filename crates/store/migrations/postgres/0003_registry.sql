-- The registry: every server's place in the order of registration, external servers, products, the tools that were
-- discovered, and the record of calls. Its twin is ../sqlite; a test compares the two.

-- One row for each server, hosted or external: a name is used once in a project, and whoever registers later has the
-- higher position. A position is never used again.
CREATE TABLE kb.server_register (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server_id UUID NOT NULL UNIQUE,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    UNIQUE (project_id, name)
);
INSERT INTO kb.server_register (server_id, project_id, name, kind)
    SELECT id, project_id, name, 'hosted' FROM kb.agent_workspaces WHERE container_type = 'mcp_server' ORDER BY id;

-- Sets of servers that came with one manifest.
CREATE TABLE kb.products (
    id UUID PRIMARY KEY,
    project_id UUID NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    manifest TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (project_id, name)
);

ALTER TABLE kb.project_mcp_servers ADD COLUMN session TEXT NOT NULL DEFAULT 'auto';
CREATE INDEX project_mcp_servers_by_product_id ON kb.project_mcp_servers (product_id);

-- Tools as servers listed them, to the letter.
CREATE TABLE kb.project_mcp_tools (
    server_id UUID NOT NULL REFERENCES kb.server_register (server_id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    name TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    tool TEXT NOT NULL,
    PRIMARY KEY (server_id, name)
);

-- What was sent and what was answered is kept to the letter, too, which JSONB does not do.
ALTER TABLE kb.agent_run_tool_calls ALTER COLUMN input TYPE TEXT;
ALTER TABLE kb.agent_run_tool_calls ALTER COLUMN output TYPE TEXT;

-- Calls are read newest first, page by page.
DROP INDEX kb.agent_run_tool_calls_by_project_id_and_created_at;
DROP INDEX kb.agent_run_tool_calls_by_run_id;
CREATE INDEX agent_run_tool_calls_by_project_id_and_created_at
    ON kb.agent_run_tool_calls (project_id, created_at, id);
CREATE INDEX agent_run_tool_calls_by_run_id ON kb.agent_run_tool_calls (run_id) WHERE run_id IS NOT NULL;
