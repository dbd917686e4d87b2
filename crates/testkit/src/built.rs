//! Finds programs of this workspace that are built with the tests.

use std::env;
use std::path::PathBuf;

/// The program beside this test (`target/<profile>/`), or the one that the variable names.
pub(crate) fn find(program: &str, package: &str, variable: &str) -> PathBuf {
    if let Some(path) = env::var_os(variable) {
        return path.into();
    }
    let test = env::current_exe().expect("a test knows its own path");
    let built =
        test.ancestors().skip(1).take(2).map(|folder| folder.join(program)).find(|path| path.exists());
    built.unwrap_or_else(|| {
        panic!("{program} is not beside {}: run `cargo build -p {package}`", test.display())
    })
}
