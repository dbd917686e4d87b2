//! Many lists as one: who answers to which name, and what clients and people see of it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use cofer_model::{Namespacing, ServerId, SessionMode};
use serde_json::Value;
use serde_json::value::RawValue;

use super::MadeUp;
use crate::catalogue::Catalogue;
use crate::lists::{Items, List};
use crate::native::{Display, Native};
use crate::slot::SlotRules;
use crate::upstream::{ServerEntry, Upstream};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn server(name: &str, tools: &[&str], disabled: &[&str]) -> (Arc<Upstream>, Option<Items>) {
    let entry = ServerEntry {
        id: ServerId(uuid::Uuid::new_v4()),
        name: name.to_owned(),
        fingerprint: 0,
        sessions: SessionMode::Auto,
        dial: MadeUp::that([]),
        tools: Some(tools.iter().map(|tool| raw(tool)).collect()),
        disabled: disabled.iter().map(ToString::to_string).collect::<HashSet<_>>(),
    };
    let upstream = Upstream::new(Weak::new(), entry, SlotRules::default());
    let known = upstream.known(List::Tools);
    (upstream, known)
}

fn names(catalogue: &Catalogue) -> Vec<String> {
    let page: Value = serde_json::from_str(catalogue.page(None).unwrap().get()).unwrap();
    assert_eq!(page.get("nextCursor"), None);
    page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn whose(catalogue: &Catalogue, name: &str) -> Option<(String, String)> {
    let route = catalogue.route(name)?;
    Some((route.answerer.server_name().to_owned(), route.name.to_string()))
}

#[test]
fn the_later_server_answers_and_the_other_is_reached_by_its_qualified_name() {
    let servers =
        [server("a", &[r#"{"name":"read","x":1}"#], &[]), server("b", &[r#"{"name":"read"}"#], &[])];
    let catalogue = Catalogue::make(&servers, &[], Namespacing::Off);
    assert_eq!(names(&catalogue), ["read"]);
    let own = |server: &str| Some((server.to_owned(), "read".to_owned()));
    assert_eq!(whose(&catalogue, "read"), own("b"));
    assert_eq!((whose(&catalogue, "a__read"), whose(&catalogue, "b__read")), (own("a"), own("b")));
    assert_eq!((catalogue.tools.len(), catalogue.warnings.len()), (2, 1), "people see both, and are warned");
    let apart = Catalogue::make(&servers, &[], Namespacing::Conflict);
    assert_eq!(names(&apart), ["a__read", "b__read"]);
    assert_eq!(apart.page(None).unwrap().get(), r#"{"tools":[{"name":"a__read","x":1},{"name":"b__read"}]}"#);
    assert!(!catalogue.offers_the_same(&apart));
}

#[test]
fn people_are_told_under_which_name_each_tool_is_called_however_long_it_would_be() {
    let (long, tool) = ("s".repeat(63), [r#"{"name":"read"}"#]);
    let servers = [server(&long, &tool, &[]), server("a", &tool, &[]), server("b", &tool, &[])];
    for mode in [Namespacing::Off, Namespacing::Conflict, Namespacing::Always] {
        let catalogue = Catalogue::make(&servers, &[], mode);
        assert_eq!(catalogue.tools.len(), 3);
        for tool in &catalogue.tools {
            let answerer = whose(&catalogue, &tool.called_as).map(|(server, _)| server);
            assert_eq!(answerer.as_ref(), Some(&tool.server), "{mode:?} {}", tool.called_as);
            assert!(tool.called_as.chars().count() <= 64, "{}", tool.called_as);
        }
    }
}

#[test]
fn what_is_switched_off_or_has_no_name_is_not_offered() {
    let tools = [r#"{"name":"on"}"#, r#"{"name":"off"}"#, r#"{"title":"nameless"}"#, r#"{"name":""}"#];
    let catalogue = Catalogue::make(&[server("a", &tools, &["off"])], &[], Namespacing::Off);
    assert_eq!(names(&catalogue), ["on"]);
    assert!(whose(&catalogue, "off").is_none() && whose(&catalogue, "a__off").is_none());
    let shown: Vec<_> = catalogue.tools.iter().map(|tool| (tool.name.as_str(), tool.enabled)).collect();
    assert_eq!(shown, [("on", true), ("off", false)]);
}

#[test]
fn native_tools_come_first_and_a_server_that_has_not_listed_yet_has_none() {
    let native = Native { description: raw(r#"{"name":"show"}"#), handler: Box::new(Display) };
    let (unlisted, _) = server("b", &[], &[]);
    let servers = [server("a", &[r#"{"name":"read"}"#], &[]), (unlisted, None)];
    let catalogue = Catalogue::make(&servers, &[Arc::new(native)], Namespacing::Off);
    assert_eq!(names(&catalogue), ["show", "read"]);
    assert_eq!(whose(&catalogue, "show").unwrap().0, "native");
}

#[test]
fn long_lists_come_in_pages_and_a_cursor_of_somebody_elses_is_none() {
    let tools: Vec<String> = (0..4001).map(|number| format!(r#"{{"name":"t{number}"}}"#)).collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    let catalogue = Catalogue::make(&[server("a", &tools, &[])], &[], Namespacing::Off);
    let (mut seen, mut cursor) = (0, None::<String>);
    loop {
        let page: Value = serde_json::from_str(catalogue.page(cursor.as_deref()).unwrap().get()).unwrap();
        seen += page["tools"].as_array().unwrap().len();
        match page["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, 4001);
    assert!(catalogue.page(Some("page-9")).is_none() && catalogue.page(Some("from-1")).is_none());
    assert_eq!(Catalogue::default().page(None).unwrap().get(), r#"{"tools":[]}"#);
}
