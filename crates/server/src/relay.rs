//! A client on two streams of lines, relayed to the MCP endpoint of a running Cofer. To the endpoint it is a client like any other.

use cofer_mcp::wire::{self, HttpTarget, WireFault, WireLimits};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use url::Url;

/// Relays until the client is done, or the endpoint is gone.
pub async fn relay(
    http: reqwest::Client,
    url: Url,
    token: Option<SecretString>,
    mut from_client: impl AsyncRead + Unpin,
    mut to_client: impl AsyncWrite + Unpin,
) -> Result<(), WireFault> {
    let bearer = |token: SecretString| format!("Bearer {}", token.expose_secret()).into();
    let headers = token.map(|token| ("Authorization".to_owned(), bearer(token))).into_iter().collect();
    let mut wire = wire::streamable(HttpTarget { url, headers }, http, WireLimits::default());
    let down = async {
        // A client that hangs up is done; so is one that cannot be read any more.
        let _ = tokio::io::copy(&mut from_client, &mut wire.stdin).await;
        let _ = wire.stdin.shutdown().await;
    };
    let up = async {
        let mut message = vec![0; 64 << 10];
        // Ends with the wire, which ends when it has answered everything after the client was done.
        while let Ok(bytes) = tokio::io::AsyncReadExt::read(&mut wire.stdout, &mut message).await {
            if bytes == 0
                || to_client.write_all(&message[..bytes]).await.is_err()
                || to_client.flush().await.is_err()
            {
                break;
            }
        }
    };
    tokio::pin!(down, up);
    tokio::select! {
        () = &mut up => {}
        () = &mut down => up.await,
    }
    wire.fault.get().map_or(Ok(()), Err)
}
