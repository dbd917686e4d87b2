//! A TCP proxy that misbehaves on command, to stand in front of any server, on a port or on a socket of this machine.
//!
//! ```text
//!   open ──────► bytes flow both ways, late if told so
//!   frozen ────► connections are accepted and kept, nothing flows; what was on the way waits
//!   cut ───────► new connections are refused, the existing ones were reset
//! ```
//!
//! One task owns the listener and all connections; it dies with the `ChaosProxy`. Each command returns once it
//! has taken effect, so a test needs no sleep after it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

const BACKLOG: u32 = 128;
const CHUNK_BYTES: usize = 64 << 10;
const COMMANDS_MAX: usize = 8;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flow {
    Open { latency: Duration },
    Frozen,
    Cut,
}

struct Command {
    flow: Flow,
    done: oneshot::Sender<()>,
}

/// A proxy on a loopback port of its own.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

impl ChaosProxy {
    /// Starts one that forwards to `target` (`host:port` or `unix:///path`), open and without delay. Called inside a runtime.
    pub fn in_front_of(target: impl Into<String>) -> io::Result<Self> {
        // This socket is bound for as long as the proxy lives and never listens: it keeps the port ours while
        // the proxy is cut, and connections to a port where nobody listens are refused.
        let reserved = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = reserved.local_addr()?;
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let door = Door {
            target: target.into(),
            address,
            listener: Some(listen(address)?),
            connections: JoinSet::new(),
            flow: watch::Sender::new(Flow::Open { latency: Duration::ZERO }),
            _reserved: reserved,
        };
        Ok(Self { address, commands, task: tokio::spawn(door.run(inbox)) })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets every connection and refuses new ones.
    pub async fn cut(&self) {
        self.command(Flow::Cut).await;
    }

    /// Accepts and keeps connections, but lets nothing through.
    pub async fn freeze(&self) {
        self.command(Flow::Frozen).await;
    }

    /// Lets everything through at once, also what waited while it was frozen.
    pub async fn restore(&self) {
        self.delay(Duration::ZERO).await;
    }

    /// Lets everything through, each chunk late by this much in each direction.
    pub async fn delay(&self, latency: Duration) {
        self.command(Flow::Open { latency }).await;
    }

    async fn command(&self, flow: Flow) {
        let (done, heard) = oneshot::channel();
        self.commands.send(Command { flow, done }).await.expect("the proxy runs as long as its owner");
        heard.await.expect("the proxy could listen on its port again");
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task behind a `ChaosProxy`.
struct Door {
    target: String,
    address: SocketAddr,
    /// None while cut.
    listener: Option<TcpListener>,
    connections: JoinSet<()>,
    flow: watch::Sender<Flow>,
    _reserved: TcpSocket,
}

enum Cause {
    Came(io::Result<TcpStream>),
    Command(Command),
    Left,
}

impl Door {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        loop {
            let cause = select! {
                biased;
                Some(command) = inbox.recv() => Cause::Command(command),
                Some(_) = self.connections.join_next() => Cause::Left,
                came = accept(self.listener.as_ref()) => Cause::Came(came),
            };
            match cause {
                Cause::Command(command) => {
                    if let Err(error) = self.obey(command.flow).await {
                        // Whoever waits for `done` hears of the end of this task.
                        eprintln!("the chaos proxy at {} is gone: {error}", self.address);
                        return;
                    }
                    // The one who asked may have gone.
                    let _ = command.done.send(());
                }
                Cause::Came(Ok(client)) => {
                    let (target, flow) = (self.target.clone(), self.flow.subscribe());
                    self.connections.spawn(carry(client, target, flow));
                }
                Cause::Came(Err(_)) | Cause::Left => {}
            }
        }
    }

    async fn obey(&mut self, flow: Flow) -> io::Result<()> {
        if flow == Flow::Cut {
            self.listener = None;
        }
        self.flow.send_replace(flow);
        if flow == Flow::Cut {
            while self.connections.join_next().await.is_some() {}
        } else if self.listener.is_none() {
            self.listener = Some(listen(self.address)?);
        }
        Ok(())
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => std::future::pending().await,
    }
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    socket(address)?.listen(BACKLOG)
}

/// One connection, until both sides have ended it or the proxy is cut.
async fn carry(mut client: TcpStream, target: String, flow: watch::Receiver<Flow>) {
    let mut cut = flow.clone();
    let server = select! {
        biased;
        _ = cut.wait_for(|flow| *flow == Flow::Cut) => None,
        server = dial(&target, flow.clone()) => server.ok(),
    };
    let Some(mut server) = server else { return reset(&client) };
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.halves();
        let both_ways = async {
            tokio::try_join!(
                pump(from_client, to_server, flow.clone()),
                pump(from_server, to_client, flow.clone())
            )
        };
        select! {
            biased;
            _ = cut.wait_for(|flow| *flow == Flow::Cut) => Err(io::ErrorKind::ConnectionReset.into()),
            ended = both_ways => ended,
        }
    };
    if ended.is_err() {
        reset(&client);
        if let Server::Tcp(server) = &server {
            reset(server);
        }
    }
}

/// The other end of a connection.
enum Server {
    Tcp(TcpStream),
    Unix(UnixStream),
}

type Source<'a> = Box<dyn AsyncRead + Send + Unpin + 'a>;
type Drain<'a> = Box<dyn AsyncWrite + Send + Unpin + 'a>;

impl Server {
    fn halves(&mut self) -> (Source<'_>, Drain<'_>) {
        match self {
            Self::Tcp(stream) => {
                let (from, to) = stream.split();
                (Box::new(from), Box::new(to))
            }
            Self::Unix(stream) => {
                let (from, to) = stream.split();
                (Box::new(from), Box::new(to))
            }
        }
    }
}

/// A connection made while frozen reaches the server when it thaws.
async fn dial(target: &str, flow: watch::Receiver<Flow>) -> io::Result<Server> {
    latency(flow).await?;
    if let Some(path) = target.strip_prefix("unix://") {
        return UnixStream::connect(path).await.map(Server::Unix);
    }
    let server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    Ok(Server::Tcp(server))
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    flow: watch::Receiver<Flow>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = from.read(&mut chunk).await?;
        // Asked after reading: a freeze holds also what was read just before it.
        sleep(latency(flow.clone()).await?).await;
        latency(flow.clone()).await?;
        if bytes == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..bytes]).await?;
    }
}

/// Waits for as long as nothing may flow, and says how late it flows then.
async fn latency(mut flow: watch::Receiver<Flow>) -> io::Result<Duration> {
    let open = flow.wait_for(|flow| matches!(flow, Flow::Open { .. })).await;
    match open.map_err(|_| io::ErrorKind::BrokenPipe)?.to_owned() {
        Flow::Open { latency } => Ok(latency),
        Flow::Frozen | Flow::Cut => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// With no time to linger, closing a connection resets it.
fn reset(stream: &TcpStream) {
    // One that is gone already cannot be reset, nor need it be.
    let _ = stream.set_zero_linger();
}
