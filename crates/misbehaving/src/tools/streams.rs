//! What else goes over the pipes: noise, notifications, questions to the client, and ends that go away.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answer, Call, Reply, facts, needed, text_result};
use crate::catalogue::{Runs, Tool, any, choice, count, object, text};
use crate::flags::FLOOD_LINE_BYTES;
use crate::state::{Reading, Server, lock};
use crate::wire::{self, RpcError};

const FLOOD_BYTES_DEFAULT: u64 = 1 << 20;
const ASK_PATIENCE: Duration = Duration::from_secs(10);
const LIST_CHANGED: &str = "notifications/tools/list_changed";

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "flood_stderr", about: "Writes `bytes` bytes to stderr, then answers.", parameters: &[count("bytes", "how many (1 MiB)"), count("line_bytes", "bytes per line (120)")], runs: Runs::Aside, run: flood_stderr },
    Tool { name: "flood_stdout_noise", about: "Writes `bytes` bytes to stdout that are no JSON-RPC, then answers.", parameters: &[count("bytes", "how many (1 MiB)"), count("line_bytes", "bytes per line (120)"), choice("kind", &["text", "blank", "json"], "lines of prose, blank lines, or JSON that is no message (text)")], runs: Runs::Aside, run: flood_stdout_noise },
    Tool { name: "notify", about: "Sends `count` notifications, then answers.", parameters: &[count("count", "how many (1)"), text("method", "which (notifications/tools/list_changed)"), object("params", "with what (nothing)")], runs: Runs::InOrder, run: notify },
    Tool { name: "progress", about: "Sends `steps` progress notifications with the token of this call, then answers.", parameters: &[count("steps", "how many (3)")], runs: Runs::InOrder, run: progress },
    Tool { name: "add_tools", about: "Adds `count` filler tools to the list, says that it changed, then answers.", parameters: &[count("count", "how many (1)")], runs: Runs::InOrder, run: add_tools },
    Tool { name: "ask", about: "Sends the client a request (ping, roots/list, sampling/createMessage, elicitation/create, or any other) and answers with what came back, or null.", parameters: &[text("method", "which").required(), object("params", "with what (nothing)"), any("id", "under which id: any JSON, even one the client uses (a string of its own)"), count("ms", "how long to wait (10000)")], runs: Runs::Aside, run: ask },
    Tool { name: "stop_reading_stdin", about: "Answers, then reads nothing more for `ms`, or ever.", parameters: &[count("ms", "how long (for ever)")], runs: Runs::InOrder, run: stop_reading_stdin },
    Tool { name: "close_stdout", about: "Closes stdout without answering and goes on running.", parameters: &[], runs: Runs::InOrder, run: close_stdout },
];

fn flood_stderr(_: &Server, call: &Call) -> Reply {
    let (bytes, line_bytes) = flood_size(call)?;
    let written = wire::flood(&mut io::stderr().lock(), bytes, line_bytes);
    facts(&json!({"written": written}))
}

fn flood_stdout_noise(_: &Server, call: &Call) -> Reply {
    let (bytes, line_bytes) = flood_size(call)?;
    let odd: &[u8] = match call.text("kind")? {
        Some("blank") => b"\n",
        Some("json") => {
            b"{\"level\":\"info\"}\n[]\n42\nnull\n\"text\"\n{\"jsonrpc\":\"2.0\"}\n{\"id\":null}\n"
        }
        _ => {
            let written = wire::hold(|out| Ok(wire::flood(out, bytes, line_bytes)));
            return facts(&json!({"written": written}));
        }
    };
    let times = bytes.div_ceil(odd.len() as u64);
    wire::hold(|out| (0..times).try_for_each(|_| out.write_all(odd)));
    facts(&json!({"written": times * odd.len() as u64}))
}

fn flood_size(call: &Call) -> Result<(u64, u64), RpcError> {
    let bytes = call.count("bytes")?.unwrap_or(FLOOD_BYTES_DEFAULT);
    Ok((bytes, call.count("line_bytes")?.unwrap_or(FLOOD_LINE_BYTES)))
}

fn notify(server: &Server, call: &Call) -> Reply {
    let method = call.text("method")?.unwrap_or(LIST_CHANGED);
    let count = call.count("count")?.unwrap_or(1);
    (0..count).for_each(|_| server.say(&notification(method, call.any("params"))));
    facts(&json!({"sent": count}))
}

fn notification(method: &str, params: Option<&Value>) -> Vec<u8> {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let Some(params) = params {
        message["params"] = params.clone();
    }
    wire::line(&message)
}

fn progress(server: &Server, call: &Call) -> Reply {
    let steps = call.count("steps")?.unwrap_or(3);
    let Some(token) = &call.progress_token else { return facts(&json!({"sent": 0})) };
    for step in 1..=steps {
        let params = json!({"progressToken": token, "progress": step, "total": steps});
        server.say(&notification("notifications/progress", Some(&params)));
    }
    facts(&json!({"sent": steps}))
}

fn add_tools(server: &Server, call: &Call) -> Reply {
    server.fillers_added.fetch_add(call.count("count")?.unwrap_or(1), Ordering::Relaxed);
    server.say(&notification(LIST_CHANGED, None));
    facts(&json!({"fillers": server.fillers().len()}))
}

fn ask(server: &Server, call: &Call) -> Reply {
    let method = needed("method", call.text("method")?)?;
    let patience = call.milliseconds("ms")?.unwrap_or(ASK_PATIENCE);
    let id = call.any("id").cloned().unwrap_or_else(|| server.next_question_id());
    let mut question = json!({"jsonrpc": "2.0", "id": id, "method": method});
    if let Some(params) = call.any("params") {
        question["params"] = params.clone();
    }
    let (waiter, answer) = sync_channel(1);
    lock(&server.questions).insert(id.to_string(), waiter);
    server.say(&wire::line(&question));
    let came_back = answer.recv_timeout(patience).ok();
    lock(&server.questions).remove(&id.to_string());
    facts(&json!({"came_back": came_back}))
}

fn stop_reading_stdin(server: &Server, call: &Call) -> Reply {
    *lock(&server.reading) = call.milliseconds("ms")?.map_or(Reading::StopForEver, Reading::StopFor);
    Ok(Answer::Result(text_result("not reading")))
}

fn close_stdout(_: &Server, _: &Call) -> Reply {
    // Putting another file in its place closes it for whoever reads the other end.
    File::options()
        .write(true)
        .open("/dev/null")
        .and_then(|null| Ok(rustix::stdio::dup2_stdout(null)?))
        .map(|()| Answer::Taken)
        .map_err(|error| RpcError::new(wire::SERVER_ERROR, format!("could not close stdout: {error}")))
}
