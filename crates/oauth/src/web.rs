//! How an authorization server is asked: little is read, soon, and only from where a stranger may send us.
//!
//! A server names the addresses of its metadata and of whoever gives it tokens, so a hostile one could name any. Therefore: https, or
//! http on this machine; never nearer than the server itself, so that one out on the internet cannot have us ask this machine or the
//! network around it; redirects within one origin only, and none where something is sent.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Client, RequestBuilder, Response, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use url::{Host, Url, form_urlencoded};

use crate::failure::OauthError;
use crate::hidden::Hidden;

const ANSWER_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const BODY_BYTES_MAX: usize = 256 << 10;
const REDIRECTS_MAX: usize = 3;
/// Of what somebody else says, as much is told.
const TOLD_CHARACTERS_MAX: usize = 200;

/// How near an address is, as far as it can be told without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Anywhere,
    /// A network of our own.
    Network,
    ThisMachine,
}

/// The way to authorization servers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Web {
    http: Client,
    /// For this machine: a proxy for the wide world has no business between two of its processes.
    direct: Client,
    nearest: Nearness,
}

/// An answer of an endpoint that something was sent to.
pub(crate) struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Default for Web {
    fn default() -> Self {
        Self::new()
    }
}

impl Web {
    /// The process must have chosen its cryptography before (`rustls`).
    pub fn new() -> Self {
        let builder = || {
            Client::builder()
                .user_agent(concat!("cofer/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_MAX)
                .redirect(redirect::Policy::none())
        };
        // They fail only where TLS cannot be set up at all, and then the other way would as well.
        let (http, direct) = (builder().build(), builder().no_proxy().build());
        Self {
            http: http.unwrap_or_default(),
            direct: direct.unwrap_or_default(),
            nearest: Nearness::Anywhere,
        }
    }

    /// The same, for what this server names.
    #[must_use]
    pub fn on_behalf_of(&self, server: &Url) -> Self {
        Self { nearest: nearness(server), ..self.clone() }
    }

    /// The address, if we may be sent there.
    pub(crate) fn fit(&self, address: &str) -> Result<Url, OauthError> {
        let unfit = |why| OauthError::Unfit { address: shown(address), why };
        let url = Url::parse(address).map_err(|_| unfit("it is no address"))?;
        let near = nearness(&url);
        match url.scheme() {
            "https" => {}
            "http" if near == Nearness::ThisMachine => {}
            _ => return Err(unfit("it is neither https nor on this machine")),
        }
        if near > self.nearest {
            return Err(unfit("a server elsewhere does not send us to this machine or into its network"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(unfit("it has a user in it"));
        }
        Ok(url)
    }

    /// What is at an address; none where it says that there is nothing.
    pub(crate) async fn get<T: DeserializeOwned>(&self, address: &str) -> Result<Option<T>, OauthError> {
        let deadline = Instant::now() + ANSWER_MAX;
        let mut url = self.fit(address)?;
        for _ in 0..=REDIRECTS_MAX {
            let request = self.client(&url).get(url.clone()).header(ACCEPT, "application/json");
            let response = send(request, &url, deadline).await?;
            let status = response.status();
            if status.is_redirection() {
                url = next_stop(&url, &response)?;
                continue;
            }
            if !status.is_success() && !status.is_client_error() {
                return Err(OauthError::Status { whom: whom(&url), status: status.as_u16() });
            }
            // Some show their front page for whatever they do not have.
            if status.is_client_error() || is_page(&response) {
                return Ok(None);
            }
            let body = body_of(response, &url, deadline).await?;
            let read = serde_json::from_slice(&body);
            return read.map(Some).map_err(|error| nonsense(&url, &error.to_string()));
        }
        Err(OauthError::Astray { whom: whom(&url) })
    }

    /// Sends a form, with a password beside it if there is one.
    pub(crate) async fn post_form(
        &self,
        address: &str,
        fields: &[(&str, &str)],
        basic: Option<(&str, &Hidden)>,
    ) -> Result<Answer, OauthError> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let url = self.fit(address)?;
        let mut request = self.client(&url).post(url.clone()).body(body);
        request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some((id, password)) = basic {
            request = request.header(AUTHORIZATION, basic_header(id, password));
        }
        posted(request, &url).await
    }

    pub(crate) async fn post_json(&self, address: &str, body: &Value) -> Result<Answer, OauthError> {
        let url = self.fit(address)?;
        posted(self.client(&url).post(url.clone()).json(body), &url).await
    }

    fn client(&self, url: &Url) -> &Client {
        if nearness(url) == Nearness::ThisMachine { &self.direct } else { &self.http }
    }
}

async fn posted(request: RequestBuilder, url: &Url) -> Result<Answer, OauthError> {
    let deadline = Instant::now() + ANSWER_MAX;
    let response = send(request.header(ACCEPT, "application/json"), url, deadline).await?;
    let status = response.status().as_u16();
    let body = body_of(response, url, deadline).await?;
    // What is no JSON says nothing but its status.
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}

async fn send(request: RequestBuilder, url: &Url, deadline: Instant) -> Result<Response, OauthError> {
    match timeout_at(deadline, request.send()).await {
        Ok(sent) => {
            sent.map_err(|error| OauthError::Unreachable { whom: whom(url), source: error.without_url() })
        }
        Err(_elapsed) => Err(OauthError::Late { whom: whom(url) }),
    }
}

async fn body_of(mut response: Response, url: &Url, deadline: Instant) -> Result<Vec<u8>, OauthError> {
    let mut body = Vec::new();
    loop {
        let piece = timeout_at(deadline, response.chunk()).await;
        let piece = piece.map_err(|_elapsed| OauthError::Late { whom: whom(url) })?;
        let piece = piece
            .map_err(|error| OauthError::Unreachable { whom: whom(url), source: error.without_url() })?;
        let Some(piece) = piece else { return Ok(body) };
        if body.len() + piece.len() > BODY_BYTES_MAX {
            return Err(OauthError::TooLong { whom: whom(url), bytes_max: BODY_BYTES_MAX });
        }
        body.extend_from_slice(&piece);
    }
}

fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/html"))
}

/// Where a redirect leads, if that is the same origin.
fn next_stop(url: &Url, response: &Response) -> Result<Url, OauthError> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let next = url.join(location).map_err(|_| nonsense(url, "a redirect to no address"))?;
    if next.origin() != url.origin() {
        return Err(nonsense(url, "a redirect to somebody else"));
    }
    Ok(next)
}

/// Id and password are encoded before they are joined (RFC 6749, 2.3.1).
fn basic_header(id: &str, password: &Hidden) -> HeaderValue {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(id), encoded(password.clear()));
    let value = format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes()));
    let mut value = HeaderValue::from_str(&value).unwrap_or_else(|_| HeaderValue::from_static("Basic"));
    value.set_sensitive(true);
    value
}

pub(crate) fn nonsense(url: &Url, what: &str) -> OauthError {
    OauthError::Nonsense { whom: whom(url), what: shown(what) }
}

/// As it stands in a message: whoever it is, without what was asked.
pub(crate) fn whom(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// What somebody else said, so that it fits in a sentence.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(TOLD_CHARACTERS_MAX).collect()
}

fn nearness(url: &Url) -> Nearness {
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            let here = name == "localhost" || name.ends_with(".localhost");
            if here { Nearness::ThisMachine } else { Nearness::Anywhere }
        }
        Some(Host::Ipv4(address)) => nearness_of(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => nearness_of(IpAddr::V6(address).to_canonical()),
        None => Nearness::ThisMachine,
    }
}

fn nearness_of(address: IpAddr) -> Nearness {
    let in_network = match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    };
    if address.is_loopback() || address.is_unspecified() {
        Nearness::ThisMachine
    } else if in_network {
        Nearness::Network
    } else {
        Nearness::Anywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fit(server: &str, address: &str) -> bool {
        let near = nearness(&server.parse().unwrap());
        let web = Web { http: Client::default(), direct: Client::default(), nearest: near };
        web.fit(address).is_ok()
    }

    #[test]
    fn nobody_is_sent_nearer_than_the_server_is_or_where_tokens_could_be_read() {
        // TLS wants to be told whose cryptography to use; an error says that it was told already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (far, network, here) =
            ("https://mcp.example.com/mcp", "http://10.0.0.7/mcp", "http://127.0.0.1:1/mcp");
        for (server, address, expected) in [
            (far, "https://auth.example.com/x", true),
            (far, "http://auth.example.com/x", false),
            (far, "http://127.0.0.1:6379/", false),
            (far, "https://localhost/", false),
            (far, "https://a.localhost./", false),
            (far, "https://10.0.0.1/", false),
            (far, "https://169.254.169.254/latest", false),
            (far, "https://[::1]/", false),
            (far, "https://[::ffff:127.0.0.1]/", false),
            (far, "https://[fd00::1]/", false),
            (far, "https://0.0.0.0/", false),
            (far, "file:///etc/passwd", false),
            (far, "https://user:password@auth.example.com/", false),
            (network, "https://10.0.0.8/", true),
            (network, "http://10.0.0.8/", false),
            (network, "http://127.0.0.1/", false),
            (here, "http://127.0.0.1:9/x", true),
            (here, "http://localhost:9/x", true),
            (here, "https://auth.example.com/", true),
            (here, "http://auth.example.com/", false),
        ] {
            assert_eq!(is_fit(server, address), expected, "{server} names {address}");
        }
    }

    #[test]
    fn a_password_is_encoded_before_it_is_joined() {
        let header = basic_header("a:b", &Hidden::new("c d"));
        assert_eq!(header, format!("Basic {}", data_encoding::BASE64.encode(b"a%3Ab:c+d")));
        assert!(header.is_sensitive());
    }
}
