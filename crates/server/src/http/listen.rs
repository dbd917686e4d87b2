//! Sockets: accepting, TLS, and letting go.
//!
//! One task a connection, at most `connections_max` of them; further clients wait in the kernel's queue. A place is kept
//! by using it. A client that keeps us waiting for `header_timeout` (`patience` knows whose turn it is) is asked to leave,
//! and one that keeps us waiting once more is hung up on, so a slow or silent one holds a place for seconds, not for ever.
//! At the end the socket closes first, then requests in flight get their time, then whatever is left is cut.
//!
//! There is no limit for each address: behind a proxy and on loopback all clients share one, so the honest ones would
//! share the limit with the attacker. Who listens to strangers without a proxy can have one from the firewall.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use cofer_model::Kind;
use futures_util::StreamExt;
use futures_util::future::poll_fn;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::express::{Lane, Posted, Said};
use super::extract::Given;
use super::patience::{Answer, Patience, Watched};
use super::plain::Plain;
use crate::app::App;
use crate::settings::{Settings, TlsFiles};

/// After a failed `accept` (out of file descriptors, mostly), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may be silent before the kernel asks whether anybody is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The kernel doubles it. A client that reads ten KiB a second makes a move every few seconds.
const SEND_BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("`{address}` is not an address to listen on; write HOST:PORT, such as 127.0.0.1:7070")]
    Address {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{address} is in use by another program; stop that one, or give another address by `--listen` (port 0 picks a free one)"
    )]
    InUse {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot listen on {address}")]
    Bind {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("the TLS certificate {} cannot be read", path.display())]
    Certificate {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the TLS key {} cannot be read", path.display())]
    Key {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the TLS certificate and key do not go together")]
    Tls {
        #[source]
        source: rustls::Error,
    },
}

impl ListenError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Address { .. } | Self::Certificate { .. } | Self::Key { .. } | Self::Tls { .. } => {
                Kind::Invalid
            }
            Self::InUse { .. } => Kind::Conflict,
            Self::Bind { .. } => Kind::Forbidden,
        }
    }
}

/// A bound socket; clients wait in the kernel's queue until [`Listener::serve`].
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local: SocketAddr,
    tls: Option<TlsSetup>,
    connections_max: usize,
    header_timeout: Duration,
    drain: Duration,
}

#[derive(Clone)]
struct TlsSetup {
    acceptor: TlsAcceptor,
    /// What it shows of itself first, by which it can be known again.
    certificate: Option<CertificateDer<'static>>,
}

impl std::fmt::Debug for TlsSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsSetup")
    }
}

/// The address a connection came from, on every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub(super) SocketAddr);

impl Peer {
    /// Who is asking: behind a proxy, whoever the nearest proxy says.
    pub fn address(&self, headers: &HeaderMap, behind_proxy: bool) -> IpAddr {
        let forwarded = || {
            let list = headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
            list.rsplit(',').next()?.trim().parse().ok()
        };
        behind_proxy.then(forwarded).flatten().unwrap_or(self.0.ip())
    }
}

impl Listener {
    pub async fn bind(settings: &Settings) -> Result<Self, ListenError> {
        let address = settings.listen.clone();
        let socket = TcpListener::bind(&address).await.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address: address.clone(), source },
            io::ErrorKind::PermissionDenied | io::ErrorKind::AddrNotAvailable => {
                ListenError::Bind { address: address.clone(), source }
            }
            _ => ListenError::Address { address: address.clone(), source },
        })?;
        if let Err(error) = set_for_all_connections(&socket) {
            tracing::debug!("sockets stay as the kernel has them: {error}");
        }
        let local = socket.local_addr().map_err(|source| ListenError::Bind { address, source })?;
        Ok(Self {
            socket,
            local,
            tls: settings.tls.as_ref().map(load_tls).transpose()?,
            connections_max: settings.connections_max,
            header_timeout: settings.header_timeout,
            drain: settings.drain,
        })
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.local)
    }

    /// The address at which a browser on this machine finds us.
    pub fn local_url(&self) -> String {
        let mut local = self.local;
        if local.ip().is_unspecified() {
            local.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{local}")
    }

    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.certificate.as_ref()
    }

    /// Whether strangers on the network could read along.
    pub fn is_exposed(&self, behind_proxy: bool) -> bool {
        !self.local.ip().is_loopback() && self.tls.is_none() && !behind_proxy
    }

    /// Serves until told to stop, then lets what is in flight finish.
    pub async fn serve(self, app: App, router: Router, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.connections_max));
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let slot = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Ok(slot) = slots.clone().acquire_owned() => slot,
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = self.socket.accept() => accepted,
            };
            while tasks.try_join_next().is_some() {}
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = Connection {
                app: app.clone(),
                router: router.clone(),
                tls: self.tls.clone(),
                header_timeout: self.header_timeout,
                stop: stop.clone(),
                from,
            };
            tasks.spawn(async move {
                connection.run(stream).await;
                drop(slot);
            });
        }
        drop(self.socket);
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.drain, all_ended).await.is_err() {
            tracing::warn!("requests were still in flight after {:?}; they are cut off", self.drain);
        }
        tasks.shutdown().await;
    }
}

struct Connection {
    app: App,
    router: Router,
    tls: Option<TlsSetup>,
    header_timeout: Duration,
    stop: CancellationToken,
    from: SocketAddr,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        // Small answers leave at once. Failing to say so costs only time.
        let _ = stream.set_nodelay(true);
        match self.tls.clone() {
            None => self.speak_http(stream).await,
            Some(TlsSetup { acceptor, .. }) => {
                let handshake = tokio::time::timeout(self.header_timeout, acceptor.accept(stream));
                match self.stop.run_until_cancelled(handshake).await {
                    Some(Ok(Ok(stream))) => self.speak_http(stream).await,
                    Some(Ok(Err(error))) => tracing::debug!("TLS handshake failed: {error}"),
                    Some(Err(_elapsed)) => tracing::debug!("TLS handshake took too long"),
                    None => {}
                }
            }
        }
    }

    async fn speak_http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { app, router, header_timeout, stop, from, .. } = self;
        let patience = Patience::new(header_timeout);
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let turn = patience.our_turn();
            let mut request = request.map(axum::body::Body::new);
            let (app, router) = (app.clone(), router.clone());
            async move {
                let lane = if app.exports_traces { None } else { Lane::of(request.method(), request.uri()) };
                let response = if let Some(lane) = lane {
                    let (Parts { headers, uri, .. }, body) = request.into_parts();
                    let said = Arc::new(Said::new(headers, uri));
                    let mut posted = Posted { said, peer: Peer(from), body: Given::Coming(body) };
                    Ok(lane.answer(&app, &mut posted).await.into_response())
                } else {
                    request.extensions_mut().insert(Peer(from));
                    router.oneshot(request).await
                };
                response.map(|response| response.map(|body| Answer::new(body, turn)))
            }
        });
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
        // No pings of HTTP/2's own: a slow reader sees one only after all the answers before it.
        http.http2().timer(TokioTimer::new());
        let leaving = AtomicBool::new(false);
        let speaks = async {
            let mut stream = Watched::new(stream, patience.clone());
            if !app.exports_traces {
                let plain = Plain::new(&app, Peer(from), &patience, &leaving, stream);
                let Some(rest) = plain.serve().await else { return Ok(()) };
                stream = rest.stream;
                http = if rest.has_answered { http.http1_only() } else { http };
            }
            let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
            let mut is_told = false;
            poll_fn(|cx| {
                // First, so that what was received already is seen before anybody is told to leave.
                let polled = connection.as_mut().poll(cx);
                if polled.is_ready() || !leaving.load(Ordering::Relaxed) || is_told {
                    return polled;
                }
                is_told = true;
                connection.as_mut().graceful_shutdown();
                connection.as_mut().poll(cx)
            })
            .await
        };
        let mut speaks = pin!(speaks);
        // A token of its own: the one that all share would be what they wait for.
        let stop = stop.child_token();
        let has_to_leave = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = patience.ended() => {}
            }
        };
        // In a set of one, which looks at it only when it is woken for it, and not with each request.
        let mut has_to_leave: FuturesUnordered<_> = std::iter::once(has_to_leave).collect();
        tokio::select! {
            biased;
            ended = speaks.as_mut() => return log_end(ended),
            _ = has_to_leave.next() => {}
        }
        // What is in flight is still answered. Whoever speaks is asked at once whether they are done.
        leaving.store(true, Ordering::Relaxed);
        patience.begin_anew();
        tokio::select! {
            ended = speaks => log_end(ended),
            () = patience.ended() => tracing::debug!("hung up on {from}, who neither sent nor read anything in time"),
        }
    }
}

fn log_end(ended: Result<(), Box<dyn Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!("connection ended: {error}");
    }
}

/// Connections inherit what is set on the socket that they come from.
fn set_for_all_connections(socket: &TcpListener) -> rustix::io::Result<()> {
    // What a client has read is seen when room for more is free, and with a large buffer that is seldom: a slow reader
    // would look like one who does not read.
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES)?;
    // Finds out who has vanished without a word while a stream is open.
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)
}

fn load_tls(files: &TlsFiles) -> Result<TlsSetup, ListenError> {
    let chain = read_certificates(&files.certificate)?;
    let certificate = chain.first().cloned();
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| ListenError::Key { path: files.key.clone(), source })?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|source| ListenError::Tls { source })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsSetup { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ListenError> {
    let unreadable = |source| ListenError::Certificate { path: path.to_owned(), source };
    CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_behind_a_proxy_is_the_forwarded_address_believed_and_only_the_nearest_proxys_word() {
        let peer = Peer("127.0.0.1:1".parse().unwrap());
        let headers = HeaderMap::from_iter([(
            "x-forwarded-for".parse().unwrap(),
            "6.6.6.6, 192.0.2.7".parse().unwrap(),
        )]);
        assert_eq!(peer.address(&headers, false).to_string(), "127.0.0.1");
        assert_eq!(peer.address(&headers, true).to_string(), "192.0.2.7");
        assert_eq!(peer.address(&HeaderMap::new(), true).to_string(), "127.0.0.1");
    }
}
