//! A list that nobody knows yet: asked for once, waited for once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::lists::{Items, Kept};

const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Result<Items, String>;

/// Asks a server that answers when it is told to.
fn asking(kept: &Arc<Kept>, answer: oneshot::Receiver<Answer>) -> JoinHandle<Answer> {
    let kept = kept.clone();
    tokio::spawn(async move {
        let answer = answer.await.unwrap_or_else(|_| Err("it is gone".to_owned()));
        kept.answered(&answer);
        answer
    })
}

fn never() -> JoinHandle<Answer> {
    panic!("it is being asked already")
}

#[tokio::test(start_paused = true)]
async fn one_that_was_silent_is_not_waited_for_again_and_is_there_when_it_speaks() {
    let kept = Arc::<Kept>::default();
    let (speaks, answer) = oneshot::channel();
    let began = Instant::now();
    assert!(kept.answer(PATIENCE, || asking(&kept, answer)).await.is_none());
    assert_eq!(began.elapsed(), PATIENCE);
    assert!(kept.answer(PATIENCE, never).await.is_none());
    assert_eq!(began.elapsed(), PATIENCE, "the second does not wait");
    speaks.send(Ok(Arc::new([]))).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(matches!(kept.answer(PATIENCE, never).await, Some(Ok(_))));
    assert!(kept.get().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_comes_later_waits_no_longer_than_who_came_first() {
    let kept = Arc::<Kept>::default();
    let (_silent, answer) = oneshot::channel();
    let began = Instant::now();
    let later = async {
        tokio::time::sleep(PATIENCE / 2).await;
        kept.answer(PATIENCE, never).await
    };
    let (first, second) = tokio::join!(kept.answer(PATIENCE, || asking(&kept, answer)), later);
    assert!(first.is_none() && second.is_none());
    assert_eq!(began.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn one_that_refuses_soon_is_asked_and_waited_for_again() {
    let kept = Arc::<Kept>::default();
    for _ in 0..3 {
        let (refuses, answer) = oneshot::channel();
        refuses.send(Err("not now".to_owned())).unwrap();
        let heard = kept.answer(PATIENCE, || asking(&kept, answer)).await;
        assert!(matches!(heard, Some(Err(reason)) if reason == "not now"));
    }
    let (speaks, answer) = oneshot::channel::<Answer>();
    speaks.send(Ok(Arc::new([]))).unwrap();
    assert!(matches!(kept.answer(PATIENCE, || asking(&kept, answer)).await, Some(Ok(_))));
}
