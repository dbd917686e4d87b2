//! Under which name were we addressed, and from which page? A page in a browser may send requests to this machine under a name of its own;
//! it is told apart by the `Host` and `Origin` that the browser adds.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use cofer_model::Kind;

use crate::http::ApiError;
use crate::settings::Settings;

/// Refuses a `Host` that is none of ours, and an `Origin` that is another.
pub(super) fn check(headers: &HeaderMap, uri: &Uri, settings: &Settings) -> Result<(), ApiError> {
    // Who stands in between may have gone by the other one.
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(ApiError::new(Kind::Malformed, "a request says its `Host` once"));
    }
    let given = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let host = given(header::HOST).or_else(|| uri.authority().map(axum::http::uri::Authority::as_str));
    if let Some(host) = host
        && !is_ours(name_of(host), settings)
    {
        return Err(refusal("Host", host));
    }
    match given(header::ORIGIN) {
        None => Ok(()),
        Some(origin) => {
            let name = origin.split_once("://").map(|(_, rest)| name_of(rest));
            let same =
                host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, rest)| rest == host));
            let allowed = same || name.is_some_and(|name| is_ours(name, settings));
            if allowed { Ok(()) } else { Err(refusal("Origin", origin)) }
        }
    }
}

fn refusal(header: &str, value: &str) -> ApiError {
    let value: String = value.chars().take(100).collect();
    let message =
        format!("`{header}: {value}` is not a name of this Cofer; if it is, allow it with `--allowed-hosts`");
    ApiError::new(Kind::Forbidden, message)
}

/// Without the port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// On loopback only this machine's own names; elsewhere whatever address we are reached by, as long as it is no name that anybody could
/// have given us.
fn is_ours(name: &str, settings: &Settings) -> bool {
    let listens = name_of(&settings.listen);
    if name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(listens) {
        return true;
    }
    let loopback = |address: &IpAddr| address.is_loopback();
    let address = name.parse::<IpAddr>().ok();
    let listens_on_loopback =
        listens == "localhost" || listens.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    address.as_ref().is_some_and(loopback)
        || settings.oauth.public_host().is_some_and(|public| public.eq_ignore_ascii_case(name))
        || settings.gateway.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
        || (!listens_on_loopback && (address.is_some() || settings.gateway.allowed_hosts.is_empty()))
}
