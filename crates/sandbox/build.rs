//! Builds the helper that runs inside environments' containers and beside programs, so that Cofer carries it along and stays one program.
//!
//! The helper must run in any image, so it is static: this same workspace is built once more, for that one program, with settings of its own and a
//! target directory of its own. Nothing is downloaded: all that it needs is needed here too, and was there before this ran.

use std::error::Error;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the outer Cargo, or whoever called it, says about the outer build alone.
const OF_THE_OUTER_BUILD: [&str; 12] = [
    "CARGO_BUILD_",
    "CARGO_CFG_",
    "CARGO_ENCODED_",
    "CARGO_FEATURE_",
    "CARGO_INCREMENTAL",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PRIMARY_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CLIPPY_",
    "LLVM_PROFILE_",
];
const WRAPPERS: [&str; 6] =
    ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "RUSTDOCFLAGS", "TARGET", "HOST"];

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for path in ["build.rs", "../inside/src", "../inside/Cargo.toml", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let target = env::var("TARGET")?;
    let built = build(&here, &out.join("inside"), &target)?;
    let helper = fs::read(built)?;
    fs::write(out.join("cofer-inside"), &helper)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&helper);
    println!("cargo::rustc-env=COFER_INSIDE_HASH={:016x}", hasher.finish());
    Ok(())
}

fn build(here: &Path, target_dir: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").ok_or("there is no Cargo")?);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let disturbs = OF_THE_OUTER_BUILD.iter().any(|prefix| text.starts_with(prefix));
        if disturbs || WRAPPERS.contains(&text.as_ref()) {
            cargo.env_remove(&name);
        }
    }
    let status = cargo
        .current_dir(here)
        .args(["build", "--release", "--frozen", "--package", "cofer-inside", "--bin", "cofer-inside"])
        .args(["--target", target, "--target-dir"])
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "true")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .status()?;
    if !status.success() {
        return Err(format!(
            "the helper for containers could not be built ({status}); what Cargo said is above"
        )
        .into());
    }
    Ok(target_dir.join(target).join("release/cofer-inside"))
}
