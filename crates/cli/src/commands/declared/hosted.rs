//! Servers of a file that Cofer is to run. Only Cofer itself can tell what of them is different, since nobody else is shown what is in
//! their environment: so it is asked what it would do.

use cofer_server::declared::{Declared, DeclaredHosted};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Deed, Step, There, What, taken};
use crate::client::{Client, Patience};
use crate::exit::Failure;

/// What is to be done so that they are as the file says, images first.
pub(super) async fn steps(
    client: &Client,
    project: &str,
    there: &There,
    declared: &Declared,
) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    for server in &declared.hosted {
        let name = server.name.as_str();
        if there.servers.iter().any(|there| there["name"] == name) {
            return Err(taken(name, "which lives elsewhere"));
        }
        steps.extend(steps_for(client, project, server).await.map_err(|failure| {
            let message = format!("server {name}: {}", failure.message);
            Failure { message, ..failure }
        })?);
    }
    Ok(steps)
}

async fn steps_for(client: &Client, project: &str, server: &DeclaredHosted) -> Result<Vec<Step>, Failure> {
    let mut body = server.registration.clone();
    body["project"] = json!(project);
    let image = match &server.package {
        None => None,
        Some(package) => Some(image_step(client, package).await?),
    };
    if let Some(image) = &image {
        body["image"] = json!(image.name);
    }
    let name = server.name.to_string();
    let place = ["mcp", "hosted", &name];
    let query = [("dry_run", "true")];
    let told = client.change_with(Method::PUT, &place, &query, Some(&body), Patience::Usual).await?;
    let deed = match told["action"].as_str() {
        Some("add") => Deed::Add { from: format!("image {}", body["image"].as_str().unwrap_or_default()) },
        Some("change") => {
            let fields = told["fields"].as_array().into_iter().flatten();
            Deed::Change { fields: fields.filter_map(Value::as_str).map(ToOwned::to_owned).collect() }
        }
        _ => return Ok(Vec::new()),
    };
    Ok(image.into_iter().chain([Step { what: What::Hosted, name, deed, body }]).collect())
}

/// The image that a package is run from; one that is there is not made again.
async fn image_step(client: &Client, package: &Value) -> Result<Step, Failure> {
    let mut ask = package.clone();
    ask["dry_run"] = json!(true);
    let told = client.change_with(Method::POST, &["mcp", "images"], &[], Some(&ask), Patience::Usual).await?;
    let name = told["image"].as_str().unwrap_or_default().to_owned();
    let from = ["npx", "uvx"].iter().filter_map(|kind| Some(format!("{kind} {}", package[kind].as_str()?)));
    let deed = Deed::Add { from: from.collect() };
    Ok(Step { what: What::Image, name, deed, body: package.clone() })
}
