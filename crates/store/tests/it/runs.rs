//! Agent runs and what was said in them.

use cofer_model::{
    MessageId, Moment, ProjectId, RunFilter, RunId, RunMessage, RunRecord, RunStatus, Speaker, Usage,
};
use cofer_store::{RunCursor, RunProgress};

use crate::registry::project;
use crate::{Bed, on_both};

on_both!(
    a_run_comes_back_as_it_went_in,
    messages_are_read_in_their_order_and_written_all_or_none,
    a_run_that_runs_is_not_set_going_again,
    a_run_ends_once,
    runs_of_which_nobody_hears_any_more_are_ended,
    runs_are_read_newest_first_page_by_page_and_found,
    old_runs_are_dropped_with_what_was_said_and_those_that_run_are_not,
);

const BEGIN: i64 = 1_800_000_000_000;

fn moment(ms: i64) -> Moment {
    Moment::from_unix_ms(BEGIN + ms)
}

fn run(project_id: ProjectId, ms: i64) -> RunRecord {
    RunRecord {
        id: RunId::generate(),
        project_id,
        status: RunStatus::Running,
        reason: None,
        error: None,
        model: "claude".to_owned(),
        system: Some("Be \"brief\".".to_owned()),
        steps: 0,
        usage: Usage::default(),
        caller: Some("ada".to_owned()),
        trace_id: None,
        created_at: moment(ms),
        updated_at: moment(ms),
    }
}

async fn made(bed: &Bed, run: RunRecord) -> RunRecord {
    bed.store.create_run(&run).await.unwrap();
    run
}

fn message(run: &RunRecord, position: i64, content: &str) -> RunMessage {
    RunMessage {
        id: MessageId::generate(),
        run_id: run.id,
        position,
        step_number: 1,
        role: Speaker::Tool,
        content: content.to_owned(),
        created_at: moment(5),
    }
}

const PROGRESS: RunProgress = RunProgress {
    steps: 3,
    usage: Usage {
        input_tokens: 1,
        output_tokens: 2,
        cache_creation_input_tokens: 3,
        cache_read_input_tokens: 4,
    },
};

async fn a_run_comes_back_as_it_went_in(bed: Bed) {
    let web = project(&bed, "web").await;
    let run = made(&bed, run(web, 0)).await;
    assert_eq!(bed.store.run(web, run.id).await.unwrap().unwrap(), run);
    let other = project(&bed, "other").await;
    assert!(bed.store.run(other, run.id).await.unwrap().is_none(), "it is nobody else's");
    assert!(bed.store.run(web, RunId::generate()).await.unwrap().is_none());
}

async fn messages_are_read_in_their_order_and_written_all_or_none(bed: Bed) {
    let run = made(&bed, run(project(&bed, "web").await, 0)).await;
    let odd = r#"[ {"z":1e400,"a":"\u0000 ü"} ]"#;
    let said = [message(&run, 0, odd), message(&run, 1, "[]"), message(&run, 2, "[1]")];
    bed.store.append_messages(run.id, &said[..2], PROGRESS, moment(9)).await.unwrap();
    // An answer that never came: the same again, and more.
    bed.store.append_messages(run.id, &said, PROGRESS, moment(9)).await.unwrap();
    assert_eq!(bed.store.run_messages(run.id, 0, 10).await.unwrap(), said);
    assert_eq!(bed.store.run_messages(run.id, 1, 1).await.unwrap(), said[1..2]);
    let now = bed.store.run(run.project_id, run.id).await.unwrap().unwrap();
    assert_eq!((now.steps, now.usage, now.updated_at), (3, PROGRESS.usage, moment(9)));
    // Somebody else's at the same place.
    let clash = [message(&run, 3, "[3]"), message(&run, 2, "[x]")];
    bed.store.append_messages(run.id, &clash, PROGRESS, moment(10)).await.unwrap_err();
    assert_eq!(bed.store.run_messages(run.id, 0, 10).await.unwrap(), said);
}

async fn a_run_that_runs_is_not_set_going_again(bed: Bed) {
    let run = made(&bed, run(project(&bed, "web").await, 0)).await;
    let resume = async || bed.store.resume_run(run.id, "newer", None, moment(50)).await.unwrap();
    assert!(!resume().await);
    bed.store.end_run(run.id, RunStatus::Failed, "error", Some("it broke"), moment(40)).await.unwrap();
    assert!(resume().await);
    assert!(!resume().await);
    let now = bed.store.run(run.project_id, run.id).await.unwrap().unwrap();
    assert_eq!(
        (now.status, now.reason, now.error, now.model.as_str()),
        (RunStatus::Running, None, None, "newer")
    );
}

async fn a_run_ends_once(bed: Bed) {
    let run = made(&bed, run(project(&bed, "web").await, 0)).await;
    bed.store.end_run(run.id, RunStatus::Cancelled, "cancelled", None, moment(1)).await.unwrap();
    bed.store.end_run(run.id, RunStatus::Completed, "end_turn", None, moment(2)).await.unwrap();
    let now = bed.store.run(run.project_id, run.id).await.unwrap().unwrap();
    assert_eq!((now.status, now.reason.as_deref()), (RunStatus::Cancelled, Some("cancelled")));
}

async fn runs_of_which_nobody_hears_any_more_are_ended(bed: Bed) {
    let web = project(&bed, "web").await;
    let (silent, alive) = (made(&bed, run(web, 0)).await, made(&bed, run(web, 0)).await);
    bed.store.touch_runs(&[alive.id], moment(100)).await.unwrap();
    assert_eq!(bed.store.end_silent_runs(moment(50), "gone", moment(110)).await.unwrap(), 1);
    let silent = bed.store.run(web, silent.id).await.unwrap().unwrap();
    assert_eq!((silent.status, silent.error.as_deref()), (RunStatus::Failed, Some("gone")));
    assert_eq!(bed.store.run(web, alive.id).await.unwrap().unwrap().status, RunStatus::Running);
}

async fn runs_are_read_newest_first_page_by_page_and_found(bed: Bed) {
    let web = project(&bed, "web").await;
    let mut expected = Vec::new();
    for at in 0..5 {
        expected.insert(0, made(&bed, run(web, at / 2)).await.id);
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = bed.store.runs(web, &RunFilter::default(), cursor, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        cursor = Some(RunCursor { created_at: last.created_at, id: last.id });
        seen.extend(page.iter().map(|run| run.id));
    }
    assert_eq!(seen, expected);
    bed.store.end_run(expected[0], RunStatus::Completed, "end_turn", None, moment(9)).await.unwrap();
    let found = async |filter: RunFilter| bed.store.runs(web, &filter, None, 10).await.unwrap().len();
    let all = RunFilter::default;
    assert_eq!(found(RunFilter { status: Some(RunStatus::Completed), ..all() }).await, 1);
    assert_eq!(found(RunFilter { model: Some("other".to_owned()), ..all() }).await, 0);
    assert_eq!(found(RunFilter { since: Some(moment(1)), until: Some(moment(2)), ..all() }).await, 2);
    let other = project(&bed, "other").await;
    assert_eq!(bed.store.runs(other, &all(), None, 10).await.unwrap(), []);
}

async fn old_runs_are_dropped_with_what_was_said_and_those_that_run_are_not(bed: Bed) {
    let web = project(&bed, "web").await;
    let (old, running) = (made(&bed, run(web, 0)).await, made(&bed, run(web, 0)).await);
    bed.store.append_messages(old.id, &[message(&old, 0, "[]")], PROGRESS, moment(1)).await.unwrap();
    bed.store.end_run(old.id, RunStatus::Completed, "end_turn", None, moment(2)).await.unwrap();
    assert_eq!(bed.store.drop_runs_before(web, moment(2)).await.unwrap(), 0);
    assert_eq!(bed.store.drop_runs_before(web, moment(3)).await.unwrap(), 1);
    assert!(bed.store.run(web, old.id).await.unwrap().is_none());
    assert_eq!(bed.store.run_messages(old.id, 0, 10).await.unwrap(), []);
    assert!(bed.store.run(web, running.id).await.unwrap().is_some());
}
