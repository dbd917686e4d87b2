//! Volumes: they outlive sandboxes, carry whose they are as labels, and are removed only when nobody has them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};

use crate::connection::{ANSWER_MAX, DEED_MAX, EngineError, Open};
use crate::disk;
use crate::sightings::INSTANCE;
use crate::{SandboxError, Volume, VolumeMount, VolumeOwner};

const PROJECT: &str = "cofer.project_id";
const SERVER: &str = "cofer.server";
const PATH: &str = "cofer.path";

/// Makes those that are not there. Tells the names of those it made, so that a launch that fails can take them back.
pub(crate) async fn make(
    open: &Open,
    mounts: &[VolumeMount],
) -> Result<Vec<String>, (Vec<String>, SandboxError)> {
    let mut made = Vec::new();
    for mount in mounts {
        match make_one(open, mount).await {
            Ok(true) => made.push(mount.name.clone()),
            Ok(false) => {}
            Err(error) => return Err((made, error)),
        }
    }
    Ok(made)
}

async fn make_one(open: &Open, mount: &VolumeMount) -> Result<bool, SandboxError> {
    let there = open.within(ANSWER_MAX, open.client.inspect_volume(&mount.name)).await;
    match there {
        Ok(volume) if volume.labels.get(INSTANCE) == Some(&mount.owner.instance) => Ok(false),
        Ok(_) => Err(open.refused(format!("volume `{}` belongs to somebody else", mount.name))),
        Err(error) if error.is_not_found() => {
            let create = open.client.create_volume(create_request(mount));
            open.within(DEED_MAX, create).await.map_err(|error| open.failed(error))?;
            Ok(true)
        }
        Err(error) => Err(open.failed(error)),
    }
}

pub(crate) async fn is_there(open: &Open, name: &str) -> Result<bool, SandboxError> {
    match open.within(ANSWER_MAX, open.client.inspect_volume(name)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(open.failed(error)),
    }
}

fn create_request(mount: &VolumeMount) -> VolumeCreateRequest {
    let VolumeOwner { instance, project_id, server } = &mount.owner;
    let labels = [
        (INSTANCE, instance.clone()),
        (PROJECT, project_id.to_string()),
        (SERVER, server.clone()),
        (PATH, mount.path.clone()),
    ];
    VolumeCreateRequest {
        name: Some(mount.name.clone()),
        labels: Some(labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ..Default::default()
    }
}

pub(crate) async fn list(open: &Open, instance: &str) -> Result<Vec<Volume>, SandboxError> {
    let filter = HashMap::from([("label", vec![format!("{INSTANCE}={instance}")])]);
    let volumes = ListVolumesOptionsBuilder::new().filters(&filter).build();
    let listed = open
        .within(ANSWER_MAX, open.client.list_volumes(Some(volumes)))
        .await
        .map_err(|error| open.failed(error))?;
    let in_use = names_in_use(open).await.map_err(|error| open.failed(error))?;
    let found: Vec<(Volume, PathBuf)> = listed
        .volumes
        .unwrap_or_default()
        .into_iter()
        .filter_map(|volume| {
            let owner = owner(&volume.labels)?;
            let path = volume.labels.get(PATH)?.clone();
            let in_use = in_use.contains(&volume.name);
            Some((
                Volume { name: volume.name, path, owner, size_bytes: None, in_use },
                volume.mountpoint.into(),
            ))
        })
        .collect();
    // Walking may take a while; it must hold up nobody else.
    let measured = tokio::task::spawn_blocking(|| found.into_iter().map(measured).collect());
    Ok(measured.await.unwrap_or_default())
}

fn measured((volume, mountpoint): (Volume, PathBuf)) -> Volume {
    Volume { size_bytes: disk::bytes_below(Path::new(&mountpoint)).ok(), ..volume }
}

fn owner(labels: &HashMap<String, String>) -> Option<VolumeOwner> {
    Some(VolumeOwner {
        instance: labels.get(INSTANCE)?.clone(),
        project_id: labels.get(PROJECT)?.parse().ok()?,
        server: labels.get(SERVER)?.clone(),
    })
}

/// The names of volumes that any container has, whoever made it.
async fn names_in_use(open: &Open) -> Result<HashSet<String>, EngineError> {
    let containers = open.containers(&[]).await?;
    let mounts = containers.into_iter().filter_map(|container| container.mounts).flatten();
    Ok(mounts.filter_map(|mount| mount.name).collect())
}

pub(crate) async fn remove(open: &Open, name: &str) -> Result<(), SandboxError> {
    let removal = open.client.remove_volume(name, None::<RemoveVolumeOptions>);
    match open.within(DEED_MAX, removal).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) if error.is_conflict() => Err(SandboxError::VolumeInUse { name: name.to_owned() }),
        Err(error) => Err(open.failed(error)),
    }
}
