//! The proxy on loopback, in front of a server that sends back what it gets.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a helper of a test fails as a test does")]

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use cofer_testkit::chaos_proxy::ChaosProxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(10);
/// How long nothing must happen to be believed.
const QUIET: Duration = Duration::from_millis(150);

/// An echo server and the proxy in front of it; both end with the test.
async fn proxied_echo() -> (ChaosProxy, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = ChaosProxy::in_front_of(listener.local_addr().unwrap().to_string()).unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut clients = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            clients.spawn(async move {
                let (mut from, mut to) = client.split();
                // A client that was reset is part of these tests.
                let _ = copy(&mut from, &mut to).await;
            });
        }
    });
    (proxy, server)
}

async fn connect(proxy: &ChaosProxy) -> TcpStream {
    timeout(DEADLINE, TcpStream::connect(proxy.address())).await.unwrap().unwrap()
}

async fn assert_echoes(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    assert_arrives(stream, text).await;
}

async fn assert_arrives(stream: &mut TcpStream, text: &str) {
    let mut back = vec![0; text.len()];
    timeout(DEADLINE, stream.read_exact(&mut back)).await.expect("an echo in time").unwrap();
    assert_eq!(back, text.as_bytes());
}

async fn assert_quiet(stream: &mut TcpStream) {
    let read = timeout(QUIET, stream.read(&mut [0])).await;
    assert!(read.is_err(), "expected nothing, got {read:?}");
}

#[tokio::test]
async fn left_alone_it_carries_everything_and_the_end_too() {
    let (proxy, _server) = proxied_echo().await;
    let mut client = connect(&proxy).await;
    let much = vec![b'x'; 3_000_000];
    let (mut from, mut to) = client.split();
    let mut back = Vec::new();
    let send = async {
        to.write_all(&much).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(send, from.read_to_end(&mut back)) };
    timeout(DEADLINE, both).await.unwrap().1.unwrap();
    assert_eq!(back.len(), much.len());
}

#[tokio::test]
async fn a_cut_resets_what_was_connected_and_refuses_what_comes() {
    let (proxy, _server) = proxied_echo().await;
    let mut clients = [connect(&proxy).await, connect(&proxy).await];
    for client in &mut clients {
        assert_echoes(client, "before").await;
    }
    proxy.cut().await;
    for client in &mut clients {
        let reset = timeout(DEADLINE, client.read(&mut [0])).await.unwrap().unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    }
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn restoring_after_a_cut_serves_the_same_address_however_often() {
    let (proxy, _server) = proxied_echo().await;
    for _ in 0..20 {
        proxy.cut().await;
        proxy.cut().await;
        assert!(TcpStream::connect(proxy.address()).await.is_err());
        proxy.restore().await;
        assert_echoes(&mut connect(&proxy).await, "after").await;
    }
}

#[tokio::test]
async fn frozen_it_accepts_and_holds_until_it_thaws() {
    let (proxy, _server) = proxied_echo().await;
    let mut before = connect(&proxy).await;
    assert_echoes(&mut before, "before").await;
    proxy.freeze().await;
    before.write_all(b"held").await.unwrap();
    let mut during = connect(&proxy).await;
    during.write_all(b"new").await.unwrap();
    assert_quiet(&mut before).await;
    assert_quiet(&mut during).await;
    proxy.restore().await;
    assert_arrives(&mut before, "held").await;
    assert_arrives(&mut during, "new").await;
}

#[tokio::test]
async fn a_cut_ends_also_what_was_frozen() {
    let (proxy, _server) = proxied_echo().await;
    proxy.freeze().await;
    let mut client = connect(&proxy).await;
    client.write_all(b"lost").await.unwrap();
    proxy.cut().await;
    assert!(timeout(DEADLINE, client.read(&mut [0])).await.unwrap().is_err());
}

#[tokio::test]
async fn a_delay_holds_up_each_direction() {
    let (proxy, _server) = proxied_echo().await;
    let mut client = connect(&proxy).await;
    proxy.delay(Duration::from_millis(60)).await;
    let start = Instant::now();
    assert_echoes(&mut client, "late").await;
    assert!(start.elapsed() >= Duration::from_millis(120), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_that_is_not_there_resets_the_client() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = ChaosProxy::in_front_of(nobody.to_string()).unwrap();
    let mut client = connect(&proxy).await;
    let reset = timeout(DEADLINE, client.read(&mut [0])).await.unwrap().unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn it_ends_with_its_owner() {
    let (proxy, _server) = proxied_echo().await;
    let address = proxy.address();
    let mut client = connect(&proxy).await;
    assert_echoes(&mut client, "before").await;
    drop(proxy);
    let ended = timeout(DEADLINE, client.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(TcpStream::connect(address).await.is_err());
}
