-- Logins at servers elsewhere: tokens for one server each, sealed like secrets. Its twin is ../sqlite; a test compares the two.

-- A row without tokens is what is left of a login that ended: who we are to whoever gave them.
CREATE TABLE kb.server_logins (
    server_id UUID PRIMARY KEY REFERENCES kb.server_register (server_id) ON DELETE CASCADE,
    has_tokens BOOLEAN NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);
