//! Tokens that the store confirmed a moment ago, so that it need not be asked for every request.
//!
//! What is forgotten stays forgotten: an answer that was asked for before [`Verified::forget`] is not remembered after
//! it. That a token was good once is remembered beyond that (`knew`): it says nothing of now, only that it is no guess. The short life of an entry bounds how long another Cofer on the same database takes to notice a revocation.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use cofer_model::{Moment, Token};
use cofer_store::TokenHash;

const LIFE: Duration = Duration::from_secs(5);
const TOKENS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Verified(RwLock<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    generation: u64,
    tokens: HashMap<TokenHash, Entry>,
    known: HashSet<TokenHash>,
}

#[derive(Debug)]
struct Entry {
    token: Arc<Token>,
    until: Instant,
    /// The second in which its use was last noted: once in each will do.
    noted_unix: AtomicI64,
}

/// Proof of when a question was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

impl Verified {
    /// And whether this use of it is noted already.
    pub(super) fn get(&self, hash: &TokenHash, now: Instant, moment: Moment) -> Option<(Arc<Token>, bool)> {
        let remembered = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Entry { token, until, noted_unix } = remembered.tokens.get(hash)?;
        let second = moment.unix_ms() / 1000;
        let is_noted = noted_unix.load(Ordering::Relaxed) == second;
        if !is_noted {
            noted_unix.store(second, Ordering::Relaxed);
        }
        (now < *until).then(|| (token.clone(), is_noted))
    }

    /// To be called before the store is asked.
    pub(super) fn ask(&self) -> Asked {
        Asked(self.0.read().unwrap_or_else(PoisonError::into_inner).generation)
    }

    /// Whether this token was good at any time.
    pub(super) fn knew(&self, hash: &TokenHash) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).known.contains(hash)
    }

    pub(super) fn know(&self, hash: TokenHash) {
        let mut remembered = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if remembered.known.len() < TOKENS_MAX {
            remembered.known.insert(hash);
        }
    }

    pub(super) fn remember(&self, asked: Asked, hash: TokenHash, token: Arc<Token>, now: Instant) {
        self.know(hash);
        let mut remembered = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if remembered.generation != asked.0 {
            return;
        }
        if remembered.tokens.len() >= TOKENS_MAX {
            remembered.tokens.retain(|_, entry| entry.until > now);
        }
        if remembered.tokens.len() < TOKENS_MAX {
            remembered.tokens.insert(hash, Entry { token, until: now + LIFE, noted_unix: 0.into() });
        }
    }

    pub(super) fn forget(&self) {
        let mut remembered = self.0.write().unwrap_or_else(PoisonError::into_inner);
        remembered.generation += 1;
        remembered.tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofer_model::{Scopes, TokenId};

    fn token() -> (TokenHash, Arc<Token>) {
        let token = Token {
            id: TokenId::generate(),
            name: "t".to_owned().try_into().unwrap(),
            scopes: Scopes::new(),
            project_id: None,
            project: None,
            created_at: Moment::now(),
            expires_at: None,
            last_used_at: None,
        };
        (TokenHash::of(&token.id.to_string()), Arc::new(token))
    }

    #[test]
    fn a_token_is_remembered_for_a_while_only() {
        let (verified, (hash, token), now) = (Verified::default(), token(), Instant::now());
        verified.remember(verified.ask(), hash, token, now);
        assert!(verified.get(&hash, now, Moment::now()).is_some());
        assert!(verified.get(&hash, now + LIFE, Moment::now()).is_none());
    }

    #[test]
    fn that_a_token_was_good_is_known_after_all_else_is_forgotten() {
        let (verified, (hash, token), now) = (Verified::default(), token(), Instant::now());
        verified.remember(verified.ask(), hash, token, now);
        verified.forget();
        assert!(verified.knew(&hash) && verified.get(&hash, now, Moment::now()).is_none());
    }

    #[test]
    fn an_answer_asked_for_before_a_revocation_is_not_remembered_after_it() {
        let (verified, (hash, token), now) = (Verified::default(), token(), Instant::now());
        let asked = verified.ask();
        verified.forget();
        verified.remember(asked, hash, token, now);
        assert!(verified.get(&hash, now, Moment::now()).is_none());
    }

    #[test]
    fn memory_is_bounded_however_many_tokens_come() {
        let (verified, now) = (Verified::default(), Instant::now());
        for _ in 0..TOKENS_MAX + 10 {
            let (hash, token) = token();
            verified.remember(verified.ask(), hash, token, now);
        }
        assert_eq!(verified.0.read().unwrap().tokens.len(), TOKENS_MAX);
    }
}
