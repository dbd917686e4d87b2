//! How long to wait before the model is asked again, and when not to.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::api::Trouble;

#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    /// So often a question is asked in all.
    pub attempts_max: u32,
    pub first_wait: Duration,
    /// Waits double up to this. An API that asks for longer is given it.
    pub wait_max: Duration,
    /// Takes up to half of a wait away, so that many who failed together do not come back together.
    pub jitter: bool,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            attempts_max: 6,
            first_wait: Duration::from_millis(500),
            wait_max: Duration::from_secs(30),
            jitter: true,
        }
    }
}

impl RetryRules {
    /// The wait after so many attempts have failed, the last one like this; `None` to give up.
    pub fn wait(&self, failed: u32, trouble: Trouble) -> Option<Duration> {
        let Trouble::Passing { retry_after } = trouble else { return None };
        if failed >= self.attempts_max {
            return None;
        }
        let doubled = self.first_wait.saturating_mul(1 << failed.saturating_sub(1).min(16));
        let wait = doubled.min(self.wait_max);
        let wait = if self.jitter { wait.mul_f64(1.0 - random_half()) } else { wait };
        // Never earlier than it asked for.
        Some(retry_after.map_or(wait, |asked| asked.max(wait)))
    }
}

/// From 0 to a half. Hashers are seeded at random.
fn random_half() -> f64 {
    let random = u32::try_from(RandomState::new().hash_one("jitter") >> 32).unwrap_or(0);
    f64::from(random) / f64::from(u32::MAX) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSING: Trouble = Trouble::Passing { retry_after: None };

    #[test]
    fn waits_double_up_to_a_limit_and_then_it_gives_up() {
        let rules = RetryRules { jitter: false, wait_max: Duration::from_secs(3), ..RetryRules::default() };
        let waits: Vec<_> =
            (1..=6).map(|failed| rules.wait(failed, PASSING).map(|w| w.as_millis())).collect();
        assert_eq!(waits, [Some(500), Some(1000), Some(2000), Some(3000), Some(3000), None]);
    }

    #[test]
    fn what_will_not_pass_is_not_tried_again() {
        assert_eq!(RetryRules::default().wait(1, Trouble::Lasting), None);
    }

    #[test]
    fn the_api_is_given_as_long_as_it_asks_for() {
        let rules = RetryRules::default();
        let asked = |seconds| Trouble::Passing { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(rules.wait(1, asked(90)), Some(Duration::from_secs(90)));
        assert!(rules.wait(5, asked(1)).unwrap() >= Duration::from_secs(4));
    }

    #[test]
    fn jitter_takes_at_most_half() {
        for _ in 0..1000 {
            let wait = RetryRules::default().wait(2, PASSING).unwrap();
            assert!((500..=1000).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
