//! An issuer whom we trust: whether a token is one of theirs, for us, and good now.
//!
//! Its keys are fetched when the first token comes, and again when they are old or when a token names a key that is not among them, but
//! not more often than every few seconds: whoever makes up names of keys does not make us ask for each.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use crate::discovery::look_up;
use crate::failure::OauthError;
use crate::signatures::{self, ALGORITHMS};
use crate::web::{Web, shown};

/// Clocks differ.
const LEEWAY_SECONDS: u64 = 30;
const KEYS_AGE_MAX: Duration = Duration::from_mins(10);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
const KEYS_MAX: usize = 100;
const SUBJECT_CHARACTERS_MAX: usize = 200;

#[derive(Debug)]
pub struct Issuer {
    web: Web,
    name: String,
    keys: RwLock<Keys>,
    /// Held by the one who asks for keys; when that was last.
    asking: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Keys {
    keys: Vec<Key>,
    /// When they came.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    public: DecodingKey,
}

/// Who a token is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub name: String,
    pub scopes: Vec<String>,
    /// In seconds since 1970 began.
    pub expires_at: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    #[error("this token cannot be read")]
    Unreadable,
    #[error("this token is signed in a way that is not taken here")]
    Algorithm,
    #[error("this token is signed with a key that its issuer does not have")]
    UnknownKey,
    #[error("the signature of this token is wrong")]
    Signature,
    #[error("this token is of another issuer")]
    Issuer,
    #[error("this token is for somebody else")]
    Audience,
    #[error("this token has expired")]
    Expired,
    #[error("this token is not good yet")]
    TooEarly,
    #[error("this token does not say whom it is about, or when it ends")]
    Incomplete,
    #[error("the keys of the issuer cannot be had")]
    NoKeys(#[source] OauthError),
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    #[serde(default)]
    scope: Option<Value>,
    #[serde(default)]
    scp: Option<Value>,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Issuer {
    /// It is named by its operator, so it may be anywhere.
    pub fn new(name: &str, web: &Web) -> Self {
        let web = Url::parse(name).map_or_else(|_| web.clone(), |url| web.on_behalf_of(&url));
        Self { web, name: name.to_owned(), keys: RwLock::default(), asking: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this has the form of a token that an issuer signs.
    pub fn may_have_made(token: &str) -> bool {
        token.starts_with("ey") && token.matches('.').count() == 2
    }

    /// Whom the token is about, if it is good for this audience.
    pub async fn verify(&self, token: &str, audience: &str) -> Result<Subject, Rejected> {
        signatures::choose();
        let header = decode_header(token).map_err(|error| rejected(&error))?;
        // What is marked as critical must be understood, and nothing of the kind is.
        if !ALGORITHMS.contains(&header.alg) || header.crit.is_some() {
            return Err(Rejected::Algorithm);
        }
        let keys = self.keys_for(&header).await?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.set_issuer(&[&self.name]);
        validation.set_audience(&[audience]);
        let mut last = Rejected::UnknownKey;
        for key in keys {
            match decode::<Claims>(token, &key, &validation) {
                Ok(token) => return Ok(Subject::of(&token.claims)),
                Err(error) => last = rejected(&error),
            }
        }
        Err(last)
    }

    /// The keys that this token may be signed with: one, unless the issuer does not name them.
    async fn keys_for(&self, header: &Header) -> Result<Vec<DecodingKey>, Rejected> {
        if let Some(found) = self.known(header) {
            return Ok(found);
        }
        let mut asked = self.asking.lock().await;
        // Somebody else may have asked meanwhile.
        if let Some(found) = self.known(header) {
            return Ok(found);
        }
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN_AFTER) {
            *asked = Some(Instant::now());
            match self.fetch().await {
                Ok(keys) => *self.write() = Keys { keys, since: Some(Instant::now()) },
                // Those that we have are as good as they were.
                Err(error) if self.read().since.is_some() => {
                    tracing::warn!("the keys of {} cannot be looked up again: {error}", self.name);
                }
                Err(error) => return Err(Rejected::NoKeys(error)),
            }
        }
        let keys = self.read();
        if keys.since.is_none() {
            return Err(Rejected::NoKeys(OauthError::Late { whom: self.name.clone() }));
        }
        let found = keys.matching(header);
        if found.is_empty() { Err(Rejected::UnknownKey) } else { Ok(found) }
    }

    /// Where nothing has to be asked.
    fn known(&self, header: &Header) -> Option<Vec<DecodingKey>> {
        let keys = self.read();
        Some(keys.matching(header)).filter(|found| keys.are_fresh() && !found.is_empty())
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self) -> Result<Vec<Key>, OauthError> {
        let metadata = look_up(&self.web, &self.name).await?;
        let undescribed = || OauthError::Undescribed { issuer: shown(&self.name) };
        let place = metadata.ok_or_else(undescribed)?.jwks_uri.ok_or_else(undescribed)?;
        let set: Option<KeySet> = self.web.get(&place).await?;
        let set = set.ok_or_else(undescribed)?;
        Ok(set.keys.into_iter().take(KEYS_MAX).filter_map(Key::read).collect())
    }
}

impl Keys {
    fn are_fresh(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < KEYS_AGE_MAX)
    }

    fn matching(&self, header: &Header) -> Vec<DecodingKey> {
        let fits = |key: &&Key| {
            let named = header.kid.is_none() || header.kid == key.id;
            let algorithm = word_of(header.alg);
            named
                && key.public.family() == header.alg.family()
                && key.algorithm.as_ref().is_none_or(|only| *only == algorithm)
        };
        self.keys.iter().filter(fits).map(|key| key.public.clone()).collect()
    }
}

impl Key {
    /// None for what is no key for signatures, or of a kind that is not taken.
    fn read(key: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
        let algorithm = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let public = DecodingKey::from_jwk(&jwk).ok().filter(|_| for_signatures)?;
        Some(Self { id: jwk.common.key_id, algorithm, public })
    }
}

fn word_of(algorithm: Algorithm) -> String {
    format!("{algorithm:?}")
}

impl Subject {
    fn of(claims: &Claims) -> Self {
        let scopes = claims.scope.iter().chain(&claims.scp).flat_map(words).collect();
        let name = claims.sub.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARACTERS_MAX).collect();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds since 1970, in the future"
        )]
        let expires_at = claims.exp as u64;
        Self { name, scopes, expires_at }
    }
}

/// One text with blanks between them, or a list.
fn words(value: &Value) -> Vec<String> {
    let split = |text: &str| text.split_ascii_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>();
    match value {
        Value::String(text) => split(text),
        Value::Array(items) => items.iter().filter_map(Value::as_str).flat_map(split).collect(),
        _ => Vec::new(),
    }
}

fn rejected(error: &jsonwebtoken::errors::Error) -> Rejected {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::InvalidSignature => Rejected::Signature,
        ErrorKind::InvalidIssuer => Rejected::Issuer,
        ErrorKind::InvalidAudience => Rejected::Audience,
        ErrorKind::ExpiredSignature => Rejected::Expired,
        ErrorKind::ImmatureSignature => Rejected::TooEarly,
        ErrorKind::MissingRequiredClaim(_) => Rejected::Incomplete,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => Rejected::Algorithm,
        _ => Rejected::Unreadable,
    }
}
