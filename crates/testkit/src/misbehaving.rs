//! Where the misbehaving MCP server is. What it can do is in its own `--help`.

use std::path::PathBuf;

use crate::built;

/// The program, as built with the tests, or the one that the variable names.
pub fn program() -> PathBuf {
    built::find("misbehaving-mcp-server", "cofer-misbehaving", "COFER_TEST_MISBEHAVING_SERVER")
}
