//! Slows down whoever guesses tokens.
//!
//! Each address may be wrong [`FAILURES_MAX`] times at once and gets one more try back every [`RECOVERY`], however wrong it
//! was before. Plain code: the time is handed in.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

const FAILURES_MAX: u32 = 20;
const RECOVERY: Duration = Duration::from_secs(1);
/// So many addresses are remembered. When more than that are guessing at once, counting starts afresh: with 256 bits in a
/// token, bounded memory matters more.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When each address will have all its tries back.
    recovered_at: HashMap<IpAddr, Instant>,
}

impl Throttle {
    /// How long this address must wait before its next try, if it must.
    pub(super) fn refuses(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let debt = self.recovered_at.get(&network(address))?.saturating_duration_since(now);
        let wait = debt.checked_sub(RECOVERY * (FAILURES_MAX - 1))?;
        (!wait.is_zero()).then_some(wait)
    }

    pub(super) fn failed(&mut self, address: IpAddr, now: Instant) {
        if self.recovered_at.len() >= ADDRESSES_MAX {
            self.recovered_at.retain(|_, at| *at > now);
        }
        if self.recovered_at.len() >= ADDRESSES_MAX {
            self.recovered_at.clear();
        }
        let at = self.recovered_at.entry(network(address)).or_insert(now);
        *at = ((*at).max(now) + RECOVERY).min(now + RECOVERY * FAILURES_MAX);
    }
}

/// Whoever has one IPv6 address has a whole /64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// How many of these guesses were looked at.
    fn guess(throttle: &mut Throttle, address: IpAddr, times: u32, now: Instant) -> u32 {
        let mut looked_at = 0;
        for _ in 0..times {
            if throttle.refuses(address, now).is_none() {
                throttle.failed(address, now);
                looked_at += 1;
            }
        }
        looked_at
    }

    #[test]
    fn a_guesser_gets_its_tries_and_then_one_each_second() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(guess(&mut throttle, ADA, 1000, now), FAILURES_MAX);
        assert_eq!(guess(&mut throttle, ADA, 1000, now + RECOVERY), 1);
        assert_eq!(guess(&mut throttle, ADA, 1000, now + RECOVERY * 4), 3);
        assert_eq!(guess(&mut throttle, ADA, 1000, now + RECOVERY * 1000), FAILURES_MAX);
    }

    #[test]
    fn however_many_guesses_came_the_next_try_is_a_second_away() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        (0..10_000).for_each(|_| throttle.failed(ADA, now));
        assert_eq!(throttle.refuses(ADA, now), Some(RECOVERY));
    }

    #[test]
    fn others_are_not_affected() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        guess(&mut throttle, ADA, 1000, now);
        assert_eq!(throttle.refuses("192.0.2.7".parse().unwrap(), now), None);
    }

    #[test]
    fn all_addresses_of_one_ipv6_network_share_their_tries() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        guess(&mut throttle, "2001:db8::1".parse().unwrap(), 1000, now);
        assert!(throttle.refuses("2001:db8::2".parse().unwrap(), now).is_some());
        assert!(throttle.refuses("2001:db8:0:1::1".parse().unwrap(), now).is_none());
    }

    #[test]
    fn memory_is_bounded_whoever_comes() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for n in 0..30_000_u32 {
            throttle.failed(IpAddr::V4(n.into()), now);
        }
        assert!(throttle.recovered_at.len() <= ADDRESSES_MAX);
    }
}
