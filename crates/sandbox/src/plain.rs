//! Plain HTTP to an engine, for the two things that its client does not do for us: taking over a connection for streams, and
//! reading answers whose words differ from engine to engine.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// More than an engine's head ever has.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// More than an engine ever tells of one container.
const BODY_BYTES_MAX: u64 = 16 << 20;

pub(crate) type Source = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Drain = Box<dyn AsyncWrite + Send + Unpin>;

/// An answer's head, and what came after it.
pub(crate) struct Answer {
    pub status: u16,
    head: String,
    pub after_head: Vec<u8>,
}

pub(crate) async fn connect(endpoint: &str) -> io::Result<(Source, Drain)> {
    if let Some(path) = endpoint.strip_prefix("unix://") {
        let (source, drain) = UnixStream::connect(path).await?.into_split();
        return Ok((Box::new(source), Box::new(drain)));
    }
    let address = endpoint.split_once("://").map_or(endpoint, |(_, address)| address);
    let stream = TcpStream::connect(address.trim_end_matches('/')).await?;
    // A line is sent when it is written: its answer is waited for.
    stream.set_nodelay(true)?;
    let (source, drain) = stream.into_split();
    Ok((Box::new(source), Box::new(drain)))
}

/// Asks, and reads the whole answer. In HTTP/1.0 that is everything until the connection ends.
pub(crate) async fn get(endpoint: &str, path: &str) -> io::Result<Answer> {
    let (mut source, mut drain) = connect(endpoint).await?;
    drain.write_all(format!("GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n").as_bytes()).await?;
    let mut answer = read_head(&mut source).await?;
    source.take(BODY_BYTES_MAX).read_to_end(&mut answer.after_head).await?;
    Ok(answer)
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

pub(crate) async fn read_head(source: &mut Source) -> io::Result<Answer> {
    let mut head = Vec::with_capacity(512);
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let after_head = head.split_off(end + 4);
            let head = String::from_utf8_lossy(&head).into_owned();
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            let status = status.ok_or_else(|| invalid("the answer is not HTTP"))?;
            return Ok(Answer { status, head, after_head });
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(invalid("the answer's head is too long"));
        }
        if source.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

pub(crate) fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Fit for a query.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_no_letter_or_digit_is_escaped() {
        assert_eq!(escaped(r#"{"a":["b=1"]}"#), "%7B%22a%22%3A%5B%22b%3D1%22%5D%7D");
    }

    #[tokio::test]
    async fn an_answer_is_read_over_tcp_as_well() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nno such thing").await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let answer = get(&endpoint, "/thing").await.unwrap();
        assert_eq!((answer.status, answer.header("server")), (404, Some("x")));
        assert_eq!(answer.after_head, b"no such thing");
        assert!(serving.await.unwrap().starts_with("GET /thing HTTP/1.0\r\n"));
    }
}
