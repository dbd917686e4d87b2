//! Containers, networks and volumes that bear a label, in every engine of the test bed.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{
    ListNetworksOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptionsBuilder,
};
use tokio::time::timeout;

use crate::aside;
use crate::engines::{self, Engine};

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Something found in an engine, or the engine's failure to tell.
pub(super) struct Found {
    engine: Engine,
    thing: Thing,
}

enum Thing {
    Container {
        id: String,
        name: String,
        state: String,
    },
    Network {
        id: String,
        name: String,
    },
    Volume {
        name: String,
    },
    /// Not knowing is not the same as nothing being there.
    Unknown {
        reason: String,
    },
}

/// Containers come first, because they hold the others.
pub(super) fn find(label: &str) -> Vec<Found> {
    let look = |engine: Engine| {
        let things = aside::run(async {
            match timeout(ANSWER_MAX, things(&engine, label)).await {
                Ok(Ok(things)) => things,
                Ok(Err(error)) => vec![Thing::Unknown { reason: error.to_string() }],
                Err(_) => vec![Thing::Unknown { reason: format!("no answer within {ANSWER_MAX:?}") }],
            }
        });
        things.into_iter().map(move |thing| Found { engine: engine.clone(), thing })
    };
    engines::all_present().into_iter().flat_map(look).collect()
}

async fn things(engine: &Engine, label: &str) -> Result<Vec<Thing>, Error> {
    let client = engine.client().await?;
    let filter = HashMap::from([("label", vec![label])]);
    let networks = ListNetworksOptionsBuilder::new().filters(&filter).build();
    let volumes = ListVolumesOptionsBuilder::new().filters(&filter).build();

    let (containers, networks, volumes) = tokio::try_join!(
        async { engine.containers(label).await.map_err(Error::from) },
        client.list_networks(Some(networks)),
        client.list_volumes(Some(volumes)),
    )?;
    let containers = containers.into_iter().map(|container| Thing::Container {
        id: container.id,
        name: container.names.join(" "),
        state: format!("{}, {}", container.state, container.status),
    });
    let networks = networks.into_iter().map(|network| Thing::Network {
        id: network.id.unwrap_or_default(),
        name: network.name.unwrap_or_default(),
    });
    let volumes = volumes.volumes.unwrap_or_default().into_iter();
    let volumes = volumes.map(|volume| Thing::Volume { name: volume.name });
    Ok(containers.chain(networks).chain(volumes).collect())
}

impl Found {
    pub(super) fn identity(&self) -> String {
        let what = match &self.thing {
            Thing::Container { id, .. } | Thing::Network { id, .. } => id,
            Thing::Volume { name } => name,
            Thing::Unknown { .. } => "unknown",
        };
        format!("{} {what}", self.engine.name())
    }

    pub(super) fn remove(&self) -> Result<&'static str, String> {
        aside::run(async {
            let removal = async { self.thing.remove(&self.engine.client().await?).await };
            match timeout(ANSWER_MAX, removal).await {
                Ok(outcome) => outcome.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {ANSWER_MAX:?}")),
            }
        })
    }
}

impl Thing {
    async fn remove(&self, client: &Docker) -> Result<&'static str, Error> {
        match self {
            Self::Container { id, .. } => {
                let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
                client.remove_container(id, Some(options)).await?;
            }
            Self::Network { id, .. } => client.remove_network(id).await?,
            Self::Volume { name } => {
                let options = RemoveVolumeOptionsBuilder::new().force(true).build();
                client.remove_volume(name, Some(options)).await?;
            }
            Self::Unknown { .. } => return Ok("nothing to remove"),
        }
        Ok("removed")
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.engine.name();
        match &self.thing {
            Thing::Container { id, name, state } => write!(f, "{engine} container {name} {id}: {state}"),
            Thing::Network { id, name } => write!(f, "{engine} network {name} {id}"),
            Thing::Volume { name } => write!(f, "{engine} volume {name}"),
            Thing::Unknown { reason } => {
                write!(
                    f,
                    "whatever is in {engine} at {}, which cannot be asked: {reason}",
                    self.engine.host()
                )
            }
        }
    }
}
