//! Networks of one's own: whoever is on one finds the others there by name, and has a way out. They carry whose they are as labels.

use std::collections::HashMap;

use bollard::models::{EndpointSettings, NetworkConnectRequest, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptionsBuilder;

use crate::connection::{ANSWER_MAX, DEED_MAX, Open};
use crate::sightings::{self, INSTANCE};
use crate::{Network, Owner, SandboxError, SandboxId};

/// Docker would make a second one of the same name, so it is looked for first.
pub(crate) async fn make(open: &Open, name: &str, owner: &Owner) -> Result<(), SandboxError> {
    let there = match open.within(ANSWER_MAX, open.client.inspect_network(name, None)).await {
        Ok(network) => Some(sightings::owner(&network.labels.unwrap_or_default())),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(open.failed(error)),
    };
    match there {
        Some(Some(there)) if there.id == owner.id && there.instance == owner.instance => return Ok(()),
        Some(_) => {
            return Err(
                open.refused(format!("a network named `{name}` is there and belongs to somebody else"))
            );
        }
        None => {}
    }
    let request = NetworkCreateRequest {
        name: name.to_owned(),
        driver: Some("bridge".to_owned()),
        labels: Some(sightings::owner_labels(owner)),
        ..Default::default()
    };
    let made = open.within(DEED_MAX, open.client.create_network(request)).await;
    made.map(|_| ()).map_err(|error| open.failed(error))
}

pub(crate) async fn join(
    open: &Open,
    id: &SandboxId,
    network: &str,
    aliases: &[String],
) -> Result<(), SandboxError> {
    let request = NetworkConnectRequest {
        container: id.0.clone(),
        endpoint_config: Some(EndpointSettings { aliases: Some(aliases.to_vec()), ..Default::default() }),
    };
    match open.within(DEED_MAX, open.client.connect_network(network, request)).await {
        Ok(()) => Ok(()),
        Err(error) if says_joined(error.message()) => Ok(()),
        Err(error) => Err(open.failed(error)),
    }
}

fn says_joined(message: &str) -> bool {
    message.contains("already exists in network") || message.contains("already connected")
}

pub(crate) async fn list(open: &Open, instance: &str) -> Result<Vec<Network>, SandboxError> {
    let filter = HashMap::from([("label", vec![format!("{INSTANCE}={instance}")])]);
    let options = ListNetworksOptionsBuilder::new().filters(&filter).build();
    let listed = open.within(ANSWER_MAX, open.client.list_networks(Some(options))).await;
    let listed = listed.map_err(|error| open.failed(error))?;
    let read = |network: bollard::models::Network| {
        Some(Network { name: network.name?, owner: sightings::owner(&network.labels?)? })
    };
    Ok(listed.into_iter().filter_map(read).collect())
}

pub(crate) async fn remove(open: &Open, name: &str) -> Result<(), SandboxError> {
    match open.within(DEED_MAX, open.client.remove_network(name)).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        // Docker says 403, Podman 409 or, in words, that somebody is on it.
        Err(error) if error.is_conflict() || says_in_use(error.message()) => {
            Err(SandboxError::NetworkInUse { name: name.to_owned() })
        }
        Err(error) => Err(open.failed(error)),
    }
}

fn says_in_use(message: &str) -> bool {
    message.contains("active endpoints") || message.contains("being used")
}
