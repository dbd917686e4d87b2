//! What a login gave us: tokens for one server, and whom to ask for new ones.

use std::time::Duration;

use cofer_model::Moment;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Client, refusal};
use crate::failure::OauthError;
use crate::hidden::Hidden;
use crate::web::{Answer, Web, shown};

const TOKEN_BYTES_MAX: usize = 32 << 10;
/// Before a token ends a new one is asked for, so early at most.
const EARLY_MAX: Duration = Duration::from_mins(1);
/// But not before it has lived for most of its time.
const EARLY_SHARE: i64 = 5;

/// Kept sealed. Without tokens it is what is left of a login that ended: who we are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The address that it is for; it is shown at no other.
    pub server: String,
    pub resource: String,
    pub client: Client,
    pub token_endpoint: String,
    pub revocation_endpoint: Option<String>,
    /// What was asked for.
    pub scopes: Vec<String>,
    pub tokens: Option<Tokens>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    pub access: Hidden,
    pub refresh: Option<Hidden>,
    pub obtained_at: Moment,
    /// Unknown where nobody said.
    pub expires_at: Option<Moment>,
}

impl Tokens {
    /// Whether a new one should be asked for by now.
    pub fn is_waning(&self, now: Moment) -> bool {
        let Some(expires_at) = self.expires_at else { return false };
        let life_ms = (expires_at.unix_ms() - self.obtained_at.unix_ms()).max(0);
        let early_ms = (life_ms / EARLY_SHARE).min(i64::try_from(EARLY_MAX.as_millis()).unwrap_or(i64::MAX));
        now.unix_ms() >= expires_at.unix_ms() - early_ms
    }

    pub fn has_ended(&self, now: Moment) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl Grant {
    /// New tokens for old. Where the answer has no new refresh token, the old one stays good.
    pub async fn refresh(&self, web: &Web, refresh: &Hidden, now: Moment) -> Result<Tokens, OauthError> {
        let fields = [
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh.clear()),
            ("resource", self.resource.as_str()),
        ];
        let answer = self.client.post(web, &self.token_endpoint, &fields).await?;
        let tokens = tokens_of(&self.token_endpoint, answer, now)?;
        Ok(Tokens { refresh: tokens.refresh.or_else(|| Some(refresh.clone())), ..tokens })
    }

    /// Has the authorization server forget the tokens, if it can.
    pub async fn revoke(&self, web: &Web) -> Result<(), OauthError> {
        let (Some(endpoint), Some(tokens)) = (&self.revocation_endpoint, &self.tokens) else { return Ok(()) };
        let refresh = tokens.refresh.as_ref().map(|token| (token, "refresh_token"));
        for (token, hint) in refresh.into_iter().chain([(&tokens.access, "access_token")]) {
            let fields = [("token", token.clear()), ("token_type_hint", hint)];
            let answer = self.client.post(web, endpoint, &fields).await?;
            // Access tokens that nobody can revoke end by themselves.
            if answer.status >= 400 && hint == "refresh_token" {
                return Err(refusal(endpoint, &answer));
            }
        }
        Ok(())
    }
}

/// What an answer of a token endpoint has in it.
pub(crate) fn tokens_of(endpoint: &str, answer: Answer, now: Moment) -> Result<Tokens, OauthError> {
    if !(200..300).contains(&answer.status) || answer.body.get("error").is_some() {
        return Err(refusal(endpoint, &answer));
    }
    let nonsense = |what: &str| OauthError::Nonsense { whom: shown(endpoint), what: what.to_owned() };
    let body = answer.body;
    let token = |field: &str| body[field].as_str().filter(|text| !text.is_empty());
    let is_bearer = token("token_type").is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    if !is_bearer {
        return Err(nonsense("a token that is no bearer token"));
    }
    let access = token("access_token").ok_or_else(|| nonsense("no access token"))?;
    let (access, refresh) = (fit(access), token("refresh_token").map(fit));
    let access = access.ok_or_else(|| nonsense("an access token that cannot be sent"))?;
    let refresh =
        refresh.map(|refresh| refresh.ok_or_else(|| nonsense("a refresh token that cannot be sent")));
    let expires_at = seconds(&body["expires_in"]).map(|life| now.after(life));
    Ok(Tokens { access, refresh: refresh.transpose()?, obtained_at: now, expires_at })
}

/// What can stand in a header.
fn fit(token: &str) -> Option<Hidden> {
    let is_fit = token.len() <= TOKEN_BYTES_MAX && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_fit.then(|| Hidden::new(token))
}

/// Some write it as a text.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(status: u16, body: Value) -> Result<Tokens, String> {
        let answer = Answer { status, body };
        tokens_of("https://auth.example.com/token", answer, Moment::from_unix_ms(0))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_are_taken_as_they_come_and_garbage_is_not() {
        let tokens =
            read(200, json!({"access_token": "a", "token_type": "bearer", "expires_in": "60"})).unwrap();
        assert_eq!((tokens.access.clear(), tokens.refresh.is_none()), ("a", true));
        assert_eq!(tokens.expires_at, Some(Moment::from_unix_ms(60_000)));
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for (status, body, expected) in [
            (400, json!({"error": "invalid_grant"}), "refused: invalid_grant"),
            (200, json!({"error": "bad\u{1b}[2J"}), "refused: bad[2J"),
            (500, Value::Null, "answered HTTP 500"),
            (200, json!({}), "no access token"),
            (200, json!({"access_token": 7}), "no access token"),
            (200, json!({"access_token": "a b"}), "cannot be sent"),
            (200, json!({"access_token": "a\r\nX: y"}), "cannot be sent"),
            (200, json!({"access_token": long}), "cannot be sent"),
            (200, json!({"access_token": "a", "refresh_token": "ä"}), "refresh token that cannot be sent"),
            (200, json!({"access_token": "a", "token_type": "DPoP"}), "no bearer token"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_new_token_is_asked_for_a_little_before_the_old_one_ends() {
        let tokens = |life_seconds: i64| Tokens {
            access: Hidden::new("a"),
            refresh: None,
            obtained_at: Moment::from_unix_ms(0),
            expires_at: Some(Moment::from_unix_ms(life_seconds * 1000)),
        };
        let at = |seconds: i64| Moment::from_unix_ms(seconds * 1000);
        assert!(!tokens(3600).is_waning(at(3539)) && tokens(3600).is_waning(at(3540)));
        assert!(
            !tokens(10).is_waning(at(7)) && tokens(10).is_waning(at(8)),
            "short ones live most of their time"
        );
        assert!(tokens(10).has_ended(at(10)) && !tokens(10).has_ended(at(9)));
        let endless = Tokens { expires_at: None, ..tokens(1) };
        assert!(!endless.is_waning(at(1_000_000)));
    }
}
