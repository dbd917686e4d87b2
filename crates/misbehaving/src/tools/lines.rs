//! Lines that are torn, padded, or not text: right answers in bytes that a careless reader trips over.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use super::{Answer, Call, Reply, text_result};
use crate::catalogue::{Runs, Tool, choice, count};
use crate::state::Server;
use crate::{end, wire};

const HALF_LINE_PAUSE_DEFAULT: Duration = Duration::from_millis(200);

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "half_line", about: "Writes half of its answer, waits `ms`, then writes the rest, nothing (the line is never finished), or dies.", parameters: &[count("ms", "how long to wait (200)"), choice("then", &["rest", "nothing", "crash"], "what follows (rest)")], runs: Runs::Aside, run: half_line },
    Tool { name: "invalid_utf8", about: "Writes bytes that are not UTF-8: as a line of noise before its answer, or inside the answer.", parameters: &[choice("place", &["noise", "answer"], "where (noise)")], runs: Runs::InOrder, run: invalid_utf8 },
    Tool { name: "odd_line", about: "Writes its answer with a carriage return, between blank lines and spaces, or one byte at a time.", parameters: &[choice("style", &["crlf", "spaces", "bytes"], "how (crlf)")], runs: Runs::InOrder, run: odd_line },
];

fn half_line(server: &Server, call: &Call) -> Reply {
    let pause = call.milliseconds("ms")?.unwrap_or(HALF_LINE_PAUSE_DEFAULT);
    let then = call.text("then")?.unwrap_or("rest");
    let line = wire::result_line(&call.id, &text_result("in two halves"));
    let (first, rest) = line.split_at(line.len() / 2);
    // Stdout is held throughout: what is torn here is one line, not two lines into each other.
    wire::hold(|out| {
        out.write_all(first)?;
        out.flush()?;
        thread::sleep(pause);
        match then {
            "crash" => end::exit(server.flags.exit_code),
            "nothing" => Ok(()),
            _ => out.write_all(rest),
        }
    });
    if then == "rest" {
        server.count_answer();
    }
    Ok(Answer::Taken)
}

fn invalid_utf8(server: &Server, call: &Call) -> Reply {
    if call.text("place")? == Some("answer") {
        let line = wire::result_line(&call.id, &text_result("broken: ?"));
        let broken: Vec<u8> = line.into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
        server.say(&broken);
        server.count_answer();
        return Ok(Answer::Taken);
    }
    server.say(b"noise \xc3\x28 \xff\xfe\n");
    Ok(Answer::Result(text_result("after the noise")))
}

fn odd_line(server: &Server, call: &Call) -> Reply {
    let line = wire::result_line(&call.id, &text_result("odd"));
    let body = line.trim_ascii_end();
    match call.text("style")?.unwrap_or("crlf") {
        "spaces" => server.say(&[b"\n  \n\t ", body, b" \t\n\n"].concat()),
        "bytes" => wire::hold(|out| {
            line.iter().try_for_each(|byte| {
                out.write_all(&[*byte])?;
                out.flush()
            })
        }),
        _ => server.say(&[body, b"\r\n"].concat()),
    }
    server.count_answer();
    Ok(Answer::Taken)
}
