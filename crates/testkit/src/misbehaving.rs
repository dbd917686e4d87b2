//! Where the misbehaving MCP server is. What it can do is in its own `--help`.

use std::env;
use std::path::PathBuf;

const PROGRAM: &str = "misbehaving-mcp-server";
const VARIABLE: &str = "COFER_TEST_MISBEHAVING_SERVER";

/// The program, as built with the tests (`target/<profile>/`), or the one that the variable names.
pub fn program() -> PathBuf {
    if let Some(path) = env::var_os(VARIABLE) {
        return path.into();
    }
    let test = env::current_exe().expect("a test knows its own path");
    let built =
        test.ancestors().skip(1).take(2).map(|folder| folder.join(PROGRAM)).find(|path| path.exists());
    built.unwrap_or_else(|| {
        panic!("{PROGRAM} is not beside {}: run `cargo build -p cofer-misbehaving`", test.display())
    })
}
