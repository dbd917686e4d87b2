use cofer_model::{Kind, Moment, ProjectId, ServerId};
use cofer_store::{MasterKey, SecretsError};
use secrecy::{ExposeSecret, SecretString};

use crate::registry::external;
use crate::schema::{everything_as_text, swap_two_logins};
use crate::{Bed, on_both};

on_both!(
    a_login_opens_to_what_was_put_in_and_is_replaced_by_a_later_one,
    a_login_goes_with_its_server,
    a_login_opens_for_no_other_server,
    rotation_seals_logins_anew,
    a_late_login_of_a_server_that_is_gone_is_refused,
);

struct Vault {
    key: MasterKey,
    project: ProjectId,
    server: ServerId,
}

async fn vault(bed: &Bed) -> Vault {
    let key = MasterKey::generate();
    bed.store.hold_master_key(&key, Moment::now()).await.unwrap();
    let project = bed.project("web").await.id;
    Vault { key, project, server: external(bed, project, "crm").await }
}

async fn put(bed: &Bed, vault: &Vault, login: &str, has_tokens: bool) -> Result<(), SecretsError> {
    let login = SecretString::from(login);
    bed.store.put_login(&vault.key, vault.server, &login, has_tokens, Moment::now()).await
}

async fn open(bed: &Bed, key: &MasterKey, server: ServerId) -> Option<String> {
    let opened = bed.store.open_login(key, server).await.unwrap();
    opened.map(|login| login.expose_secret().to_owned())
}

async fn a_login_opens_to_what_was_put_in_and_is_replaced_by_a_later_one(bed: Bed) {
    let vault = vault(&bed).await;
    assert_eq!(open(&bed, &vault.key, vault.server).await, None);
    put(&bed, &vault, "first-token", true).await.unwrap();
    assert_eq!(open(&bed, &vault.key, vault.server).await.as_deref(), Some("first-token"));
    assert_eq!(bed.store.logins(vault.project).await.unwrap(), [(vault.server, true)].into());
    put(&bed, &vault, "second-token", false).await.unwrap();
    assert_eq!(open(&bed, &vault.key, vault.server).await.as_deref(), Some("second-token"));
    assert_eq!(bed.store.logins(vault.project).await.unwrap(), [(vault.server, false)].into());
    let all = everything_as_text(&bed).await;
    assert!(!all.contains("first-token") && !all.contains("second-token"));
    assert!(bed.store.delete_login(vault.server).await.unwrap());
    assert!(!bed.store.delete_login(vault.server).await.unwrap());
}

async fn a_login_goes_with_its_server(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "token", true).await.unwrap();
    assert!(bed.store.delete_external_server(vault.server).await.unwrap());
    assert_eq!(open(&bed, &vault.key, vault.server).await, None);
}

async fn a_login_opens_for_no_other_server(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "token", true).await.unwrap();
    let other = Vault { server: external(&bed, vault.project, "other").await, ..vault };
    put(&bed, &other, "other's token", true).await.unwrap();
    swap_two_logins(&bed).await;
    // SQLite swaps one after the other, so that one of the two has its own again.
    let mut strange = 0;
    for server in [vault.server, other.server] {
        match bed.store.open_login(&other.key, server).await {
            Err(SecretsError::TamperedLogin { .. }) => strange += 1,
            opened => drop(opened.unwrap()),
        }
    }
    assert!(strange > 0, "both opened");
}

async fn rotation_seals_logins_anew(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "token", true).await.unwrap();
    let new = MasterKey::generate();
    assert_eq!(bed.store.rotate_master_key(&vault.key, &new, Moment::now()).await.unwrap(), 1);
    assert_eq!(open(&bed, &new, vault.server).await.as_deref(), Some("token"));
    assert!(bed.store.open_login(&vault.key, vault.server).await.is_err());
    assert_eq!(put(&bed, &vault, "late", true).await.unwrap_err().kind(), Kind::Unavailable);
}

async fn a_late_login_of_a_server_that_is_gone_is_refused(bed: Bed) {
    let vault = vault(&bed).await;
    assert!(bed.store.delete_external_server(vault.server).await.unwrap());
    assert_eq!(put(&bed, &vault, "token", true).await.unwrap_err().kind(), Kind::NotFound);
}
