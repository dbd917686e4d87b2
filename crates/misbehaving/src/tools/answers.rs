//! Answers that are right, late, missing, doubled, for somebody else, or of an unexpected shape.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answer, Call, Reply, text_result};
use crate::catalogue::{Runs, Tool, any, choice, count, integer, text};
use crate::state::Server;
use crate::wire::{self, RpcError};

const LATE_DEFAULT: Duration = Duration::from_secs(1);
const OUT_OF_ORDER_PATIENCE: Duration = Duration::from_secs(30);
const HUGE_BYTES_DEFAULT: u64 = 10 << 20;
const HUGE_BYTES_MAX: u64 = 256 << 20;

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "echo", about: "Answers with the text it was given.", parameters: &[text("text", "what to say")], runs: Runs::InOrder, run: echo },
    Tool { name: "hang", about: "Never answers this call; others go on.", parameters: &[], runs: Runs::InOrder, run: hang },
    Tool { name: "late", about: "Answers after `ms`, even when the call was cancelled meanwhile.", parameters: &[count("ms", "how long to wait (1000)"), text("text", "what to say (late)")], runs: Runs::Aside, run: late },
    Tool { name: "out_of_order", about: "Answers once a later call has been answered.", parameters: &[count("ms", "how long to wait for one (30000)"), text("text", "what to say")], runs: Runs::Aside, run: out_of_order },
    Tool { name: "duplicate_answer", about: "Answers twice at once, with the same id.", parameters: &[], runs: Runs::InOrder, run: duplicate_answer },
    Tool { name: "answer_twice_late", about: "Answers, and again after `ms`, when the id may long be forgotten.", parameters: &[count("ms", "how long between the two (1000)")], runs: Runs::Aside, run: answer_twice_late },
    Tool { name: "wrong_id_answer", about: "Answers with an id nobody used, and then perhaps with the right one.", parameters: &[any("id", "the id to use instead: any JSON (999999)"), choice("then", &["right", "nothing"], "what follows (right)")], runs: Runs::InOrder, run: wrong_id_answer },
    Tool { name: "huge", about: "Answers with a text of `bytes` bytes.", parameters: &[count("bytes", "how many (10 MiB; at most 256 MiB)")], runs: Runs::Aside, run: huge },
    Tool { name: "error", about: "Answers with a JSON-RPC error.", parameters: &[integer("code", "its code (-32000)"), text("message", "its message (asked to fail)"), any("data", "its data: any JSON (none)")], runs: Runs::InOrder, run: error },
    Tool { name: "tool_error", about: "Answers with a result flagged `isError`.", parameters: &[text("text", "what to say (the tool failed)")], runs: Runs::InOrder, run: tool_error },
    Tool { name: "unknown_content", about: "Answers with a content type and with fields that no specification knows.", parameters: &[], runs: Runs::InOrder, run: unknown_content },
];

fn answer(text: impl Into<String>) -> Reply {
    Ok(Answer::Result(text_result(text)))
}

fn echo(_: &Server, call: &Call) -> Reply {
    answer(call.text("text")?.unwrap_or_default())
}

fn hang(_: &Server, _: &Call) -> Reply {
    Ok(Answer::Taken)
}

fn late(_: &Server, call: &Call) -> Reply {
    thread::sleep(call.milliseconds("ms")?.unwrap_or(LATE_DEFAULT));
    answer(call.text("text")?.unwrap_or("late"))
}

fn out_of_order(server: &Server, call: &Call) -> Reply {
    let patience = call.milliseconds("ms")?.unwrap_or(OUT_OF_ORDER_PATIENCE);
    if server.later_answer(call.answered_before, patience) {
        answer(call.text("text")?.unwrap_or("after a later one"))
    } else {
        answer("no later call came")
    }
}

fn duplicate_answer(server: &Server, call: &Call) -> Reply {
    let once = wire::result_line(&call.id, &text_result("twice"));
    server.say(&[once.as_slice(), once.as_slice()].concat());
    server.count_answer();
    Ok(Answer::Taken)
}

fn answer_twice_late(server: &Server, call: &Call) -> Reply {
    let pause = call.milliseconds("ms")?.unwrap_or(LATE_DEFAULT);
    server.say(&wire::result_line(&call.id, &text_result("first")));
    server.count_answer();
    thread::sleep(pause);
    server.say(&wire::result_line(&call.id, &text_result("second")));
    Ok(Answer::Taken)
}

fn wrong_id_answer(server: &Server, call: &Call) -> Reply {
    let wrong = call.any("id").cloned().unwrap_or(json!(999_999));
    server.say(&wire::result_line(&wrong, &text_result("for somebody else")));
    match call.text("then")? {
        Some("nothing") => Ok(Answer::Taken),
        _ => answer("for you"),
    }
}

fn huge(_: &Server, call: &Call) -> Reply {
    let bytes = call.count("bytes")?.unwrap_or(HUGE_BYTES_DEFAULT).min(HUGE_BYTES_MAX);
    answer("h".repeat(usize::try_from(bytes).unwrap_or_default()))
}

fn error(_: &Server, call: &Call) -> Reply {
    Err(RpcError {
        code: call.integer("code")?.unwrap_or(wire::SERVER_ERROR),
        message: call.text("message")?.unwrap_or("asked to fail").to_owned(),
        data: call.any("data").cloned(),
    })
}

fn tool_error(_: &Server, call: &Call) -> Reply {
    let mut result = text_result(call.text("text")?.unwrap_or("the tool failed"));
    result["isError"] = Value::Bool(true);
    Ok(Answer::Result(result))
}

fn unknown_content(server: &Server, call: &Call) -> Reply {
    // Written by hand, because a map would sort the fields and a careful bridge keeps their order.
    let line = format!(
        "{{\"x-before\":[1,2.50,1e3],\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"zeta\":null,\"content\":\
         [{{\"type\":\"hologram\",\"depth\":3,\"alpha\":{{\"b\":1,\"a\":2}}}},{{\"type\":\"text\",\"text\":\"plain\",\
         \"x-colour\":\"\\u00fcber\"}}],\"x-unknown\":{{\"kept\":true}},\"_meta\":{{\"example.org/k\":1}}}}}}\n",
        call.id
    );
    server.say(line.as_bytes());
    server.count_answer();
    Ok(Answer::Taken)
}
