//! How it is told to misbehave from the start. One table is both the parser and the help.

use std::fmt::Write as _;
use std::path::PathBuf;

pub(crate) const STDERR_FLOOD_BYTES: u64 = 8 << 20;
pub(crate) const FLOOD_LINE_BYTES: u64 = 120;

/// What the command line says. The default is a well-behaved server.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one per switch on the command line, each read in one place"
)]
pub(crate) struct Flags {
    pub(crate) children: u64,
    pub(crate) crash_after_calls: Option<u64>,
    pub(crate) crash_after_ms: Option<u64>,
    pub(crate) detached_children: u64,
    pub(crate) endless_pages: bool,
    pub(crate) exit_at_start: Option<u8>,
    pub(crate) exit_code: u8,
    pub(crate) exit_on_early_request: bool,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_ping: bool,
    pub(crate) ignore_sigterm: bool,
    pub(crate) initialize_version: Option<String>,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) mute_after_calls: Option<u64>,
    pub(crate) no_initialize: bool,
    pub(crate) only_fillers: bool,
    pub(crate) page_size: Option<usize>,
    pub(crate) ping_error: bool,
    pub(crate) serial: bool,
    pub(crate) server_name: String,
    pub(crate) sigterm_delay_ms: u64,
    pub(crate) silent: bool,
    pub(crate) silent_list: bool,
    pub(crate) slow_initialize_ms: u64,
    pub(crate) slow_start_ms: u64,
    pub(crate) stderr_flood_at_start: bool,
    pub(crate) stderr_line: Option<String>,
    pub(crate) strict_handshake: bool,
    pub(crate) tool_names: Vec<String>,
    pub(crate) tools: u64,
}

pub(crate) enum Asked {
    Help,
    Serve(Box<Flags>),
}

enum Takes {
    Nothing(fn(&mut Flags)),
    Value(&'static str, fn(&mut Flags, &str) -> Result<(), String>),
}
use Takes::{Nothing, Value};

struct Flag {
    name: &'static str,
    takes: Takes,
    help: &'static str,
}

const fn flag(name: &'static str, takes: Takes, help: &'static str) -> Flag {
    Flag { name, takes, help }
}

#[rustfmt::skip]
const FLAGS: &[Flag] = &[
    flag("--server-name", Value("NAME", |f, v| { v.clone_into(&mut f.server_name); Ok(()) }), "the name it gives in `initialize` and in the answers of filler tools"),
    flag("--journal", Value("FILE", |f, v| { f.journal = Some(v.into()); Ok(()) }), "append one JSON line per message received, so that what arrived is known after a crash"),
    // Starting.
    flag("--slow-start-ms", Value("N", |f, v| set(&mut f.slow_start_ms, v)), "wait before reading anything"),
    flag("--exit-at-start", Value("CODE", |f, v| set_some(&mut f.exit_at_start, v)), "exit with CODE before reading anything"),
    flag("--stderr-line", Value("TEXT", |f, v| { f.stderr_line = Some(v.to_owned()); Ok(()) }), "write this line to stderr first"),
    flag("--stderr-flood-at-start", Nothing(|f| f.stderr_flood_at_start = true), "write 8 MiB to stderr first"),
    flag("--children", Value("N", |f, v| set(&mut f.children, v)), "start N children that sleep"),
    flag("--detached-children", Value("N", |f, v| set(&mut f.detached_children, v)), "start N children in sessions of their own that ignore SIGTERM and sleep"),
    // The handshake.
    flag("--no-initialize", Nothing(|f| f.no_initialize = true), "answer `initialize` with -32601; tools work without it"),
    flag("--initialize-version", Value("VERSION", |f, v| { f.initialize_version = Some(v.to_owned()); Ok(()) }), "answer `initialize` with this protocol version, whatever was asked for"),
    flag("--slow-initialize-ms", Value("N", |f, v| set(&mut f.slow_initialize_ms, v)), "wait before answering `initialize`"),
    flag("--strict-handshake", Nothing(|f| f.strict_handshake = true), "refuse everything but `initialize` and `ping` until `notifications/initialized` came"),
    flag("--exit-on-early-request", Nothing(|f| f.exit_on_early_request = true), "exit with --exit-code when a request comes before `initialize`, as some old servers do"),
    // Answering.
    flag("--silent", Nothing(|f| f.silent = true), "read everything, never answer anything"),
    flag("--mute-after-calls", Value("N", |f, v| set_some(&mut f.mute_after_calls, v)), "answer N tool calls, then never anything again"),
    flag("--ignore-ping", Nothing(|f| f.ignore_ping = true), "never answer `ping`"),
    flag("--ping-error", Nothing(|f| f.ping_error = true), "answer `ping` with -32601"),
    flag("--serial", Nothing(|f| f.serial = true), "read nothing more until a call was answered, as a simple script would"),
    // The list of tools.
    flag("--tools", Value("N", |f, v| set(&mut f.tools, v)), "list N filler tools besides (filler_0001 …)"),
    flag("--tool-name", Value("NAME", |f, v| { f.tool_names.push(v.to_owned()); Ok(()) }), "list a filler tool of this name besides; may be repeated"),
    flag("--only-fillers", Nothing(|f| f.only_fillers = true), "list the filler tools alone"),
    flag("--page-size", Value("K", |f, v| set_some(&mut f.page_size, v)), "list K tools per page"),
    flag("--silent-list", Nothing(|f| f.silent_list = true), "never answer `tools/list`"),
    flag("--endless-pages", Nothing(|f| f.endless_pages = true), "follow the last page with the first one, for ever"),
    // Ending.
    flag("--crash-after-calls", Value("N", |f, v| set_some(&mut f.crash_after_calls, v)), "answer N tool calls, then exit with --exit-code"),
    flag("--crash-after-ms", Value("N", |f, v| set_some(&mut f.crash_after_ms, v)), "exit with --exit-code after N milliseconds"),
    flag("--exit-code", Value("CODE", |f, v| set(&mut f.exit_code, v)), "the exit code of crashes (1)"),
    flag("--ignore-sigterm", Nothing(|f| f.ignore_sigterm = true), "do not end on SIGTERM"),
    flag("--sigterm-delay-ms", Value("N", |f, v| set(&mut f.sigterm_delay_ms, v)), "take N milliseconds to end on SIGTERM"),
    flag("--ignore-eof", Nothing(|f| f.ignore_eof = true), "do not end when stdin does"),
];

pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut flags =
        Box::new(Flags { exit_code: 1, server_name: "misbehaving".to_owned(), ..Flags::default() });
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Ok(Asked::Help);
        }
        let flag = FLAGS.iter().find(|flag| flag.name == name).ok_or(format!("unknown flag {name}"))?;
        match flag.takes {
            Nothing(switch) => switch(&mut flags),
            Value(placeholder, store) => {
                let value = arguments.next().ok_or_else(|| format!("{name} needs {placeholder}"))?;
                store(&mut flags, &value).map_err(|wrong| format!("{name} {value}: {wrong}"))?;
            }
        }
    }
    if flags.page_size == Some(0) {
        return Err("--page-size 0: a page holds at least one tool".to_owned());
    }
    Ok(Asked::Serve(flags))
}

fn set<T: std::str::FromStr<Err = std::num::ParseIntError>>(slot: &mut T, value: &str) -> Result<(), String> {
    *slot = value.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
    Ok(())
}

fn set_some<T>(slot: &mut Option<T>, value: &str) -> Result<(), String>
where
    T: std::str::FromStr<Err = std::num::ParseIntError> + Default,
{
    set(slot.insert(T::default()), value)
}

pub(crate) fn help() -> String {
    let mut help = String::from(
        "An MCP server on stdin and stdout that misbehaves when told to.\n\n\
         Usage: misbehaving-mcp-server [FLAG]…\n\n\
         It exits with 0 on SIGTERM, on SIGINT and at the end of stdin.\n\nFlags:\n",
    );
    for Flag { name, takes, help: what } in FLAGS {
        let left = match takes {
            Nothing(_) => (*name).to_owned(),
            Value(placeholder, _) => format!("{name} {placeholder}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(help, "  {left:<30} {what}");
    }
    help
}
