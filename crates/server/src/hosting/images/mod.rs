//! Images for servers that are published as npm or PyPI packages, so that nobody has to write a Dockerfile.
//!
//! The name of an image is made of what went into it (package, base, recipe): one that is there is used again, and another
//! version, base or recipe is another image. Commands are lists, not shell lines, and packages are checked besides.

use std::sync::Arc;

use cofer_model::{Kind, ProviderName};
use cofer_sandbox::{ImageRecipe, SandboxError};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Hosting;
use crate::http::ApiError;

const LINK_JS: &str = include_str!("link.js");
const LINK_PY: &str = include_str!("link.py");
const MARK_BYTES: usize = 6;
const PACKAGE_CHARS_MAX: usize = 214;

/// `POST /api/v1/mcp/images`: one of `npx` and `uvx`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildImage {
    /// An npm package, such as `@modelcontextprotocol/server-everything@2026.1.14`.
    npx: Option<String>,
    /// A PyPI package, such as `mcp-server-time` or `mcp-server-time==2026.1.26`.
    uvx: Option<String>,
    /// Instead of the configured base image.
    base: Option<String>,
    provider: Option<ProviderName>,
    /// Tells what it would be called, and builds nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BuiltImage {
    /// For `image` of a registration.
    pub image: String,
    pub base: String,
    /// The provider whose engine has it.
    pub provider: ProviderName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ecosystem {
    Npm,
    Pypi,
}

impl Hosting {
    /// Builds it, unless it is there.
    pub(crate) async fn build_image(&self, request: BuildImage) -> Result<BuiltImage, ApiError> {
        let (ecosystem, package) = match (request.npx, request.uvx) {
            (Some(package), None) => (Ecosystem::Npm, package),
            (None, Some(package)) => (Ecosystem::Pypi, package),
            _ => return Err(ApiError::invalid("npx", "give one of `npx` and `uvx`")),
        };
        let settings = self.settings();
        let (field, setting, default) = match ecosystem {
            Ecosystem::Npm => ("npx", "npx_base_image", &settings.npx_base_image),
            Ecosystem::Pypi => ("uvx", "uvx_base_image", &settings.uvx_base_image),
        };
        check_package(ecosystem, &package).map_err(|rule| ApiError::invalid(field, rule))?;
        let base = request.base.unwrap_or_else(|| default.clone());
        let recipe = recipe(ecosystem, &package, &base);
        let picked = self
            .providers()
            .pick(request.provider, settings.default_provider, settings.require_sandbox)
            .await?;
        if !request.dry_run {
            let built = picked.provider.build_image(&recipe, Arc::new(|_| {})).await;
            built.map_err(|error| base_hint(error, &base, setting))?;
        }
        Ok(BuiltImage { image: recipe.image, base, provider: picked.provider.name() })
    }
}

/// Who has no base image is told how to come by one.
fn base_hint(error: SandboxError, base: &str, setting: &str) -> ApiError {
    match &error {
        SandboxError::ImageMissing { reason, .. } => ApiError::new(
            Kind::Invalid,
            format!(
                "the base image `{base}` is not there and could not be pulled: {reason}. Load one into the engine (`docker pull {base}` \
                 where a registry can be reached, or `docker load`), or name another by the setting `{setting}` or by `base`"
            ),
        )
        .with("field", "base"),
        _ => error.into(),
    }
}

fn recipe(ecosystem: Ecosystem, package: &str, base: &str) -> ImageRecipe {
    let name = bare_name(ecosystem, package);
    let (install, link, script) = match ecosystem {
        Ecosystem::Npm => (
            json!([
                "npm",
                "install",
                "--prefix",
                "/opt/mcp",
                "--omit=dev",
                "--no-audit",
                "--no-fund",
                // Its own patience with a registry that has fallen silent is five minutes.
                "--fetch-timeout=30000",
                "--fetch-retries=5",
                "--fetch-retry-mintimeout=1000",
                // Each answer and each attempt is a line, so that slow is told from stuck.
                "--loglevel=http",
                package
            ]),
            json!(["node", "/opt/mcp/link", name]),
            LINK_JS,
        ),
        Ecosystem::Pypi => (
            json!([
                "python3",
                "-m",
                "pip",
                "install",
                "--no-cache-dir",
                "--disable-pip-version-check",
                package
            ]),
            json!(["python3", "/opt/mcp/link", name]),
            LINK_PY,
        ),
    };
    // First of all something that no other package's has: engines share layers that were made alike, and whoever removed the other image while
    // this one is made would take them away. Nobody else shares the interpreter of this image, so a distribution's word against its use by pip
    // (PEP 668) is moot.
    let dockerfile = format!(
        "FROM {base}\nLABEL cofer.package=\"{package}\"\nUSER 0\nENV PIP_BREAK_SYSTEM_PACKAGES=1\nCOPY link /opt/mcp/link\n\
         RUN {install}\nRUN {link}\nENV HOME=/tmp\nWORKDIR /data\nUSER 1000:1000\nENTRYPOINT [\"/opt/mcp/server\"]\nCMD []\n"
    );
    let mark = HEXLOWER.encode(&Sha256::digest(format!("{dockerfile}\n{script}").as_bytes())[..MARK_BYTES]);
    let readable: String =
        name.trim_start_matches('@').to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let kind = if ecosystem == Ecosystem::Npm { "npx" } else { "uvx" };
    ImageRecipe {
        image: format!("cofer-{kind}/{}:{mark}", readable.trim_matches('-')),
        base: base.to_owned(),
        files: vec![
            ("Dockerfile".to_owned(), dockerfile.into_bytes()),
            ("link".to_owned(), script.as_bytes().to_vec()),
        ],
    }
}

/// The package without its version and extras.
fn bare_name(ecosystem: Ecosystem, package: &str) -> &str {
    match ecosystem {
        // The first `@` may be a scope's.
        Ecosystem::Npm => {
            package.char_indices().skip(1).find(|(_, c)| *c == '@').map_or(package, |(at, _)| &package[..at])
        }
        Ecosystem::Pypi => package.split(['=', '<', '>', '!', '~', '[']).next().unwrap_or(package),
    }
}

/// Names and versions of a registry: no addresses, no files, no options.
fn check_package(ecosystem: Ecosystem, package: &str) -> Result<(), &'static str> {
    let name = bare_name(ecosystem, package);
    let fits = (1..=PACKAGE_CHARS_MAX).contains(&package.len());
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    let rest = &package[name.len()..];
    let version = |c: char| c.is_ascii_alphanumeric() || "@=<>!~^.,_-+*[]".contains(c);
    let named = match (ecosystem, name.strip_prefix('@')) {
        (Ecosystem::Npm, Some(scoped)) => {
            scoped.split_once('/').is_some_and(|(scope, name)| plain(scope) && plain(name))
        }
        (Ecosystem::Npm, None) => plain(name),
        (Ecosystem::Pypi, scope) => scope.is_none() && plain(name),
    };
    match (fits && named && rest.chars().all(version), ecosystem) {
        (true, _) => Ok(()),
        (false, Ecosystem::Npm) => {
            Err("an npm package is a name such as `@scope/server`, with `@version` after it if wanted")
        }
        (false, Ecosystem::Pypi) => {
            Err("a PyPI package is a name such as `mcp-server-time`, with `==version` after it if wanted")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_names_of_a_registry_and_nothing_else() {
        for good in
            ["server", "@modelcontextprotocol/server-everything", "@a/b@1.2.3", "x@^1.0.0", "x@latest"]
        {
            assert_eq!(check_package(Ecosystem::Npm, good), Ok(()), "{good}");
        }
        for good in ["mcp-server-time", "mcp-server-time==2026.1", "mcp[cli]>=1.2,<2"] {
            assert_eq!(check_package(Ecosystem::Pypi, good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "--global",
            "../x",
            "git+ssh://x",
            "a b",
            "a;b",
            "@scope",
            "/etc",
            "a@file:../x",
            "x\"]\nRUN y",
        ] {
            assert!(check_package(Ecosystem::Npm, bad).is_err(), "{bad}");
            assert!(check_package(Ecosystem::Pypi, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_image_is_named_after_everything_that_went_into_it() {
        let image = |package: &str, base: &str| recipe(Ecosystem::Npm, package, base).image;
        let first = image("@scope/Server.x@1.0.0", "node:22");
        assert!(first.starts_with("cofer-npx/scope-server-x:"), "{first}");
        assert_eq!(first, image("@scope/Server.x@1.0.0", "node:22"));
        assert_ne!(first, image("@scope/Server.x@1.0.1", "node:22"));
        assert_ne!(first, image("@scope/Server.x@1.0.0", "node:24"));
    }

    #[test]
    fn the_program_is_found_by_the_bare_name() {
        assert_eq!(bare_name(Ecosystem::Npm, "@a/b@1"), "@a/b");
        assert_eq!(bare_name(Ecosystem::Npm, "b@1"), "b");
        assert_eq!(bare_name(Ecosystem::Pypi, "mcp[cli]>=1.2"), "mcp");
    }
}
