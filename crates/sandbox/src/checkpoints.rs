//! Making an image of a sandbox as it is now.
//!
//! What Cofer put there does not go along: the image starts as the one it was made from did, without our labels (by which containers of others would
//! be taken for ours) and without the variables that this sandbox alone was given, which may be secret.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bollard::models::ContainerConfig;
use bollard::query_parameters::{CommitContainerOptionsBuilder, PushImageOptionsBuilder};

use crate::connection::{Measure, Open};
use crate::images::{self, each_within, name_and_tag};
use crate::sightings::LABELS;
use crate::{ImageAbout, ProgressSink, SandboxError, SandboxId};

/// The engine writes the whole of what was changed.
const COMMIT_MAX: Duration = Duration::from_mins(10);
const PUSH_MAX: Duration = Duration::from_mins(30);

pub(crate) async fn make(
    open: &Open,
    id: &SandboxId,
    image: &str,
    progress: &ProgressSink,
) -> Result<(), SandboxError> {
    let inspected = match open.inspect(&id.0, Measure::Nothing).await {
        Ok(inspected) => inspected,
        Err(error) if error.is_not_found() => return Err(SandboxError::Gone { id: id.clone() }),
        Err(error) => return Err(open.failed(error)),
    };
    let base = images::about(open, &inspected.image).await?;
    let given = inspected.config.env.unwrap_or_default();
    let (name, tag) = name_and_tag(image);
    if tag.is_empty() {
        return Err(open.unsupported("an image is made under a name and a tag, not under a digest"));
    }
    progress(format!("making {name}:{tag}"));
    let options = CommitContainerOptionsBuilder::new()
        .container(&id.0)
        .repo(name)
        .tag(tag)
        .pause(true)
        .changes(&changes(&base, &given))
        .build();
    let commit = open.client.commit_container(options, ContainerConfig::default());
    open.within(COMMIT_MAX, commit).await.map_err(|error| SandboxError::BuildFailed {
        image: image.to_owned(),
        reason: error.message().to_owned(),
    })?;
    if names_a_registry(name) { push(open, name, tag, progress).await } else { Ok(()) }
}

/// What must be otherwise in the image, in the words of a Dockerfile.
fn changes(base: &ImageAbout, given: &[String]) -> String {
    let list = |parts: &[String]| serde_json::to_string(parts).unwrap_or_else(|_| "[]".to_owned());
    // To Docker no entrypoint is as if nothing had been said; one of nothing is none.
    let none = [String::new()];
    let entrypoint = if base.entrypoint.is_empty() { &none } else { base.entrypoint.as_slice() };
    let mut lines = vec![
        format!("ENTRYPOINT {}", list(entrypoint)),
        format!("CMD {}", list(&base.cmd)),
        format!("USER {}", base.user.as_deref().unwrap_or("0")),
        format!("WORKDIR {}", base.workdir.as_deref().unwrap_or("/")),
    ];
    lines.extend(LABELS.iter().map(|label| format!("LABEL {label}=\"\"")));
    lines.extend(variables(base, given));
    lines.join("\n")
}

/// Those that the sandbox was given are as in the image again, or empty.
fn variables(base: &ImageAbout, given: &[String]) -> Vec<String> {
    let known: HashMap<_, _> = base.environment.iter().filter_map(|text| text.split_once('=')).collect();
    let added = given.iter().filter_map(|text| text.split_once('='));
    let added = added.filter(|(name, value)| known.get(name) != Some(value));
    let names: BTreeSet<_> = added.map(|(name, _)| name).collect();
    let line = |name: &str| {
        // A line of a Dockerfile has no word for the end of a line.
        let value = known.get(name).filter(|value| !value.contains('\n')).copied().unwrap_or_default();
        let escape = |c| if matches!(c, '"' | '\\' | '$') { vec!['\\', c] } else { vec![c] };
        format!("ENV {name}=\"{}\"", value.chars().flat_map(escape).collect::<String>())
    };
    names.into_iter().map(line).collect()
}

/// By the engines' own rule: a first part that can only be a machine.
fn names_a_registry(name: &str) -> bool {
    name.split_once('/').is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost")
}

async fn push(open: &Open, name: &str, tag: &str, progress: &ProgressSink) -> Result<(), SandboxError> {
    progress(format!("pushing {name}:{tag}"));
    let options = PushImageOptionsBuilder::new().tag(tag).build();
    let pushed = each_within(open.client.push_image(name, Some(options), None), PUSH_MAX, |news| {
        news.error_detail.and_then(|error| error.message).map_or(Ok(()), Err)
    });
    pushed.await.map_err(|error| SandboxError::NotPushed {
        image: format!("{name}:{tag}"),
        reason: error.message().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_part_that_is_a_machine_is_a_registry() {
        assert!(
            names_a_registry("localhost/a")
                && names_a_registry("r.example/a")
                && names_a_registry("r:5000/a")
        );
        assert!(!names_a_registry("a") && !names_a_registry("team/a"));
    }

    #[test]
    fn what_the_sandbox_alone_was_given_does_not_go_along() {
        let base = ImageAbout {
            entrypoint: vec!["/bin/a b".into()],
            environment: vec!["PATH=/bin".into(), "X=1$".into()],
            ..ImageAbout::default()
        };
        let given = ["PATH=/bin".into(), "X=2".into(), "TOKEN=secret".into()];
        let changes = changes(&base, &given);
        assert!(changes.starts_with("ENTRYPOINT [\"/bin/a b\"]\nCMD []\nUSER 0\nWORKDIR /\n"), "{changes}");
        assert!(changes.contains("LABEL cofer.instance=\"\"\n"), "{changes}");
        assert!(changes.ends_with("\nENV TOKEN=\"\"\nENV X=\"1\\$\""), "{changes}");
        assert!(!changes.contains("secret") && !changes.contains("PATH"));
    }
}
