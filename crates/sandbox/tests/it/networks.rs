//! Whom a sandbox can reach, and who can reach it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cofer_model::{NetworkMode, PortMapping};
use cofer_sandbox::{Provider as _, SandboxError};
use cofer_testkit::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bed::{Bed, Log};

conformance! {
    published_ports_are_reached_on_loopback_alone,
    one_that_may_reach_nobody_reaches_nobody,
    one_that_may_reach_the_world_reaches_its_gateway,
    ports_of_one_that_may_reach_nobody_are_refused_with_a_reason,
}

const SERVER: &str = "mkdir /tmp/www; echo hello >/tmp/www/index.html; httpd -f -p 8080 -h /tmp/www";

fn port() -> PortMapping {
    PortMapping { container_port: 8080, host_port: 0 }
}

async fn published_ports_are_reached_on_loopback_alone(bed: &Bed) {
    let mut spec = bed.spec(SERVER);
    spec.network = NetworkMode::Egress;
    spec.ports = vec![port()];
    let sandbox = bed.launch(&spec).await;
    let &[(8080, host_port)] = sandbox.ports.as_slice() else { panic!("{:?}", sandbox.ports) };
    until("the page", async || {
        page(SocketAddr::from((Ipv4Addr::LOCALHOST, host_port)))
            .await
            .is_some_and(|page| page.contains("hello"))
    })
    .await;
    let seen = bed.provider.look(&sandbox.id).await.unwrap().unwrap();
    assert_eq!(seen.endpoints.iter().map(|endpoint| endpoint.host_port).collect::<Vec<_>>(), vec![host_port]);
    for address in own_addresses() {
        assert_eq!(page(SocketAddr::from((address, host_port))).await, None, "it is published on {address}");
    }
}

async fn page(address: SocketAddr) -> Option<String> {
    let page = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        (!text.is_empty()).then_some(text)
    };
    tokio::time::timeout(Duration::from_secs(2), page).await.ok().flatten()
}

/// This machine's own addresses, other than loopback, as the kernel's table of local routes has them.
fn own_addresses() -> Vec<IpAddr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap();
    let lines: Vec<_> = table.lines().collect();
    let mut found: Vec<IpAddr> = lines
        .windows(2)
        .filter(|pair| pair[1].contains("/32 host LOCAL"))
        .filter_map(|pair| pair[0].trim().strip_prefix("|-- ")?.parse().ok())
        .filter(|address: &IpAddr| !address.is_loopback())
        .collect();
    found.sort();
    found.dedup();
    found
}

async fn one_that_may_reach_nobody_reaches_nobody(bed: &Bed) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tries: Vec<_> = own_addresses()
        .into_iter()
        .chain([IpAddr::from([1, 1, 1, 1])])
        .map(|address| {
            format!("nc -w 1 {address} {port} </dev/null >/dev/null 2>&1 && echo reached {address}; ")
        })
        .collect();
    let tries = tries.concat();
    for network in [NetworkMode::None, NetworkMode::Isolated] {
        // A neighbour with a server, of the same kind.
        let mut neighbour = bed.spec(&format!("ip addr | grep inet; {SERVER}"));
        neighbour.network = network;
        let neighbour = bed.launch(&neighbour).await;
        let mut spec = bed.spec(&format!(
            "{tries} ip addr | grep 'inet ' | grep -v 127.0.0.1; ip route | grep -v ' lo '; echo done"
        ));
        spec.network = network;
        assert_eq!(
            bed.output_of(&spec).await,
            "done\n",
            "{network}: it has an address, a route, or reached somebody"
        );
        bed.provider.destroy(&neighbour.id).await.unwrap();
    }
}

/// The other way round, so that the test before is known to try what can succeed.
async fn one_that_may_reach_the_world_reaches_its_gateway(bed: &Bed) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepting = tokio::spawn(async move { listener.accept().await.map(|_| ()) });
    let mut spec = bed.spec(&format!(
        "gateway=$(ip route | grep default | cut -d' ' -f3); nc -w 5 $gateway {port} </dev/null; echo done"
    ));
    spec.network = NetworkMode::Egress;
    assert_eq!(bed.output_of(&spec).await, "done\n");
    tokio::time::timeout(Duration::from_secs(5), accepting).await.expect("it was reached").unwrap().unwrap();
}

async fn ports_of_one_that_may_reach_nobody_are_refused_with_a_reason(bed: &Bed) {
    for network in [NetworkMode::None, NetworkMode::Isolated] {
        let mut spec = bed.spec(SERVER);
        spec.network = network;
        spec.ports = vec![port()];
        let error = bed.provider.launch(&spec, Log::default().sink()).await.unwrap_err();
        assert!(
            matches!(&error, SandboxError::Unsupported { reason, .. } if reason.contains(network.as_str())),
            "{error}"
        );
    }
}
