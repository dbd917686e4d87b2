//! The token in an entry that names an address: made for it, and revoked when nothing shows it any more.

use cofer_model::Reference;
use reqwest::Url;
use secrecy::SecretString;
use serde_json::json;

use super::super::external::note;
use super::known::Known;
use crate::client::{Client, Target};
use crate::exit::Failure;

#[derive(Debug)]
pub struct Made {
    pub id: String,
    pub clear: SecretString,
    pub url: Url,
}

/// One that may call this project's tools, and nothing else.
pub async fn make(cofer: &Client, entry: &str, known: Known, project: &str) -> Result<Made, Failure> {
    let url = cofer.mcp_address(project)?;
    let name = format!("client-{entry}-{}", known.as_str());
    let body = json!({"name": name, "scopes": ["tools:call"], "project": project});
    let made = cofer.post(&["tokens"], &body).await?;
    let text = |field: &str| made[field].as_str().unwrap_or_default().to_owned();
    Ok(Made { id: text("id"), clear: SecretString::from(text("token")), url })
}

/// Revokes it if Cofer can be reached; else says how to do it later, which is no reason to fail.
/// A history that somebody else wrote could give the name of another token, which is not for us to revoke.
pub async fn revoke(target: &Target, id: &str) {
    let Ok(Reference::Id(_)) = id.parse() else { return note(&format!("`{id}` is not the id of a token")) };
    let revoked = match target.client() {
        Ok(cofer) => cofer.delete(&["tokens", id]).await.map(|_| ()),
        Err(failure) => Err(failure),
    };
    match revoked {
        Ok(()) => note(&format!("token {id} revoked")),
        Err(failure) => note(&format!(
            "token {id} may still be good: {}; `cofer token rm {id}` revokes it",
            failure.message
        )),
    }
}
