//! What a server can do to the machine it runs on: memory, processor, disk, files, environment, network.
//!
//! A refusal by the system is the interesting part of these, so it is a fact in the answer (`failure`, with
//! `errno`), not an error.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hint;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Call, Reply, facts, needed};
use crate::catalogue::{Runs, Tool, count, switch, text};
use crate::sleeper::describe;
use crate::state::{Server, lock};

const CHUNK_BYTES: u64 = 1 << 20;
const READ_BYTES_MAX: u64 = 1 << 20;
const BURN_DEFAULT: Duration = Duration::from_secs(1);
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "eat_memory", about: "Takes `bytes` bytes of memory, touches them and never gives them back.", parameters: &[count("bytes", "how many").required()], runs: Runs::Aside, run: eat_memory },
    Tool { name: "burn_cpu", about: "Keeps `threads` threads busy for `ms`, then answers.", parameters: &[count("ms", "how long (1000)"), count("threads", "how many (1)")], runs: Runs::Aside, run: burn_cpu },
    Tool { name: "fill_disk", about: "Writes `bytes` bytes to `path` as far as it is let.", parameters: &[text("path", "the file").required(), count("bytes", "how many").required(), switch("remove", "remove the file afterwards (false)")], runs: Runs::Aside, run: fill_disk },
    Tool { name: "env", about: "Answers with its environment.", parameters: &[], runs: Runs::InOrder, run: env },
    Tool { name: "read_file", about: "Answers with the first MiB of a file.", parameters: &[text("path", "the file").required()], runs: Runs::Aside, run: read_file },
    Tool { name: "write_file", about: "Writes a file.", parameters: &[text("path", "the file").required(), text("text", "what is in it (nothing)")], runs: Runs::Aside, run: write_file },
    Tool { name: "connect", about: "Tries to open a TCP connection.", parameters: &[text("address", "number:port; a bare image resolves no names").required(), count("ms", "how long to try (3000)")], runs: Runs::Aside, run: connect },
];

fn eat_memory(server: &Server, call: &Call) -> Reply {
    let mut left = needed("bytes", call.count("bytes")?)?;
    let mut failure = Value::Null;
    while left > 0 {
        let bytes = usize::try_from(left.min(CHUNK_BYTES)).unwrap_or_default();
        let mut chunk = Vec::new();
        if let Err(error) = chunk.try_reserve_exact(bytes) {
            failure = json!({"errno": null, "message": error.to_string()});
            break;
        }
        // Not zeroes: those cost nothing until they are touched.
        chunk.resize(bytes, 0xa5u8);
        lock(&server.hoard).push(chunk);
        left -= bytes as u64;
    }
    let held: usize = lock(&server.hoard).iter().map(Vec::len).sum();
    facts(&json!({"held": held, "failure": failure}))
}

fn burn_cpu(_: &Server, call: &Call) -> Reply {
    let end = Instant::now() + call.milliseconds("ms")?.unwrap_or(BURN_DEFAULT);
    let burn = move || {
        let mut turns = 0u64;
        while Instant::now() < end {
            turns = hint::black_box(turns + 1);
        }
        turns
    };
    let others: Vec<_> = (1..call.count("threads")?.unwrap_or(1))
        .filter_map(|_| thread::Builder::new().spawn(burn).ok())
        .collect();
    let turns = burn() + others.into_iter().filter_map(|other| other.join().ok()).sum::<u64>();
    facts(&json!({"turns": turns}))
}

fn fill_disk(_: &Server, call: &Call) -> Reply {
    let path = needed("path", call.text("path")?)?;
    let bytes = needed("bytes", call.count("bytes")?)?;
    let mut written = 0;
    let outcome = File::create(path).and_then(|mut file| {
        let chunk = vec![0xa5; usize::try_from(CHUNK_BYTES).unwrap_or_default()];
        while written < bytes {
            let length = (bytes - written).min(CHUNK_BYTES);
            written += file.write(&chunk[..usize::try_from(length).unwrap_or_default()])? as u64;
        }
        file.sync_all()
    });
    let removal = if call.switch("remove")? { fs::remove_file(path) } else { Ok(()) };
    facts(&json!({"written": written, "failure": failure(&outcome), "removal_failure": failure(&removal)}))
}

fn env(_: &Server, _: &Call) -> Reply {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let environment: BTreeMap<_, _> =
        std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect();
    facts(&json!({"env": environment}))
}

fn read_file(_: &Server, call: &Call) -> Reply {
    let path = needed("path", call.text("path")?)?;
    let mut bytes = Vec::new();
    let outcome = File::open(path).and_then(|file| file.take(READ_BYTES_MAX).read_to_end(&mut bytes));
    facts(&json!({"text": String::from_utf8_lossy(&bytes), "failure": failure(&outcome)}))
}

fn write_file(_: &Server, call: &Call) -> Reply {
    let path = needed("path", call.text("path")?)?;
    let outcome = fs::write(path, call.text("text")?.unwrap_or_default());
    facts(&json!({"failure": failure(&outcome)}))
}

fn connect(_: &Server, call: &Call) -> Reply {
    let address = needed("address", call.text("address")?)?;
    let patience = call.milliseconds("ms")?.unwrap_or(CONNECT_PATIENCE);
    let outcome = address.to_socket_addrs().and_then(|mut addresses| {
        let first = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        TcpStream::connect_timeout(&first, patience)
    });
    facts(&json!({"connected": outcome.is_ok(), "failure": failure(&outcome)}))
}

fn failure<T>(outcome: &io::Result<T>) -> Value {
    outcome.as_ref().err().map_or(Value::Null, describe)
}
