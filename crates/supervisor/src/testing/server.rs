//! A small server that does as the method it is called with says.

use std::time::Duration;

use cofer_model::Moment;
use cofer_sandbox::{Exit, ExitCause};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

/// How servers of this engine behave from their start on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manners {
    /// It passes over `initialize`.
    pub ignores_greeting: bool,
    /// It answers it so much later.
    pub greets_after: Duration,
    /// It does not end when asked to.
    pub stubborn: bool,
    /// It ends by itself, so long after its start.
    pub crashes_after: Option<Duration>,
}

struct Ends {
    input: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

impl Ends {
    fn of(stream: DuplexStream) -> Self {
        let (input, output) = tokio::io::split(stream);
        Self { input: BufReader::new(input).lines(), output }
    }
}

fn exit(code: i64) -> Exit {
    Exit { code: Some(code), signal: None, cause: ExitCause::Itself, at: Moment::now() }
}

pub(super) async fn serve(
    stream: DuplexStream,
    mut attached: mpsc::Receiver<DuplexStream>,
    cut: &Notify,
    manners: &Manners,
    log: impl Fn(&str),
) -> Exit {
    let doom = async {
        match manners.crashes_after {
            Some(span) => tokio::time::sleep(span).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(doom);
    let mut ends = Some(Ends::of(stream));
    let mut mute = false;
    let mut tools = vec![json!({"name": "a"}), json!({"name": "b"})];
    log("server started");
    loop {
        let line = async {
            match &mut ends {
                Some(ends) => ends.input.next_line().await.ok().flatten(),
                None => std::future::pending().await,
            }
        };
        let line = tokio::select! {
            () = &mut doom => { log("it was my time"); return exit(3) }
            () = cut.notified() => { ends = None; continue }
            Some(stream) = attached.recv() => { ends = Some(Ends::of(stream)); continue }
            line = line => line,
        };
        // Nobody is attached any more; somebody may be again.
        let Some(line) = line else {
            ends = None;
            continue;
        };
        let Ok(asked) = serde_json::from_str::<Value>(&line) else { continue };
        let answer = match asked["method"].as_str().unwrap_or_default() {
            "initialize" if manners.ignores_greeting => continue,
            "initialize" => {
                tokio::time::sleep(manners.greets_after).await;
                json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "fake"}, "capabilities": {}})
            }
            "tools/list" => json!({"tools": tools}),
            "learn" => {
                tools.push(json!({"name": "c"}));
                let changed = json!({"method": "notifications/tools/list_changed"});
                if let Some(ends) = &mut ends {
                    let _ = ends.output.write_all(format!("{changed}\n").as_bytes()).await;
                }
                json!({})
            }
            "echo" => asked["params"].clone(),
            "sleep" => {
                tokio::time::sleep(Duration::from_millis(asked["params"].as_u64().unwrap())).await;
                json!("slept")
            }
            "mute" => {
                mute = true;
                continue;
            }
            "speak" => {
                mute = false;
                json!("well")
            }
            "crash" => {
                log("about to crash");
                return exit(asked["params"].as_i64().unwrap_or(1));
            }
            "close_stdout" => {
                ends = None;
                continue;
            }
            "hang" => continue,
            method if method.starts_with("notifications/") => continue,
            _ => json!({}),
        };
        if mute && asked["method"] != "speak" {
            continue;
        }
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer});
        if let Some(ends) = &mut ends {
            let _ = ends.output.write_all(format!("{answer}\n").as_bytes()).await;
        }
    }
}
