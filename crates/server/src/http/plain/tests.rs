//! Which requests are plain, in however many parts they come and whatever was said before them.

use super::*;
use proptest::prelude::*;

const PEER: Peer = Peer(std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1));

fn seen(received: &mut BytesMut) -> String {
    seen_after(received, &mut None)
}

fn seen_after(received: &mut BytesMut, last: &mut Option<Head>) -> String {
    match read(received, last, PEER) {
        Received::Whole(_, posted) => {
            let Given::Whole(body) = &posted.body else { return "not all of it".to_owned() };
            let fields: Vec<_> =
                posted.said.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            format!("{} [{}] {}", posted.said.uri, fields.join(" "), String::from_utf8_lossy(body))
        }
        Received::Part => "part".to_owned(),
        Received::Head => "head".to_owned(),
        Received::Other => "other".to_owned(),
    }
}

fn of(text: &str) -> String {
    seen(&mut text.into())
}

#[test]
fn a_plain_request_is_taken_and_the_next_one_stays() {
    let one = "POST /mcp HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n\r\n{}";
    let mut received = BytesMut::from(one.repeat(2).as_str());
    assert_eq!(seen(&mut received), "/mcp [host=\"x\"] {}");
    assert_eq!(received, one);
    assert_eq!(seen(&mut received), "/mcp [host=\"x\"] {}");
    assert_eq!(seen(&mut received), "part");
}

#[test]
fn whatever_is_not_plain_is_for_the_general_server() {
    let post = |line: &str, fields: &str| of(&format!("{line}\r\nHost: x\r\n{fields}\r\n{{}}"));
    let mcp = "POST /mcp HTTP/1.1";
    assert_eq!(
        post(mcp, "Content-Length: 2\r\nConnection: Keep-Alive\r\n"),
        "/mcp [host=\"x\" connection=\"Keep-Alive\"] {}"
    );
    for (line, fields) in [
        ("GET /mcp HTTP/1.1", "Content-Length: 2\r\n"),
        ("POST /mcp HTTP/1.0", "Content-Length: 2\r\n"),
        ("POST /mcp?x=1 HTTP/1.1", "Content-Length: 2\r\n"),
        ("POST /api/v1/projects HTTP/1.1", "Content-Length: 2\r\n"),
        ("POST http://x/mcp HTTP/1.1", "Content-Length: 2\r\n"),
        (mcp, ""),
        (mcp, "Content-Length: 2\r\nContent-Length: 2\r\n"),
        (mcp, "Content-Length: +2\r\n"),
        (mcp, "Content-Length: 2, 2\r\n"),
        (mcp, "Content-Length:\r\n"),
        (mcp, "Content-Length: 99999999999999999999\r\n"),
        (mcp, "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
        (mcp, "Transfer-Encoding: chunked\r\n"),
        (mcp, "Content-Length: 2\r\nExpect: 100-continue\r\n"),
        (mcp, "Content-Length: 2\r\nConnection: close\r\n"),
        (mcp, "Content-Length: 2\r\nUpgrade: h2c\r\n"),
        (mcp, "Content-Length : 2\r\n"),
        (mcp, "Content-Length: 2\r\n folded\r\n"),
        (mcp, &format!("Content-Length: {}\r\n", BODY_BYTES_MAX + 1)),
        (mcp, &format!("Content-Length: 2\r\n{}", "x: y\r\n".repeat(HEADERS_MAX))),
    ] {
        assert_eq!(post(line, fields), "other", "{line} {fields}");
    }
    let odd = "POST /projects/a<b/mcp HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}";
    let mut received = BytesMut::from(odd.repeat(2).as_str());
    assert_eq!((seen(&mut received), &*received), ("other".to_owned(), odd.repeat(2).as_bytes()));
    for text in ["PRI * HTTP/2.0\r\n", "\x16\x03\x01", "GET ", "POSTS"] {
        assert_eq!(of(text), "other", "{text}");
    }
    assert_eq!(of(&format!("POST /mcp HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES_MAX))), "other");
}

/// Requests that one client may send one after the other: the same but for their length, or not.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let path = prop_oneof![8 => Just("/mcp"), 1 => Just("/projects/a/mcp"), 1 => Just("/other")];
    let fields = prop_oneof![
        6 => Just(""),
        1 => Just("Mcp-Session-Id: 1\r\n"),
        1 => Just("Connection: close\r\n"),
        1 => Just("Content-Length: 1\r\n"),
        1 => Just("Transfer-Encoding: chunked\r\n")
    ];
    let length = prop_oneof![8 => "[0-9]{1,3}", 1 => "[0-9]{5,25}", 1 => "[+-]?[0-9]?,? ?[0-9]?"];
    (path, fields, length, 0_usize..1200).prop_map(|(path, fields, length, sent)| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n");
        [head.as_bytes(), &vec![b'b'; length.parse().map_or(sent, |length: usize| length.min(sent))]].concat()
    })
}

proptest! {
    #[test]
    fn what_a_client_said_before_changes_nothing(requests in proptest::collection::vec(request(), 1..8)) {
        let mut last = None;
        for request in requests {
            let (mut remembering, mut afresh) = (request.as_slice().into(), request.as_slice().into());
            assert_eq!(seen_after(&mut remembering, &mut last), seen(&mut afresh));
            assert_eq!(remembering, afresh);
        }
    }

    #[test]
    fn in_however_many_parts_it_comes_it_is_the_same_request(at in proptest::collection::vec(0_usize..120, 0..6)) {
        let text = "POST /projects/a/mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n{\"a\":\"b\"}  ";
        let mut ends: Vec<_> = at.into_iter().map(|at| at.min(text.len())).chain([text.len()]).collect();
        ends.sort_unstable();
        let mut received = BytesMut::new();
        let mut before = 0;
        for end in ends {
            received.extend_from_slice(&text.as_bytes()[before..end]);
            before = end;
            let expected = match end {
                _ if end == text.len() => "/projects/a/mcp [host=\"x\"] {\"a\":\"b\"}  ",
                _ if end >= text.find('{').unwrap() => "head",
                _ => "part",
            };
            assert_eq!(seen(&mut received), expected);
            if end == text.len() { break; }
        }
    }

    #[test]
    fn no_bytes_whatever_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        seen(&mut bytes.as_slice().into());
        seen(&mut [b"POST /mcp HTTP/1.1\r\n".as_slice(), &bytes].concat().as_slice().into());
    }
}
