//! When to try again: decides, and does nothing.
//!
//! ```text
//!   admitting ── three attempts in a row fail ──► refusing ── cool-down ──► probing ── fails ──► refusing
//!       ▲                                                                      │
//!       └────────────────────────────── succeeds ◄─────────────────────────────┘
//! ```
//!
//! Between attempts that fail, and between connections that do not last, waits grow from half a second to half a minute, spread
//! at random so that many who lost the same server do not come back at once. A tool's own failure is none of ours.

use std::time::Duration;

use cofer_model::CircuitState;

#[derive(Clone, Copy, Debug)]
pub struct BreakerRules {
    /// Attempts in a row that may fail.
    pub threshold: u32,
    pub cool_down: Duration,
    pub wait_min: Duration,
    pub wait_max: Duration,
    /// A connection that held this long was a good one.
    pub lasting: Duration,
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self {
            threshold: 3,
            cool_down: Duration::from_mins(1),
            wait_min: Duration::from_millis(500),
            wait_max: Duration::from_secs(30),
            lasting: Duration::from_secs(10),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Breaker {
    rules: BreakerRules,
    /// Attempts in a row that failed.
    failures: u32,
    /// Connections in a row that did not last.
    drops: u32,
    circuit: CircuitState,
}

impl Breaker {
    pub(crate) fn new(rules: BreakerRules) -> Self {
        Self { rules, failures: 0, drops: 0, circuit: CircuitState::Admitting }
    }

    pub(crate) fn circuit(&self) -> CircuitState {
        self.circuit
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt begins.
    pub(crate) fn tries(&mut self) {
        if self.circuit == CircuitState::Refusing {
            self.circuit = CircuitState::Probing;
        }
    }

    pub(crate) fn connects(&mut self) {
        self.failures = 0;
        self.circuit = CircuitState::Admitting;
    }

    /// How long to wait after this failure; `luck` is between 0 and 1.
    pub(crate) fn fails(&mut self, luck: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.rules.threshold {
            self.circuit = CircuitState::Refusing;
            return self.rules.cool_down;
        }
        self.wait(self.failures - 1, luck)
    }

    /// A connection ended that nobody wanted to end. The first time it is made anew after `at_first`.
    pub(crate) fn drops(&mut self, lasted: Duration, at_first: Duration, luck: f64) -> Duration {
        if lasted >= self.rules.lasting {
            self.drops = 0;
        }
        self.drops = self.drops.saturating_add(1);
        match self.drops {
            1 => at_first,
            drops => self.wait(drops - 2, luck),
        }
    }

    fn wait(&self, step: u32, luck: f64) -> Duration {
        let whole = self.rules.wait_min.saturating_mul(2_u32.saturating_pow(step)).min(self.rules.wait_max);
        // Between a half and the whole of it.
        whole.mul_f64(0.5 + luck.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_after_three_failures_then_lets_one_probe_decide() {
        let mut breaker = Breaker::new(BreakerRules::default());
        let waits: Vec<_> = (0..3)
            .map(|_| {
                breaker.tries();
                breaker.fails(1.0).as_millis()
            })
            .collect();
        assert_eq!(waits, [500, 1000, 60_000]);
        assert_eq!(breaker.circuit(), CircuitState::Refusing);
        breaker.tries();
        assert_eq!(breaker.circuit(), CircuitState::Probing);
        assert_eq!(breaker.fails(1.0), Duration::from_mins(1));
        breaker.tries();
        breaker.connects();
        assert_eq!((breaker.circuit(), breaker.failures()), (CircuitState::Admitting, 0));
    }

    #[test]
    fn connections_that_do_not_last_are_made_anew_more_and_more_slowly() {
        let mut breaker = Breaker::new(BreakerRules::default());
        let short = Duration::from_secs(2);
        let waits: Vec<_> = (0..9).map(|_| breaker.drops(short, Duration::ZERO, 1.0).as_millis()).collect();
        assert_eq!(waits, [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(breaker.drops(Duration::from_mins(1), Duration::ZERO, 1.0), Duration::ZERO);
        assert_eq!(breaker.circuit(), CircuitState::Admitting, "each of them connected");
    }

    #[test]
    fn waits_are_spread_between_a_half_and_the_whole() {
        let wait = |luck| Breaker::new(BreakerRules::default()).fails(luck).as_millis();
        assert_eq!((wait(0.0), wait(0.5), wait(1.0)), (250, 375, 500));
    }
}
