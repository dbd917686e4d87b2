//! Volumes: they outlive sandboxes, and are not taken from one.

use cofer_sandbox::{Provider as _, SandboxError};

use crate::bed::{Bed, Log};

conformance! {
    what_is_written_outlives_the_sandbox,
    one_in_use_is_not_removed,
    one_of_somebody_else_is_not_mounted,
}

async fn what_is_written_outlives_the_sandbox(bed: &Bed) {
    let mut spec = bed.spec("cat /notes/note 2>/dev/null; dd if=/dev/zero of=/notes/zeros bs=1M count=3 2>/dev/null; echo kept >/notes/note; chmod 600 /notes/note; echo written");
    spec.volumes = vec![bed.volume("notes", "/notes")];
    assert_eq!(bed.output_of(&spec).await, "written\n");
    let volumes = bed.provider.volumes(&bed.instance).await.unwrap();
    let [volume] = volumes.as_slice() else { panic!("{volumes:?}") };
    assert_eq!(
        (&volume.name, volume.path.as_str(), &volume.owner),
        (&spec.volumes[0].name, "/notes", &spec.volumes[0].owner)
    );
    assert!(!volume.in_use);
    let size = volume.size_bytes.unwrap();
    assert!(((3 << 20)..(4 << 20)).contains(&size), "{size}");
    assert_eq!(bed.output_of(&spec).await, "kept\nwritten\n");
}

async fn one_in_use_is_not_removed(bed: &Bed) {
    let mut spec = bed.spec("cat");
    spec.volumes = vec![bed.volume("notes", "/notes")];
    let name = &spec.volumes[0].name;
    let sandbox = bed.launch(&spec).await;
    assert!(bed.provider.volumes(&bed.instance).await.unwrap()[0].in_use);
    let error = bed.provider.remove_volume(name).await.unwrap_err();
    assert!(matches!(&error, SandboxError::VolumeInUse { name: told } if told == name), "{error}");
    bed.provider.destroy(&sandbox.id).await.unwrap();
    for _ in 0..2 {
        bed.provider.remove_volume(name).await.unwrap();
    }
    assert_eq!(bed.provider.volumes(&bed.instance).await.unwrap(), vec![]);
}

async fn one_of_somebody_else_is_not_mounted(bed: &Bed) {
    let mut theirs = bed.spec("cat");
    theirs.volumes = vec![bed.volume("notes", "/notes")];
    bed.launch(&theirs).await;
    let mut ours = bed.spec("cat");
    ours.volumes = theirs.volumes.clone();
    ours.volumes[0].owner.instance = "another instance".into();
    let error = bed.provider.launch(&ours, Log::default().sink()).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Refused { reason, .. } if reason.contains("somebody else")),
        "{error}"
    );
}
