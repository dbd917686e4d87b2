-- Logins at servers elsewhere: tokens for one server each, sealed like secrets. Its twin is ../postgres; a test compares the two.

-- A row without tokens is what is left of a login that ended: who we are to whoever gave them.
CREATE TABLE kb.server_logins (
    server_id TEXT PRIMARY KEY REFERENCES server_register (server_id) ON DELETE CASCADE,
    has_tokens BOOLEAN NOT NULL,
    key_id TEXT NOT NULL,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
