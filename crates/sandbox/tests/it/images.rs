//! Images: looked for, pulled, built.

use std::sync::{Arc, Mutex};

use bollard::query_parameters::RemoveImageOptions;
use cofer_sandbox::{ImageRecipe, ProgressSink, Provider as _, SandboxError};

use crate::bed::{BUSYBOX, Bed, no_progress};

conformance! {
    one_that_is_there_is_not_pulled,
    one_that_cannot_be_pulled_tells_the_engines_reason,
    one_is_built_from_files_and_runs,
    a_build_that_fails_tells_its_last_lines,
    a_base_that_is_missing_is_named_with_a_hint,
}

async fn one_that_is_there_is_not_pulled(bed: &Bed) {
    bed.provider.fetch_image(BUSYBOX, no_progress()).await.unwrap();
}

async fn one_that_cannot_be_pulled_tells_the_engines_reason(bed: &Bed) {
    // Nobody listens there, on any machine.
    let image = "127.0.0.1:1/nowhere/nothing:1";
    let error = bed.provider.fetch_image(image, no_progress()).await.unwrap_err();
    let SandboxError::ImageMissing { image: told, reason } = error else { panic!("{error}") };
    assert_eq!(told, image);
    assert!(reason.contains("127.0.0.1:1"), "{reason}");
}

fn recipe(bed: &Bed, steps: &str) -> ImageRecipe {
    let dockerfile = format!("FROM {BUSYBOX}\nLABEL cofer.instance={}\n{steps}\n", bed.instance);
    ImageRecipe {
        image: format!("cofer-test/built-{}:latest", bed.instance),
        base: BUSYBOX.into(),
        files: vec![
            ("Dockerfile".into(), dockerfile.into_bytes()),
            ("files/greeting".into(), b"hello from a file\n".to_vec()),
        ],
    }
}

async fn one_is_built_from_files_and_runs(bed: &Bed) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = lines.clone();
    let progress: ProgressSink = Arc::new(move |line| told.lock().unwrap().push(line));
    let recipe = recipe(bed, "COPY files/greeting /greeting\nCMD [\"cat\", \"/greeting\"]");
    bed.provider.build_image(&recipe, progress.clone()).await.unwrap();
    assert!(lines.lock().unwrap().iter().any(|line| line.contains("COPY")), "{lines:?}");
    lines.lock().unwrap().clear();
    bed.provider.build_image(&recipe, progress).await.unwrap();
    assert!(lines.lock().unwrap().is_empty(), "built twice: {lines:?}");
    let mut spec = bed.spec("");
    (spec.image, spec.cmd) = (recipe.image.clone(), None);
    assert_eq!(bed.output_of(&spec).await, "hello from a file\n");
    let client = bed.engine.client().await.unwrap();
    client.remove_image(&recipe.image, None::<RemoveImageOptions>, None).await.unwrap();
}

async fn a_build_that_fails_tells_its_last_lines(bed: &Bed) {
    let recipe = recipe(bed, "RUN echo what went wrong; exit 3");
    let error = bed.provider.build_image(&recipe, no_progress()).await.unwrap_err();
    let SandboxError::BuildFailed { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("what went wrong"), "{reason}");
}

async fn a_base_that_is_missing_is_named_with_a_hint(bed: &Bed) {
    let mut recipe = recipe(bed, "");
    recipe.base = "127.0.0.1:1/nowhere/base:1".into();
    let error = bed.provider.build_image(&recipe, no_progress()).await.unwrap_err();
    let SandboxError::ImageMissing { image, reason } = &error else { panic!("{error}") };
    assert_eq!(*image, recipe.base);
    assert!(reason.contains("load `127.0.0.1:1/nowhere/base:1`"), "{reason}");
}
