//! What a client holds for us between two of its requests (`requestState`): sealed, so that nobody can make or change one; for one
//! principal, one project and one request, and for a while only.
//!
//! ```text
//!   base64url( expires ‖ bearer ‖ kind ‖ text ) . base64url( HMAC-SHA-256 of that )
//! ```
//!
//! `bearer` is a digest of who may bring it back, and with what.

use std::time::{Duration, SystemTime};

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

const EXPIRY_BYTES: usize = 8;
const WHOSE_BYTES: usize = 16;

/// What is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keepsake {
    /// A call of ours that waits for an answer.
    Parked(String),
    /// What a server wants back.
    Servers(String),
}

/// Who may bring it back, and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bearer<'a> {
    pub owner: Option<uuid::Uuid>,
    pub project: uuid::Uuid,
    pub method: &'a str,
    /// Of what is called, got or read.
    pub name: &'a str,
}

impl Bearer<'_> {
    fn digest(self) -> [u8; WHOSE_BYTES] {
        let mut digest = Sha256::new();
        digest.update(self.owner.unwrap_or_default().as_bytes());
        digest.update(self.project.as_bytes());
        digest.update(self.method.as_bytes());
        digest.update([0]);
        digest.update(self.name.as_bytes());
        let mut short = [0; WHOSE_BYTES];
        short.copy_from_slice(&digest.finalize()[..WHOSE_BYTES]);
        short
    }
}

/// What states are sealed with.
#[derive(Clone, Copy)]
pub struct StateKey(pub [u8; 32]);

impl StateKey {
    /// Good for this process alone.
    pub fn random() -> Self {
        let (one, other) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let mut key = Sha256::new();
        key.update(one.as_bytes());
        key.update(other.as_bytes());
        Self(key.finalize().into())
    }
}

impl std::fmt::Debug for StateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateKey")
    }
}

/// Seals and opens.
pub(crate) struct Sealer(Hmac<Sha256>);

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    pub(crate) fn new(StateKey(key): &StateKey) -> Self {
        // As long as a block of the digest; the rest is nothing, as the definition has it.
        let mut block = [0; 64];
        block[..key.len()].copy_from_slice(key);
        Self(Hmac::new(&block.into()))
    }

    pub(crate) fn seal(&self, held: &Keepsake, bearer: Bearer<'_>, lasts: Duration) -> String {
        let (kind, text) = match held {
            Keepsake::Parked(text) => (b'p', text),
            Keepsake::Servers(text) => (b's', text),
        };
        let mut body =
            (unix_ms() + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX / 2)).to_be_bytes().to_vec();
        body.extend_from_slice(&bearer.digest());
        body.push(kind);
        body.extend_from_slice(text.as_bytes());
        let mark = self.0.clone().chain_update(&body).finalize().into_bytes();
        format!("{}.{}", BASE64URL_NOPAD.encode(&body), BASE64URL_NOPAD.encode(&mark))
    }

    /// `None` for what was changed, is too old, or is brought back by somebody else or with something else.
    pub(crate) fn open(&self, state: &str, bearer: Bearer<'_>) -> Option<Keepsake> {
        let (body, mark) = state.split_once('.')?;
        let body = BASE64URL_NOPAD.decode(body.as_bytes()).ok()?;
        let mark = BASE64URL_NOPAD.decode(mark.as_bytes()).ok()?;
        self.0.clone().chain_update(&body).verify_slice(&mark).ok()?;
        let (expires, rest) = body.split_at_checked(EXPIRY_BYTES)?;
        let (digest, rest) = rest.split_at_checked(WHOSE_BYTES)?;
        let expires = u64::from_be_bytes(expires.try_into().ok()?);
        if digest != bearer.digest() || expires <= unix_ms() {
            return None;
        }
        let (kind, text) = rest.split_first()?;
        let text = String::from_utf8(text.to_vec()).ok()?;
        match kind {
            b'p' => Some(Keepsake::Parked(text)),
            b's' => Some(Keepsake::Servers(text)),
            _ => None,
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_opened_by_whom_it_was_given_to_and_by_nobody_else() {
        let sealer = Sealer::new(&StateKey([7; 32]));
        let (ann, bob, web) =
            (Some(uuid::Uuid::from_u128(1)), Some(uuid::Uuid::from_u128(2)), uuid::Uuid::from_u128(3));
        let bearer = Bearer { owner: ann, project: web, method: "tools/call", name: "echo" };
        let held = Keepsake::Servers("größe".to_owned());
        let state = sealer.seal(&held, bearer, Duration::from_mins(1));
        assert_eq!(sealer.open(&state, bearer), Some(held.clone()));
        for other in [
            Bearer { owner: bob, ..bearer },
            Bearer { owner: None, ..bearer },
            Bearer { project: uuid::Uuid::nil(), ..bearer },
            Bearer { method: "prompts/get", ..bearer },
            Bearer { name: "ech", ..bearer },
        ] {
            assert_eq!(sealer.open(&state, other), None, "{other:?}");
        }
        assert_eq!(Sealer::new(&StateKey([8; 32])).open(&state, bearer), None);
        assert_eq!(sealer.open(&sealer.seal(&held, bearer, Duration::ZERO), bearer), None);
    }

    #[test]
    fn what_was_changed_in_any_place_or_is_no_state_at_all_is_not_opened() {
        let sealer = Sealer::new(&StateKey([7; 32]));
        let bearer = Bearer { owner: None, project: uuid::Uuid::nil(), method: "m", name: "n" };
        let state = sealer.seal(&Keepsake::Parked("x".to_owned()), bearer, Duration::from_mins(1));
        for place in 0..state.len() {
            let mut changed = state.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            assert_eq!(sealer.open(&String::from_utf8(changed).unwrap(), bearer), None, "at {place}");
        }
        for nonsense in ["", ".", "a.b", "....", "ü", &state[1..], &format!("{state}A")] {
            assert_eq!(sealer.open(nonsense, bearer), None, "{nonsense}");
        }
    }
}
