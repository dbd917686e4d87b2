//! Images: looked for, pulled when they are missing, built from files when there is a recipe.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use futures_util::{Stream, StreamExt as _};

use crate::connection::{ANSWER_MAX, EngineError, Open};
use crate::{ImageAbout, ImageRecipe, ProgressSink, SandboxError};

/// A pull or a build that says nothing for so long is stuck.
const SILENCE_MAX: Duration = Duration::from_mins(2);
const PULL_MAX: Duration = Duration::from_mins(30);
const BUILD_MAX: Duration = Duration::from_mins(30);
/// How much of a failed build's output is told.
const TAIL_LINES: usize = 20;

pub(crate) async fn is_there(open: &Open, image: &str) -> Result<bool, SandboxError> {
    match open.within(ANSWER_MAX, open.client.inspect_image(image)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(open.failed(error)),
    }
}

/// What an image says of itself.
pub(crate) async fn about(open: &Open, image: &str) -> Result<ImageAbout, SandboxError> {
    let inspected = match open.within(ANSWER_MAX, open.client.inspect_image(image)).await {
        Ok(inspected) => inspected,
        Err(error) if error.is_not_found() => {
            return Err(SandboxError::ImageMissing {
                image: image.to_owned(),
                reason: error.message().to_owned(),
            });
        }
        Err(error) => return Err(open.failed(error)),
    };
    let config = inspected.config.unwrap_or_default();
    let told = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(ImageAbout {
        id: inspected.id.unwrap_or_default(),
        // One of nothing is none.
        entrypoint: config.entrypoint.filter(|parts| *parts != [""]).unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
        environment: config.env.unwrap_or_default(),
        user: told(config.user),
        workdir: told(config.working_dir),
    })
}

/// Sees to it that the image is there.
pub(crate) async fn fetch(open: &Open, image: &str, progress: &ProgressSink) -> Result<(), SandboxError> {
    if is_there(open, image).await? {
        return Ok(());
    }
    progress(format!("pulling {image}"));
    let missing =
        |reason: &str| SandboxError::ImageMissing { image: image.to_owned(), reason: reason.to_owned() };
    let (name, tag) = name_and_tag(image);
    let options = CreateImageOptionsBuilder::new().from_image(name).tag(tag).build();
    let mut layers = Layers::default();
    let pulled = each_within(open.client.create_image(Some(options), None, None), PULL_MAX, |news| {
        if let Some(text) = layers.learn(&news) {
            progress(text);
        }
        news.error_detail.and_then(|error| error.message).map_or(Ok(()), Err)
    });
    match pulled.await {
        Ok(()) if is_there(open, image).await? => Ok(()),
        Ok(()) => Err(missing("it was pulled, and is not there")),
        // The engine itself is gone: that says nothing of the image.
        Err(EngineError::Silent { reason }) if open.client.ping().await.is_err() => {
            Err(open.failed(EngineError::Silent { reason }))
        }
        Err(error) => Err(missing(error.message())),
    }
}

/// `host:5000/name` has no tag, and no engine should fetch all of them.
pub(crate) fn name_and_tag(image: &str) -> (&str, &str) {
    if image.contains('@') {
        return (image, "");
    }
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

/// How far each layer of a pull is.
#[derive(Default)]
struct Layers {
    done: HashMap<String, bool>,
}

impl Layers {
    /// What can be told now that could not be before.
    fn learn(&mut self, news: &CreateImageInfo) -> Option<String> {
        let (id, status) = (news.id.as_ref()?, news.status.as_deref()?);
        let is_done = matches!(status, "Pull complete" | "Already exists" | "Download complete");
        let is_layer = is_done
            || matches!(
                status,
                "Pulling fs layer" | "Waiting" | "Downloading" | "Extracting" | "Verifying Checksum"
            );
        if !is_layer {
            return None;
        }
        let before = self.done.insert(id.clone(), is_done);
        let done = self.done.values().filter(|done| **done).count();
        (before != Some(is_done)).then(|| format!("pulling: {done} of {} layers", self.done.len()))
    }
}

/// Takes each piece of news until the end, an error among them, or a deadline.
pub(crate) async fn each_within<T>(
    news: impl Stream<Item = Result<T, Error>>,
    deadline: Duration,
    mut take: impl FnMut(T) -> Result<(), String>,
) -> Result<(), EngineError> {
    let all = async {
        let mut news = std::pin::pin!(news);
        loop {
            let silent = |_| EngineError::Silent { reason: format!("nothing was heard for {SILENCE_MAX:?}") };
            let Some(piece) = tokio::time::timeout(SILENCE_MAX, news.next()).await.map_err(silent)? else {
                return Ok(());
            };
            take(piece?).map_err(|message| EngineError::Answered { status: 500, message })?;
        }
    };
    let too_long = |_| EngineError::Silent { reason: format!("it was not done within {deadline:?}") };
    tokio::time::timeout(deadline, all).await.map_err(too_long)?
}

/// Builds an image unless one of its name is there: the name is made of the content.
pub(crate) async fn build(
    open: &Open,
    recipe: &ImageRecipe,
    progress: &ProgressSink,
) -> Result<(), SandboxError> {
    if is_there(open, &recipe.image).await? {
        return Ok(());
    }
    fetch(open, &recipe.base, progress).await.map_err(|error| with_hint(error, &recipe.base))?;
    let failed = |reason: String| SandboxError::BuildFailed { image: recipe.image.clone(), reason };
    let context =
        archive(recipe).map_err(|error| failed(format!("its files could not be packed: {error}")))?;
    progress(format!("building {}", recipe.image));
    let options = BuildImageOptionsBuilder::new().t(&recipe.image).rm(true).forcerm(true).build();
    let mut tail = VecDeque::new();
    let body = bollard::body_full(context.into());
    let built = each_within(open.client.build_image(options, None, Some(body)), BUILD_MAX, |news| {
        for line in news
            .stream
            .iter()
            .flat_map(|text| text.lines())
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
        {
            progress(line.to_owned());
            tail.push_back(line.to_owned());
            if tail.len() > TAIL_LINES {
                tail.pop_front();
            }
        }
        news.error_detail.and_then(|error| error.message).map_or(Ok(()), Err)
    });
    match built.await {
        Ok(()) if is_there(open, &recipe.image).await? => Ok(()),
        Ok(()) => Err(failed("it was built, and is not there".to_owned())),
        Err(EngineError::Silent { reason }) if open.client.ping().await.is_err() => {
            Err(open.failed(EngineError::Silent { reason }))
        }
        Err(error) => {
            tail.push_back(error.message().to_owned());
            Err(failed(tail.make_contiguous().join("\n")))
        }
    }
}

fn with_hint(error: SandboxError, base: &str) -> SandboxError {
    match error {
        SandboxError::ImageMissing { image, reason } => SandboxError::ImageMissing {
            image,
            reason: format!(
                "{reason}; it is what the image is made from: load `{base}` into the engine, or set another base image"
            ),
        },
        other => other,
    }
}

fn archive(recipe: &ImageRecipe) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in &recipe.files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, path, content.as_slice())?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_tag_and_a_digest_needs_none() {
        assert_eq!(name_and_tag("registry:5000/a/b"), ("registry:5000/a/b", "latest"));
        assert_eq!(name_and_tag("registry:5000/a/b:1"), ("registry:5000/a/b", "1"));
        assert_eq!(name_and_tag("busybox"), ("busybox", "latest"));
        assert_eq!(name_and_tag("busybox@sha256:00"), ("busybox@sha256:00", ""));
    }
}
