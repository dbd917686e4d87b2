//! When to look closely at a sandbox's disk: plain arithmetic on time and free space.
//!
//! Measuring a sandbox means walking its files; asking the kernel for the free space means nothing at all. So the free space is
//! looked at often, and whatever it lost since the last measurement is held against the sandbox until a measurement says
//! otherwise. The closer that comes to the limit, the sooner is the next look. When the disk has more free space than before,
//! somebody removed something, and may have hidden what somebody else wrote; then only a measurement tells.
//!
//! ```text
//!   used (measured) + what the disk lost since = at most this much  ──►  close to the limit?  ──►  measure
//! ```

use std::time::{Duration, Instant};

/// Faster than anybody writes, even to memory that the disk gets later, of which we saw 2.5 GB in a second.
const BYTES_PER_SECOND_MAX: u64 = 8 << 30;
const LOOK_AFTER_MAX: Duration = Duration::from_millis(250);
const LOOK_AFTER_MIN: Duration = Duration::from_millis(20);
/// While the disk is being written to.
const LOOK_AFTER_MIN_GROWING: Duration = Duration::from_millis(2);
/// A machine that slept was not busy.
const LATENESS_MAX: Duration = Duration::from_millis(100);
/// However calm it is, a measurement is so old at most, if anything changed.
const MEASURE_AFTER_MAX: Duration = Duration::from_secs(5);
/// The more the disk lost, the more may have been hidden beside it.
const MEASURE_AFTER_PART_OF_LIMIT: u64 = 8;
/// Where it is others who write or remove, measuring takes a tenth of the time, or more only if the limit could be passed meanwhile.
const REST_AFTER_MEASUREMENT: u32 = 10;
/// Less than this comes and goes at every moment.
const GAIN_BYTES_MIN: u64 = 256 << 10;
/// Of the limit: by how much it may be passed for a moment.
const SLACK_PERCENT: u64 = 2;

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
    /// Whether it had grown when it was last measured, and how long that took.
    has_grown: bool,
    took: Duration,
    /// Whether something may have been hidden since.
    is_blind: bool,
    /// When the next look was due, and how late looks have been: on a busy machine nobody comes in time.
    due: Instant,
    lateness: Duration,
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
            has_grown: false,
            took: Duration::ZERO,
            is_blind: false,
            due: now,
            lateness: Duration::ZERO,
        }
    }

    /// What it may use after so long, as things go.
    pub fn expected_after(&self, wait: Duration) -> u64 {
        self.used.saturating_add(bytes_in(wait, self.bytes_per_second))
    }

    pub fn look(&mut self, now: Instant, free: u64) -> Next {
        self.note(now, free);
        let at_most = self.used.saturating_add(self.lost);
        let blind_for = self.reaction + LOOK_AFTER_MIN_GROWING + self.lateness;
        let soon = at_most.saturating_add(bytes_in(blind_for, self.bytes_per_second));
        let may_grow = self.lost > 0 || self.has_grown;
        if self.used > self.limit || (may_grow && soon >= self.limit && now >= self.not_before) {
            return Next::MeasureClosely;
        }
        let age = now.saturating_duration_since(self.measured_at);
        let has_lost_much = self.lost >= self.limit / MEASURE_AFTER_PART_OF_LIMIT;
        let is_due = age >= self.took * REST_AFTER_MEASUREMENT && (self.is_blind || has_lost_much);
        if is_due || (self.lost > 0 && age >= MEASURE_AFTER_MAX) {
            return Next::Measure;
        }
        let left = self.limit.saturating_sub(soon);
        // Nobody is faster than the fastest; whoever is near the limit and wrote a moment ago goes on as before.
        let shortest =
            (time_for(left, self.bytes_per_second) / 2).clamp(LOOK_AFTER_MIN_GROWING, LOOK_AFTER_MIN);
        let wait = time_for(left, BYTES_PER_SECOND_MAX).clamp(shortest, LOOK_AFTER_MAX);
        self.due = now + wait;
        Next::Look(wait)
    }

    /// Notes what the disk lost since the last look, and how fast, and how late this look is.
    fn note(&mut self, now: Instant, free: u64) {
        let lost = self.looked_free.saturating_sub(free);
        let rate = rate_of(lost, now.saturating_duration_since(self.looked_at));
        // A writer that pauses for a moment is still a writer, and a machine that was busy still is.
        self.bytes_per_second = rate.max(self.bytes_per_second / 4 * 3);
        self.lateness = now.saturating_duration_since(self.due).min(LATENESS_MAX).max(self.lateness / 2);
        self.lost = self.lost.saturating_add(lost);
        self.is_blind |= free > self.looked_free.saturating_add(GAIN_BYTES_MIN);
        (self.looked_at, self.looked_free) = (now, free);
    }

    /// What a measurement, which took so long, has found.
    pub fn measured(&mut self, now: Instant, took: Duration, free: u64, used: u64) {
        let grown = used.saturating_sub(self.used);
        let was_in_vain = grown.saturating_mul(2) < self.lost;
        let mut rest = LOOK_AFTER_MIN_GROWING;
        if was_in_vain {
            let left = (self.limit + self.limit / 100 * SLACK_PERCENT).saturating_sub(used);
            let long = (took * REST_AFTER_MEASUREMENT).max(LOOK_AFTER_MIN);
            rest = long.min(time_for(left, self.bytes_per_second)).max(rest);
            self.bytes_per_second = 0;
        }
        let own_rate = rate_of(grown, now.saturating_duration_since(self.measured_at));
        self.bytes_per_second = self.bytes_per_second.max(own_rate);
        (self.used, self.lost, self.looked_free) = (used, 0, free);
        (self.measured_at, self.looked_at, self.due) = (now, now, now);
        (self.has_grown, self.took, self.is_blind) = (grown > 0, took, false);
        self.not_before = now + rest;
    }
}

/// How long it takes to write so much.
fn time_for(bytes: u64, bytes_per_second: u64) -> Duration {
    let micros = u128::from(bytes) * 1_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(MEASURE_AFTER_MAX)
}

/// In bytes per second.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    let micros = time.as_micros().max(100);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
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
            assert!((230 * MB..=258 * MB).contains(&written), "at {} MB/s: {} MB", speed / MB, written / MB);
        }
    }

    #[test]
    fn a_calm_disk_is_looked_at_seldom_and_never_measured() {
        let start = Instant::now();
        let mut gauge = Gauge::new(4096 * MB, REACTION, start, 5000 * MB, 10 * MB);
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
        assert!(matches!(look(&mut gauge, 100, 4990 * MB), Next::Look(_)));
        assert_eq!(look(&mut gauge, 200, 5800 * MB), Next::Measure);
        gauge.measured(start + Duration::from_millis(200), REACTION, 5800 * MB, 257 * MB);
        assert_eq!(look(&mut gauge, 201, 5800 * MB), Next::MeasureClosely);
    }

    #[test]
    fn measuring_in_vain_is_followed_by_a_rest() {
        let start = Instant::now();
        let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 0);
        assert_eq!(gauge.look(start + Duration::from_secs(1), 4000 * MB), Next::MeasureClosely);
        let now = start + Duration::from_secs(1);
        gauge.measured(now, Duration::from_millis(30), 4000 * MB, MB);
        // At a thousand megabytes a second, and no longer than that writer would need for what is left.
        assert!(matches!(gauge.look(now + Duration::from_millis(200), 3800 * MB), Next::Look(_)));
        assert_eq!(gauge.look(now + Duration::from_millis(261), 3700 * MB), Next::MeasureClosely);
    }

    #[test]
    fn much_that_was_lost_is_looked_into_before_it_is_too_much() {
        let start = Instant::now();
        let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 0);
        let now = start + Duration::from_secs(1);
        assert_eq!(gauge.look(now, 4960 * MB), Next::Measure);
    }

    #[test]
    fn after_a_close_measurement_a_writer_is_looked_at_again_at_once() {
        let start = Instant::now();
        let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 0);
        let now = start + Duration::from_millis(300);
        assert_eq!(gauge.look(now, 4750 * MB), Next::MeasureClosely);
        gauge.measured(now, REACTION, 4750 * MB, 250 * MB);
        let Next::Look(wait) = gauge.look(now, 4750 * MB) else { panic!("it has not grown since") };
        assert!(wait <= Duration::from_millis(4), "{wait:?}");
    }

    #[test]
    fn late_looks_make_for_an_early_alarm() {
        let start = Instant::now();
        // A quarter of a megabyte for each millisecond, whenever it is looked at.
        let last_of = |looks: &[u64]| {
            let mut gauge = Gauge::new(256 * MB, REACTION, start, 5000 * MB, 220 * MB);
            let look = |millis: &u64| {
                gauge.look(start + Duration::from_millis(*millis), 5000 * MB - millis * MB / 4)
            };
            looks.iter().map(look).last()
        };
        assert!(matches!(last_of(&[0, 20, 40, 60, 80, 100]), Some(Next::Look(_))));
        assert_eq!(last_of(&[0, 100]), Some(Next::MeasureClosely));
    }
}
