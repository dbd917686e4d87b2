//! Whether an HTTP server lives: knock at its published port, and hear whether anybody stirs.
//!
//! An engine's proxy accepts connections for a server that is not there and then drops them, so being let in means nothing. Any byte
//! back is life, and so is somebody who keeps the line open: a server may think about its answer, a proxy without a server does not.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A line held open for so long without a byte is held by somebody.
const HELD_OPEN: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);

pub(crate) async fn is_alive(host_port: u16, path: &str) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, host_port));
    let Ok(Ok(mut stream)) = timeout(CONNECT, TcpStream::connect(address)).await else { return false };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\n\r\n"
    );
    let knock = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read(&mut [0_u8; 1]).await
    };
    match timeout(HELD_OPEN, knock).await {
        Ok(Ok(bytes)) => bytes > 0,
        Ok(Err(_reset)) => false,
        Err(_held_open) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A server that does this with each connection.
    async fn knocked<F: Future<Output = ()>>(answer: impl FnOnce(TcpStream) -> F) -> bool {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            answer(stream).await;
        };
        tokio::join!(is_alive(port, "/mcp"), serve).0
    }

    #[tokio::test]
    async fn any_byte_is_life_and_a_proxy_without_a_server_is_not() {
        assert!(
            knocked(|mut stream| async move { stream.write_all(b"HTTP/1.1 405 No\r\n\r\n").await.unwrap() })
                .await
        );
        assert!(!knocked(|stream| async move { drop(stream) }).await);
        assert!(!is_alive(1, "/mcp").await);
    }

    #[tokio::test]
    async fn somebody_who_thinks_is_there() {
        assert!(
            knocked(|stream| async move {
                tokio::time::sleep(HELD_OPEN + Duration::from_millis(500)).await;
                drop(stream);
            })
            .await
        );
    }
}
