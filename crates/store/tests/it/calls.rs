//! The record of tool calls.

use cofer_model::{CallFilter, CallId, CallStatus, Moment, ProjectId, RunId, ToolCallRecord};
use cofer_store::CallCursor;

use crate::registry::project;
use crate::{Bed, on_both};

on_both!(
    a_call_comes_back_as_it_went_in,
    a_batch_may_be_written_twice,
    calls_of_projects_that_are_gone_are_dropped_and_the_others_of_the_batch_kept,
    calls_are_read_newest_first_page_by_page_and_each_once,
    calls_are_found_by_tool_server_status_and_time,
    calls_of_a_run_are_found_in_its_project_alone,
    old_calls_are_dropped_and_only_those,
);

fn call(project_id: ProjectId, tool: &str) -> ToolCallRecord {
    ToolCallRecord {
        id: CallId::generate(),
        project_id,
        run_id: None,
        tool_name: tool.to_owned(),
        server: "time".to_owned(),
        input: Some("{}".to_owned()),
        output: None,
        status: CallStatus::Completed,
        duration_ms: Some(7),
        step_number: None,
        caller: None,
        trace_id: None,
        created_at: Moment::from_unix_ms(1_800_000_000_000),
    }
}

fn at(record: ToolCallRecord, ms: i64) -> ToolCallRecord {
    ToolCallRecord { created_at: Moment::from_unix_ms(1_800_000_000_000 + ms), ..record }
}

async fn all(bed: &Bed, project: ProjectId, filter: &CallFilter) -> Vec<String> {
    let calls = bed.store.tool_calls(project, filter, None, 1000).await.unwrap();
    calls.into_iter().map(|call| call.tool_name).collect()
}

async fn a_call_comes_back_as_it_went_in(bed: Bed) {
    let web = project(&bed, "web").await;
    let odd = r#"{ "z":1, "a":1e400, "n":12345678901234567890123, "z":2, "s":"\u0000 ü '; DROP" }"#;
    let full = ToolCallRecord {
        input: Some(odd.to_owned()),
        output: Some(format!("[\"{}\"]", "o".repeat(1 << 20))),
        status: CallStatus::Timeout,
        duration_ms: None,
        step_number: Some(3),
        caller: Some("Ada's \"laptop\"".to_owned()),
        trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
        ..call(web, "ütf-8 .tool")
    };
    let bare = ToolCallRecord { input: None, duration_ms: None, ..at(call(web, "bare"), -1) };
    assert_eq!(bed.store.record_calls(&[full.clone(), bare.clone()]).await.unwrap(), 2);
    let read = bed.store.tool_calls(web, &CallFilter::default(), None, 10).await.unwrap();
    assert_eq!(read, [full, bare]);
    let nul = call(web, "a\0b");
    bed.store.record_calls(&[nul]).await.unwrap();
    assert_eq!(bed.store.record_calls(&[]).await.unwrap(), 0);
    let found = CallFilter { tool: Some("a\0b".to_owned()), ..CallFilter::default() };
    assert_eq!(all(&bed, web, &found).await, ["a\u{fffd}b"]);
}

async fn a_batch_may_be_written_twice(bed: Bed) {
    let web = project(&bed, "web").await;
    let (first, second) = (call(web, "a"), call(web, "b"));
    assert_eq!(bed.store.record_calls(std::slice::from_ref(&first)).await.unwrap(), 1);
    assert_eq!(bed.store.record_calls(&[first, second]).await.unwrap(), 1);
    assert_eq!(all(&bed, web, &CallFilter::default()).await.len(), 2);
}

async fn calls_of_projects_that_are_gone_are_dropped_and_the_others_of_the_batch_kept(bed: Bed) {
    let (web, gone) = (project(&bed, "web").await, ProjectId::generate());
    let of_no_run = ToolCallRecord { run_id: Some(RunId::generate()), ..call(web, "kept") };
    assert_eq!(bed.store.record_calls(&[call(gone, "lost"), of_no_run]).await.unwrap(), 1);
    let read = bed.store.tool_calls(web, &CallFilter::default(), None, 10).await.unwrap();
    assert_eq!((read.len(), read[0].run_id), (1, None));
    assert!(bed.store.delete_project(web).await.unwrap());
    assert!(all(&bed, web, &CallFilter::default()).await.is_empty());
}

async fn calls_are_read_newest_first_page_by_page_and_each_once(bed: Bed) {
    let (web, other) = (project(&bed, "web").await, project(&bed, "other").await);
    // Several in the same millisecond, as they come.
    let calls: Vec<_> = (0..25).map(|n| at(call(web, &n.to_string()), n / 4)).collect();
    bed.store.record_calls(&calls).await.unwrap();
    bed.store.record_calls(&[call(other, "other")]).await.unwrap();
    let mut read = Vec::new();
    let mut cursor = None;
    loop {
        let page = bed.store.tool_calls(web, &CallFilter::default(), cursor, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        cursor = Some(CallCursor::after(last));
        read.extend(page.into_iter().map(|call| call.tool_name));
    }
    let expected: Vec<_> = (0..25).rev().map(|n| n.to_string()).collect();
    assert_eq!(read, expected);
}

async fn calls_are_found_by_tool_server_status_and_time(bed: Bed) {
    let web = project(&bed, "web").await;
    let calls = [
        at(call(web, "a"), 10),
        ToolCallRecord { server: "git".to_owned(), ..at(call(web, "b"), 20) },
        ToolCallRecord { status: CallStatus::Error, ..at(call(web, "c"), 30) },
    ];
    bed.store.record_calls(&calls).await.unwrap();
    let moment = |ms: i64| Some(Moment::from_unix_ms(1_800_000_000_000 + ms));
    let any = CallFilter::default;
    for (filter, found) in [
        (any(), "c b a"),
        (CallFilter { tool: Some("a".to_owned()), ..any() }, "a"),
        (CallFilter { tool: Some("A".to_owned()), ..any() }, ""),
        (CallFilter { server: Some("git".to_owned()), ..any() }, "b"),
        (CallFilter { status: Some(CallStatus::Error), ..any() }, "c"),
        (CallFilter { since: moment(20), ..any() }, "c b"),
        (CallFilter { until: moment(20), ..any() }, "a"),
        (CallFilter { since: moment(20), until: moment(30), ..any() }, "b"),
        (CallFilter { since: moment(30), until: moment(20), ..any() }, ""),
        (CallFilter { run_id: Some(RunId::generate()), ..any() }, ""),
        (CallFilter { server: Some("time".to_owned()), status: Some(CallStatus::Completed), ..any() }, "a"),
    ] {
        assert_eq!(all(&bed, web, &filter).await.join(" "), found, "{filter:?}");
    }
}

async fn calls_of_a_run_are_found_in_its_project_alone(bed: Bed) {
    let (web, other) = (project(&bed, "web").await, project(&bed, "other").await);
    let run = RunId::generate();
    crate::schema::add_run(&bed, run.0, web.0).await;
    let calls: Vec<_> = (0..3)
        .map(|n| ToolCallRecord { run_id: Some(run), ..at(call(web, &n.to_string()), n) })
        .chain([at(call(web, "of no run"), 5)])
        .collect();
    bed.store.record_calls(&calls).await.unwrap();
    let of_run = CallFilter { run_id: Some(run), ..CallFilter::default() };
    assert_eq!(all(&bed, web, &of_run).await, ["2", "1", "0"]);
    assert!(all(&bed, other, &of_run).await.is_empty());
}

async fn old_calls_are_dropped_and_only_those(bed: Bed) {
    let (web, other) = (project(&bed, "web").await, project(&bed, "other").await);
    let old = [at(call(web, "old"), 0), at(call(other, "others"), 0), at(call(web, "new"), 10)];
    bed.store.record_calls(&old).await.unwrap();
    let limit = Moment::from_unix_ms(1_800_000_000_005);
    assert_eq!(bed.store.drop_calls_before(web, limit).await.unwrap(), 1);
    assert_eq!(all(&bed, web, &CallFilter::default()).await, ["new"]);
    assert_eq!(all(&bed, other, &CallFilter::default()).await, ["others"]);
}
