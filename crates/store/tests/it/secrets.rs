use cofer_model::{Kind, Moment, ProjectId};
use cofer_store::{MasterKey, SecretsError};
use secrecy::{ExposeSecret, SecretString};

use crate::schema::{count_of_secrets, everything_as_text, swap_two_secrets};
use crate::{Bed, on_both, secret_name};

on_both!(
    a_secret_opens_to_what_was_put_in,
    setting_a_secret_again_replaces_it_and_keeps_when_it_was_made,
    the_clear_value_is_nowhere_in_the_database,
    rows_swapped_in_the_database_do_not_open,
    secrets_of_one_project_are_not_anothers,
    secrets_go_with_their_project,
    a_second_key_is_refused_while_the_first_is_in_use,
    rotation_seals_all_anew,
    a_writer_with_yesterdays_key_is_told_so,
    writes_during_a_rotation_are_neither_lost_nor_left_behind,
);

struct Vault {
    key: MasterKey,
    project: ProjectId,
}

async fn vault(bed: &Bed) -> Vault {
    let key = MasterKey::generate();
    bed.store.hold_master_key(&key, Moment::now()).await.unwrap();
    Vault { key, project: bed.project("web").await.id }
}

async fn put(bed: &Bed, vault: &Vault, name: &str, value: &str) {
    let value = SecretString::from(value);
    bed.store.put_secret(&vault.key, vault.project, &secret_name(name), &value, Moment::now()).await.unwrap();
}

async fn open(bed: &Bed, key: &MasterKey, project: ProjectId) -> Vec<String> {
    let mut opened = bed.store.open_secrets(key, project).await.unwrap();
    opened.sort_by(|a, b| a.0.cmp(&b.0));
    opened.into_iter().map(|(name, value)| format!("{name}={}", value.expose_secret())).collect()
}

async fn a_secret_opens_to_what_was_put_in(bed: Bed) {
    let vault = vault(&bed).await;
    let long = "x".repeat(64 << 10);
    put(&bed, &vault, "A", "ünïcødé \n \"quotes\"").await;
    put(&bed, &vault, "B", &long).await;
    assert_eq!(
        open(&bed, &vault.key, vault.project).await,
        ["A=ünïcødé \n \"quotes\"".to_owned(), format!("B={long}")]
    );
}

async fn setting_a_secret_again_replaces_it_and_keeps_when_it_was_made(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "A", "one").await;
    let first = bed.store.secrets(vault.project).await.unwrap();
    put(&bed, &vault, "A", "two").await;
    let second = bed.store.secrets(vault.project).await.unwrap();
    assert_eq!((second.len(), second[0].created_at), (1, first[0].created_at));
    assert_eq!(open(&bed, &vault.key, vault.project).await, ["A=two"]);
}

async fn the_clear_value_is_nowhere_in_the_database(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "API_KEY", "hunter2hunter2").await;
    let text = everything_as_text(&bed).await;
    assert!(text.contains("API_KEY"));
    assert!(!text.contains("hunter2") && !text.contains(vault.key.to_hex().expose_secret()));
}

async fn rows_swapped_in_the_database_do_not_open(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "A", "one").await;
    put(&bed, &vault, "B", "two").await;
    swap_two_secrets(&bed).await;
    let error = bed.store.open_secrets(&vault.key, vault.project).await.unwrap_err();
    assert!(matches!(error, SecretsError::Tampered { .. }), "{error:?}");
}

async fn secrets_of_one_project_are_not_anothers(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "A", "one").await;
    let other = bed.project("shop").await.id;
    assert_eq!(bed.store.secrets(other).await.unwrap(), []);
    assert!(!bed.store.delete_secret(other, &secret_name("A")).await.unwrap());
    assert!(bed.store.delete_secret(vault.project, &secret_name("A")).await.unwrap());
}

async fn secrets_go_with_their_project(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "A", "one").await;
    bed.store.delete_project(vault.project).await.unwrap();
    assert_eq!(count_of_secrets(&bed).await, 0);
}

async fn a_second_key_is_refused_while_the_first_is_in_use(bed: Bed) {
    let vault = vault(&bed).await;
    let other = MasterKey::generate();
    let error = bed.store.hold_master_key(&other, Moment::now()).await.unwrap_err();
    assert!(
        error.to_string().contains(&vault.key.fingerprint())
            && error.to_string().contains(&other.fingerprint())
    );
    bed.another().await.hold_master_key(&vault.key, Moment::now()).await.unwrap();
}

async fn rotation_seals_all_anew(bed: Bed) {
    let vault = vault(&bed).await;
    put(&bed, &vault, "A", "one").await;
    put(&bed, &vault, "B", "two").await;
    let new = MasterKey::generate();
    assert_eq!(bed.store.rotate_master_key(&vault.key, &new, Moment::now()).await.unwrap(), 2);
    assert_eq!(open(&bed, &new, vault.project).await, ["A=one", "B=two"]);
    assert!(bed.store.open_secrets(&vault.key, vault.project).await.is_err());
    assert_eq!(bed.store.master_key_in_use().await.unwrap(), Some(new.fingerprint()));
}

async fn a_writer_with_yesterdays_key_is_told_so(bed: Bed) {
    let vault = vault(&bed).await;
    bed.store.rotate_master_key(&vault.key, &MasterKey::generate(), Moment::now()).await.unwrap();
    let (name, value) = (secret_name("A"), SecretString::from("late"));
    let late = bed.another().await.put_secret(&vault.key, vault.project, &name, &value, Moment::now()).await;
    assert_eq!(late.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(bed.store.secrets(vault.project).await.unwrap(), []);
}

async fn writes_during_a_rotation_are_neither_lost_nor_left_behind(bed: Bed) {
    let vault = std::sync::Arc::new(vault(&bed).await);
    let writers: Vec<_> = (0..24)
        .map(|n| {
            let (store, vault) = (bed.store.clone(), vault.clone());
            tokio::spawn(async move {
                let (name, value) = (secret_name(&format!("S{n:02}")), SecretString::from(format!("v{n}")));
                store.put_secret(&vault.key, vault.project, &name, &value, Moment::now()).await.is_ok()
            })
        })
        .collect();
    let new = MasterKey::generate();
    bed.store.rotate_master_key(&vault.key, &new, Moment::now()).await.unwrap();
    let mut kept = 0;
    for writer in writers {
        kept += usize::from(writer.await.unwrap());
    }
    // Whoever was told that it was kept finds it, sealed with the new key; nobody else's is there.
    assert_eq!(open(&bed, &new, vault.project).await.len(), kept);
}
