//! Where the MCP server is that has everything the conformance suites ask for.

use std::path::PathBuf;

use crate::built;

/// The program, as built with the tests, or the one that the variable names.
pub fn program() -> PathBuf {
    built::find("cofer-fixture", "cofer-fixture", "COFER_TEST_FIXTURE_SERVER")
}
