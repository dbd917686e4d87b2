//! When to look closely at a sandbox's disk: plain arithmetic on time and free space.
//!
//! Measuring a sandbox means walking its files; asking the kernel for the free space means nothing at all. So the free space is
//! looked at often, and whatever it lost since the last measurement is held against the sandbox until a measurement says
//! otherwise. The closer that comes to the limit, the sooner is the next look.
//!
//! ```text
//!   used (measured) + what the disk lost since = at most this much  ──►  close to the limit?  ──►  measure
//! ```

use std::time::{Duration, Instant};

/// Faster than the disks that we know; between two looks nobody writes more than this.
const BYTES_PER_SECOND_MAX: u64 = 2 << 30;
const LOOK_AFTER_MAX: Duration = Duration::from_millis(250);
const LOOK_AFTER_MIN: Duration = Duration::from_millis(20);
/// While the disk is being written to.
const LOOK_AFTER_MIN_GROWING: Duration = Duration::from_millis(2);
/// However calm it is, a measurement is so old at most, if anything changed.
const MEASURE_AFTER_MAX: Duration = Duration::from_secs(5);
/// Somebody else writes: measuring takes at most a tenth of the time.
const REST_AFTER_VAIN_MEASUREMENT: u32 = 10;

#[derive(Debug)]
pub(crate) struct Gauge {
    limit: u64,
    /// How long it takes to hold the sandbox still.
    reaction: Duration,
    used: u64,
    /// What the disk has lost since then, from look to look. What it gained meanwhile is somebody else's, and hides nothing.
    lost: u64,
    measured_at: Instant,
    looked_at: Instant,
    looked_free: u64,
    /// What the disk loses, at most, for now.
    bytes_per_second: u64,
    not_before: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Look(Duration),
    /// It may be at its limit before the next look.
    MeasureClosely,
    /// Only to know.
    Measure,
}

impl Gauge {
    pub fn new(limit: u64, reaction: Duration, now: Instant, free: u64, used: u64) -> Self {
        Self {
            limit,
            reaction,
            used,
            lost: 0,
            measured_at: now,
            looked_at: now,
            looked_free: free,
            bytes_per_second: 0,
            not_before: now,
        }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// What it may use after so long, as things go.
    pub fn expected_after(&self, wait: Duration) -> u64 {
        self.used.saturating_add(bytes_in(wait, self.bytes_per_second))
    }

    pub fn look(&mut self, now: Instant, free: u64) -> Next {
        let lost = self.looked_free.saturating_sub(free);
        let since = now.saturating_duration_since(self.looked_at).max(Duration::from_micros(100));
        let rate = u64::try_from(u128::from(lost) * 1_000_000 / since.as_micros().max(1)).unwrap_or(u64::MAX);
        // A writer that pauses for a moment is still a writer.
        self.bytes_per_second = rate.max(self.bytes_per_second / 2);
        (self.looked_at, self.looked_free) = (now, free);
        self.lost = self.lost.saturating_add(lost);
        let at_most = self.used.saturating_add(self.lost);
        let soon = bytes_in(self.reaction + LOOK_AFTER_MIN_GROWING, self.bytes_per_second);
        let has_grown = self.lost > 0;
        if has_grown && at_most.saturating_add(soon) >= self.limit && now >= self.not_before {
            return Next::MeasureClosely;
        }
        if has_grown && now.saturating_duration_since(self.measured_at) >= MEASURE_AFTER_MAX {
            return Next::Measure;
        }
        let left = self.limit.saturating_sub(at_most.saturating_add(soon));
        let until_full = Duration::from_millis(left.saturating_mul(1000) / BYTES_PER_SECOND_MAX);
        let shortest = if lost > 0 { LOOK_AFTER_MIN_GROWING } else { LOOK_AFTER_MIN };
        Next::Look(until_full.clamp(shortest, LOOK_AFTER_MAX))
    }

    /// What a measurement, which took so long, has found.
    pub fn measured(&mut self, now: Instant, took: Duration, free: u64, used: u64) {
        let grown = used.saturating_sub(self.used);
        let was_in_vain = grown.saturating_mul(2) < self.lost;
        if was_in_vain {
            self.bytes_per_second = 0;
            self.not_before = now + (took * REST_AFTER_VAIN_MEASUREMENT).max(LOOK_AFTER_MIN);
        }
        (self.used, self.lost, self.looked_free) = (used, 0, free);
        (self.measured_at, self.looked_at) = (now, now);
    }
}

fn bytes_in(time: Duration, bytes_per_second: u64) -> u64 {
    u64::try_from(u128::from(bytes_per_second) * time.as_micros() / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const REACTION: Duration = Duration::from_millis(2);

    /// Lets somebody write so fast until a close measurement is asked for; tells how much was written then.
    fn written_when_alarmed(limit: u64, bytes_per_second: u64) -> u64 {
        let start = Instant::now();
        let free = |elapsed: Duration| 1000 * 1024 * MB - bytes_in(elapsed, bytes_per_second);
        let mut gauge = Gauge::new(limit, REACTION, start, free(Duration::ZERO), 0);
        let mut elapsed = Duration::ZERO;
        loop {
            match gauge.look(start + elapsed, free(elapsed)) {
                Next::Look(wait) => elapsed += wait,
                Next::Measure => {
                    gauge.measured(
                        start + elapsed,
                        Duration::ZERO,
                        free(elapsed),
                        bytes_in(elapsed, bytes_per_second),
                    );
                }
                Next::MeasureClosely => return bytes_in(elapsed, bytes_per_second),
            }
        }
    }

    #[test]
    fn a_writer_of_any_speed_is_noticed_before_its_limit_and_not_long_before() {
        for speed in [MB, 50 * MB, 500 * MB, 1900 * MB] {
            let written = written_when_alarmed(256 * MB, speed);
            assert!((236 * MB..=258 * MB).contains(&written), "at {} MB/s: {} MB", speed / MB, written / MB);
        }
    }

    #[test]
    fn a_calm_disk_is_looked_at_seldom_and_never_measured() {
        let start = Instant::now();
        let mut gauge = Gauge::new(1024 * MB, REACTION, start, 5000 * MB, 10 * MB);
        for second in 0..100 {
            assert_eq!(
                gauge.look(start + Duration::from_secs(second), 5000 * MB),
                Next::Look(LOOK_AFTER_MAX)
            );
        }
    }

    #[test]
    fn space_that_somebody_else_frees_hides_nobody() {
        let start = Instant::now();
        let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 0);
        let look = |gauge: &mut Gauge, millis, free| gauge.look(start + Duration::from_millis(millis), free);
        assert!(matches!(look(&mut gauge, 100, 5900 * MB), Next::Look(_)));
        assert!(matches!(look(&mut gauge, 1000, 5800 * MB), Next::Look(_)));
        assert!(matches!(look(&mut gauge, 2000, 6700 * MB), Next::Look(_)));
        assert_eq!(look(&mut gauge, 3000, 6540 * MB), Next::MeasureClosely);
    }

    #[test]
    fn measuring_in_vain_is_followed_by_a_rest() {
        let start = Instant::now();
        let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 0);
        assert_eq!(gauge.look(start + Duration::from_secs(1), 4000 * MB), Next::MeasureClosely);
        let now = start + Duration::from_secs(1);
        gauge.measured(now, Duration::from_millis(30), 4000 * MB, MB);
        assert!(matches!(gauge.look(now + Duration::from_millis(100), 3000 * MB), Next::Look(_)));
        assert_eq!(gauge.look(now + Duration::from_millis(301), 3000 * MB), Next::MeasureClosely);
    }
}
