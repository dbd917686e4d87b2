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
