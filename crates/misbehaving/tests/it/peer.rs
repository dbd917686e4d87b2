//! The other end of the pipes: the only place in these tests that starts the program and speaks JSON-RPC to it.
//!
//! Everything it waits for has a deadline. A message that nobody asked for yet is kept until somebody does.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cofer_testkit::leaks::Leaks;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

/// Longer than anything here takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// How long nothing must happen to be believed.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

pub(crate) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<Vec<u8>>,
    stdout_reader: Option<JoinHandle<()>>,
    stderr: Receiver<Vec<u8>>,
    kept: Vec<Value>,
    id_next: u64,
    /// Dropped after the child was killed: what it started must be gone with it, or the test fails.
    leaks: Option<Leaks>,
}

impl Peer {
    /// Starts the program with these flags. Most of them need no handshake.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let leaks = Leaks::watch_processes();
        let mut child = Command::new(env!("CARGO_BIN_EXE_misbehaving-mcp-server"))
            .args(flags)
            .envs([leaks.mark()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take();
        let (stdout, reader) = lines_of(child.stdout.take().expect("it was piped"));
        let (stderr, _) = lines_of(child.stderr.take().expect("it was piped"));
        Self {
            child,
            stdin,
            stdout,
            stdout_reader: Some(reader),
            stderr,
            kept: Vec::new(),
            id_next: 1,
            leaks: Some(leaks),
        }
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("the program reads");
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    /// Sends a request and returns its id.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.id_next;
        self.id_next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// The whole answer to a request.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        self.wait_for(|message| message["id"] == id && message.get("method").is_none())
    }

    /// The result of a request, which must not fail.
    pub(crate) fn result(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        let mut answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{method} failed: {answer}");
        answer["result"].take()
    }

    /// The structured content of a tool's result.
    pub(crate) fn facts(&mut self, tool: &str, arguments: &Value) -> Value {
        let mut result = self.result("tools/call", &json!({"name": tool, "arguments": arguments}));
        result["structuredContent"].take()
    }

    /// The first text of a tool's result.
    pub(crate) fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let id = self.call(tool, arguments);
        text_of(&self.answer(id))
    }

    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.text("echo", &json!({"text": "alive"})), "alive");
    }

    /// The first message, kept or to come, that is what the caller looks for.
    pub(crate) fn wait_for(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(place) = self.kept.iter().position(&wanted) {
            return self.kept.remove(place);
        }
        loop {
            let message = self.message();
            if wanted(&message) {
                return message;
            }
            self.kept.push(message);
        }
    }

    /// The next line of stdout, which must be JSON.
    pub(crate) fn message(&mut self) -> Value {
        let line = self.line();
        serde_json::from_slice(&line).unwrap_or_else(|error| {
            panic!("not JSON ({error}): {}", String::from_utf8_lossy(&line));
        })
    }

    /// The next line of stdout as it came, newline included if there was one.
    pub(crate) fn line(&mut self) -> Vec<u8> {
        self.stdout.recv_timeout(DEADLINE).expect("a line on stdout")
    }

    pub(crate) fn stderr_line(&mut self) -> String {
        let line = self.stderr.recv_timeout(DEADLINE).expect("a line on stderr");
        String::from_utf8(line).expect("stderr is text").trim_end().to_owned()
    }

    pub(crate) fn assert_quiet(&mut self) {
        match self.stdout.recv_timeout(QUIET) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("expected nothing on stdout, got {:?}", other.map(String::from_utf8)),
        }
    }

    pub(crate) fn assert_stdout_ended(&mut self) {
        let end = self.stdout.recv_timeout(DEADLINE);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    pub(crate) fn rest_of_stdout(&mut self) -> String {
        let lines = std::iter::from_fn(|| self.stdout.recv_timeout(DEADLINE).ok());
        String::from_utf8(lines.flatten().collect()).expect("stdout is text")
    }

    /// Closes this end of stdout. The reader notices that nobody listens with the next line, so it is given one.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = channel().1;
        self.request("ping", &json!({}));
        self.stdout_reader.take().expect("it is closed once").join().expect("the reader ends");
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("the program runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the program and hands over the watch on what it leaves behind.
    pub(crate) fn kill(mut self) -> Leaks {
        self.end();
        self.leaks.take().expect("it is taken once")
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn text_of(answer: &Value) -> String {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
        .to_owned()
}

/// Hands on each line as soon as it is there; the channel ends with the stream.
fn lines_of(stream: impl Read + Send + 'static) -> (Receiver<Vec<u8>>, JoinHandle<()>) {
    let (sender, receiver) = channel();
    let reader = thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.read_until(b'\n', &mut line) {
                Ok(1..) if sender.send(line).is_ok() => {}
                _ => break,
            }
        }
    });
    (receiver, reader)
}
