//! Calls of a session: called off when they are to be, and quiet otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use cofer_mcp::Face;
use serde_json::value::RawValue;

use crate::session::{Session, Underway};

/// Counts how often it was woken.
#[derive(Default)]
struct Sleeper(AtomicUsize);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that somebody waits for: the call, and who waits.
fn waited_for(session: &Arc<Session>) -> (Underway, Arc<Sleeper>) {
    let id = RawValue::from_string("1".to_owned()).unwrap();
    let (mut underway, sleeper) = (session.begin_call(&id).unwrap(), Arc::<Sleeper>::default());
    assert!(!is_called_off(&mut underway, &sleeper));
    (underway, sleeper)
}

fn is_called_off(underway: &mut Underway, sleeper: &Arc<Sleeper>) -> bool {
    let waker = Waker::from(sleeper.clone());
    Pin::new(&mut underway.cancelled).poll(&mut Context::from_waker(&waker)).is_ready()
}

#[test]
fn a_call_is_called_off_by_its_client_or_with_its_session_and_not_by_its_own_end() {
    let session = Arc::new(Session::new(None, "2025-11-25", Face::default()));
    let (underway, sleeper) = waited_for(&session);
    drop(underway);
    assert_eq!(sleeper.0.load(Ordering::Relaxed), 0, "one that was answered is not woken again");

    let (mut underway, sleeper) = waited_for(&session);
    session.cancel_call("1");
    assert_eq!(sleeper.0.load(Ordering::Relaxed), 1);
    assert!(is_called_off(&mut underway, &sleeper));
    session.cancel_call("1");
    drop(underway);

    let (mut underway, sleeper) = waited_for(&session);
    session.close();
    assert!(is_called_off(&mut underway, &sleeper));
    drop(underway);
    let id = RawValue::from_string("2".to_owned()).unwrap();
    assert!(is_called_off(&mut session.begin_call(&id).unwrap(), &sleeper), "one that comes too late");
}
