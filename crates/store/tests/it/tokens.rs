use std::collections::BTreeMap;
use std::time::Duration;

use cofer_model::{Moment, Project, Scope, Token};
use cofer_store::{NewToken, Revocation, TokenHash, generate_token};
use secrecy::{ExposeSecret, SecretString};

use crate::{Bed, on_both};

on_both!(
    a_token_is_found_by_its_hash_and_by_nothing_else,
    the_clear_token_is_nowhere_in_the_database,
    a_token_that_shares_the_lookup_part_is_told_apart,
    revoking_a_token_ends_it,
    tokens_of_a_project_go_with_it,
    a_list_can_be_confined_to_one_project,
    the_latest_use_is_kept_and_never_goes_back,
    the_admin_token_is_replaced_in_place,
    administrators_who_revoke_each_other_at_once_leave_one,
    a_token_for_a_project_that_was_deleted_meanwhile_is_not_found,
);

fn new(name: &str, project: Option<&Project>) -> NewToken {
    NewToken {
        name: name.to_owned().try_into().unwrap(),
        scopes: [Scope::AdminRead, Scope::ToolsCall].into(),
        project: project.map(|project| (project.id, project.name.clone())),
        expires_at: None,
    }
}

async fn make(bed: &Bed, name: &str, project: Option<&Project>) -> (Token, SecretString) {
    bed.store.create_token(new(name, project), Moment::now()).await.unwrap()
}

async fn a_token_is_found_by_its_hash_and_by_nothing_else(bed: Bed) {
    let project = bed.project("web").await;
    let (token, clear) = make(&bed, "ci", Some(&project)).await;
    assert_eq!(
        bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap(),
        Some(token.clone())
    );
    assert_eq!(token.project, Some(project.name));
    let other = SecretString::from(format!("{}x", clear.expose_secret()));
    assert_eq!(bed.store.token_by_hash(&TokenHash::of(other.expose_secret())).await.unwrap(), None);
}

async fn the_clear_token_is_nowhere_in_the_database(bed: Bed) {
    let (_, clear) = make(&bed, "ci", None).await;
    let text = crate::schema::everything_as_text(&bed).await;
    assert!(text.contains("ci"));
    assert!(!text.contains(clear.expose_secret().trim_start_matches("cofer_")));
}

async fn a_token_that_shares_the_lookup_part_is_told_apart(bed: Bed) {
    let (first, clear) = make(&bed, "first", None).await;
    let (second, _) = make(&bed, "second", None).await;
    crate::schema::give_all_tokens_the_lookup_of_the_first(&bed).await;
    assert_eq!(
        bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap().unwrap().id,
        first.id
    );
    assert_eq!(bed.store.revoke_token(first.id).await.unwrap(), Revocation::Done);
    assert_eq!(bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap(), None);
    assert_eq!(bed.store.revoke_token(second.id).await.unwrap(), Revocation::Done);
}

async fn revoking_a_token_ends_it(bed: Bed) {
    let (token, clear) = make(&bed, "ci", None).await;
    assert_eq!(bed.store.revoke_token(token.id).await.unwrap(), Revocation::Done);
    assert_eq!(bed.store.revoke_token(token.id).await.unwrap(), Revocation::NotThere);
    assert_eq!(bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap(), None);
}

async fn tokens_of_a_project_go_with_it(bed: Bed) {
    let project = bed.project("web").await;
    let (_, clear) = make(&bed, "ci", Some(&project)).await;
    bed.store.delete_project(project.id).await.unwrap();
    assert_eq!(bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap(), None);
}

async fn a_list_can_be_confined_to_one_project(bed: Bed) {
    let (web, shop) = (bed.project("web").await, bed.project("shop").await);
    for (name, project) in [("a", Some(&web)), ("b", Some(&shop)), ("c", None)] {
        make(&bed, name, project).await;
    }
    let names =
        |tokens: Vec<Token>| tokens.into_iter().map(|token| token.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(bed.store.tokens(Some(web.id)).await.unwrap()), ["a"]);
    assert_eq!(names(bed.store.tokens(None).await.unwrap()), ["a", "b", "c"]);
}

async fn the_latest_use_is_kept_and_never_goes_back(bed: Bed) {
    let (token, clear) = make(&bed, "ci", None).await;
    let (early, late) = (token.created_at, token.created_at.after(Duration::from_secs(9)));
    for at in [early, late, early] {
        bed.store.note_token_uses(&BTreeMap::from([(token.id, at)])).await.unwrap();
    }
    let found = bed.store.token_by_hash(&TokenHash::of(clear.expose_secret())).await.unwrap().unwrap();
    assert_eq!(found.last_used_at, Some(late));
}

async fn the_admin_token_is_replaced_in_place(bed: Bed) {
    let (first, given) = (generate_token(), SecretString::from("chosen-by-the-operator"));
    for clear in [&first, &given] {
        bed.store.set_admin_token(new("admin", None), clear, Moment::now()).await.unwrap();
    }
    assert_eq!(bed.store.token_by_hash(&TokenHash::of(first.expose_secret())).await.unwrap(), None);
    assert!(bed.store.token_by_hash(&TokenHash::of(given.expose_secret())).await.unwrap().is_some());
    assert_eq!(bed.store.tokens(None).await.unwrap().len(), 1);
}

async fn administrators_who_revoke_each_other_at_once_leave_one(bed: Bed) {
    bed.store.ensure_default_project(Moment::now()).await.unwrap();
    let everything = |name| NewToken { scopes: Scope::ALL.into(), ..new(name, None) };
    let mut administrators = Vec::new();
    for name in ["ada", "bob", "eve"] {
        administrators.push(bed.store.create_token(everything(name), Moment::now()).await.unwrap().0.id);
    }
    make(&bed, "not all scopes, so no administrator", None).await;
    let revocations = administrators.into_iter().map(|id| {
        let store = bed.store.clone();
        tokio::spawn(async move { store.revoke_token(id).await.unwrap() })
    });
    let mut refused = 0;
    for revocation in revocations.collect::<Vec<_>>() {
        refused += usize::from(revocation.await.unwrap() == Revocation::LastAdministrator);
    }
    assert_eq!(refused, 1);
    let left = bed.store.tokens(None).await.unwrap();
    assert_eq!(left.iter().filter(|token| token.is_admin()).count(), 1);
}

async fn a_token_for_a_project_that_was_deleted_meanwhile_is_not_found(bed: Bed) {
    let project = bed.project("web").await;
    bed.store.delete_project(project.id).await.unwrap();
    let late = bed.store.create_token(new("late", Some(&project)), Moment::now()).await;
    assert_eq!(late.unwrap_err().kind(), cofer_model::Kind::NotFound);
}
