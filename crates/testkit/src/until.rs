//! Waiting for a level: something that holds, or comes to hold, within a bound. The one place where tests look again and again.

use std::time::{Duration, Instant};

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Longer than anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Returns once this holds; fails the test, saying what never came, if it does not in time.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "this never came: {what}");
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
}

/// The same for something that is then used: `look` gives it, or what is there instead, which is shown if it never comes.
pub async fn until_seen<T>(what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + 2 * DEADLINE;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) => assert!(Instant::now() < deadline, "this never came: {what}; instead: {instead}"),
        }
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
}
