use cofer_model::{Kind, Moment, Namespacing, ProjectId, Reference};
use cofer_store::{NewProject, ProjectChange};

use crate::{Bed, named, on_both, project_name};

on_both!(
    a_project_is_found_by_id_and_by_name,
    projects_are_listed_by_name,
    a_name_can_be_used_once,
    of_many_who_make_the_same_project_at_once_one_succeeds,
    a_change_touches_only_what_it_names,
    what_is_not_there_is_neither_changed_nor_deleted,
    the_default_project_is_made_once_however_often_it_is_ensured,
    any_text_comes_back_as_it_went_in,
);

async fn a_project_is_found_by_id_and_by_name(bed: Bed) {
    let made = bed.project("web").await;
    for reference in [named("web"), Reference::Id(made.id.0)] {
        assert_eq!(bed.store.project(&reference).await.unwrap(), Some(made.clone()));
    }
    assert_eq!(bed.store.project(&named("WEB")).await.unwrap(), None);
    assert_eq!(bed.store.project(&Reference::Id(ProjectId::generate().0)).await.unwrap(), None);
}

async fn projects_are_listed_by_name(bed: Bed) {
    for name in ["zebra", "ant", "mole"] {
        bed.project(name).await;
    }
    let names: Vec<_> = bed.store.projects().await.unwrap().into_iter().map(|p| p.name.to_string()).collect();
    assert_eq!(names, ["ant", "mole", "zebra"]);
}

async fn a_name_can_be_used_once(bed: Bed) {
    let (first, second) = (bed.project("one").await, bed.project("two").await);
    let rename = ProjectChange { name: Some(first.name.clone()), ..ProjectChange::default() };
    let error = bed.store.change_project(second.id, &rename, Moment::now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert_eq!(bed.store.project(&named("two")).await.unwrap(), Some(second));
}

async fn of_many_who_make_the_same_project_at_once_one_succeeds(bed: Bed) {
    let attempts = (0..20).map(|_| {
        let store = bed.store.clone();
        tokio::spawn(async move {
            let name = project_name("contested");
            let new = NewProject {
                name,
                description: String::new(),
                namespacing: Namespacing::Off,
                repeat_safe_calls: false,
            };
            store.create_project(&new, Moment::now()).await
        })
    });
    let mut made = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        match attempt.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.kind(), Kind::Conflict, "{error:?}"),
        }
    }
    assert_eq!(made, 1);
}

async fn a_change_touches_only_what_it_names(bed: Bed) {
    let before = bed.project("web").await;
    let later = before.created_at.after(std::time::Duration::from_secs(5));
    let (namespacing, repeat_safe_calls) = (Some(Namespacing::Always), Some(true));
    let change = ProjectChange { namespacing, repeat_safe_calls, ..ProjectChange::default() };
    let after = bed.store.change_project(before.id, &change, later).await.unwrap().unwrap();
    assert_eq!(
        after,
        cofer_model::Project {
            namespacing: Namespacing::Always,
            repeat_safe_calls: true,
            updated_at: later,
            ..before
        }
    );
}

async fn what_is_not_there_is_neither_changed_nor_deleted(bed: Bed) {
    let nobody = ProjectId::generate();
    let change = ProjectChange { description: Some("x".to_owned()), ..ProjectChange::default() };
    assert_eq!(bed.store.change_project(nobody, &change, Moment::now()).await.unwrap(), None);
    assert!(!bed.store.delete_project(nobody).await.unwrap());
}

async fn the_default_project_is_made_once_however_often_it_is_ensured(bed: Bed) {
    bed.store.ensure_default_project(Moment::now()).await.unwrap();
    let first = bed.store.project(&named("default")).await.unwrap();
    bed.store.ensure_default_project(Moment::now()).await.unwrap();
    assert_eq!(bed.store.project(&named("default")).await.unwrap(), first);
    assert!(first.is_some());
}

async fn any_text_comes_back_as_it_went_in(bed: Bed) {
    for (n, text) in
        ["'; DROP TABLE kb.projects; --", "ünïcødé 🦀", "line\nbreak\ttab", "$1 ? %s"].iter().enumerate()
    {
        let name = project_name(&format!("p{n}"));
        let new = NewProject {
            name,
            description: (*text).to_owned(),
            namespacing: Namespacing::Off,
            repeat_safe_calls: false,
        };
        assert_eq!(bed.store.create_project(&new, Moment::now()).await.unwrap().description, *text);
    }
}
