//! `cofer env terminal` on a real pseudo-terminal, as a person has one in front of them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cofer_testkit::until_seen;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use tokio::process::Child;

use super::by_hand::signal;
use super::{Place, on_each_engine};

on_each_engine!(
    a_shell_on_a_terminal_from_prompt_to_ctrl_d,
    a_terminal_that_is_ended_from_outside_is_given_back,
    a_terminal_that_goes_away_takes_its_shell_along,
);

/// The shell asks where the cursor is when it listens: what is typed sooner may be taken for the line of another.
const PROMPT: &str = "/workdir # \x1b[6n";

/// A person at a terminal that runs `cofer env terminal`.
struct Person {
    child: Child,
    keyboard: File,
    /// The other side, which says what modes the terminal is in.
    line: Option<File>,
    screen: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Person {
    fn sits_down(place: &Place, id: &str) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let keyboard = File::from(ours);
        size(&keyboard, 24, 80);
        let line = File::options().read(true).write(true).open(name).unwrap();
        let cofer = place.start.command(&["env", "terminal", id, "-C", place.source()]);
        let cofer = cofer.as_std();
        // A session of its own, whose terminal it is: who resizes it tells the session so.
        let mut command = tokio::process::Command::new("setsid");
        command.arg("--ctty").arg(cofer.get_program()).args(cofer.get_args()).env_clear();
        command.envs(cofer.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "vt100");
        let end = || Stdio::from(line.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).kill_on_drop(true).spawn().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut shown, seen) = (keyboard.try_clone().unwrap(), screen.clone());
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // When nobody has the other side any more, that is an error.
            while let Ok(length @ 1..) = shown.read(&mut buffer) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Self { child, keyboard, line: Some(line), screen, reading }
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is on the screen; what was there goes.
    async fn sees(&self, text: &str) -> String {
        until_seen(text, async || {
            let mut screen = self.screen.lock().unwrap();
            if screen.contains(text) { Ok(std::mem::take(&mut *screen)) } else { Err(screen.clone()) }
        })
        .await
    }

    fn modes(&self) -> String {
        format!("{:?}", tcgetattr(self.line.as_ref().unwrap()).unwrap())
    }

    async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(Duration::from_mins(1), self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it goes on: {}", self.screen.lock().unwrap())).unwrap().code()
    }

    fn leaves(mut self) {
        self.line = None;
        self.reading.join().unwrap();
    }
}

fn size(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

async fn a_shell_on_a_terminal_from_prompt_to_ctrl_d(place: Place) {
    place.made("here").await;
    let mut person = Person::sits_down(&place, "here");
    let modes = person.modes();
    person.sees(PROMPT).await;
    assert_ne!(person.modes(), modes, "what is typed goes in as it is typed");
    person.types("stty size; echo type $TERM\n");
    let seen = person.sees(PROMPT).await;
    assert!(seen.contains("24 80") && seen.contains("type vt100"), "{seen:?}");
    size(&person.keyboard, 40, 101);
    until_seen("the new size", async || {
        person.keyboard.try_clone().unwrap().write_all(b"stty size\n").unwrap();
        let seen = person.sees(PROMPT).await;
        if seen.contains("40 101") { Ok(()) } else { Err(seen) }
    })
    .await;
    // Ctrl-C is for what runs inside.
    person.types("echo be''gun; sleep 1000; echo woken\n");
    person.sees("begun\r\n").await;
    person.types("\x03");
    person.sees(PROMPT).await;
    person.types("echo 'of a person \u{fc}\u{6f22}' > typed.txt\n");
    person.sees(PROMPT).await;
    person.types("\x04");
    assert_eq!(person.ended().await, Some(0));
    assert_eq!(person.modes(), modes, "the terminal is as it was");
    person.sees("of cofer/here").await;
    person.leaves();
    assert_eq!(place.git(&["show", "cofer/here:typed.txt"]), "of a person \u{fc}\u{6f22}");
    let mut person = Person::sits_down(&place, "here");
    person.sees(PROMPT).await;
    person.types("exit 7\n");
    assert_eq!(person.ended().await, Some(7), "the exit code of the shell is ours");
    person.leaves();
    place.cleared().await;
}

async fn a_terminal_that_is_ended_from_outside_is_given_back(place: Place) {
    place.made("here").await;
    for ending in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut person = Person::sits_down(&place, "here");
        let modes = person.modes();
        person.sees(PROMPT).await;
        let number = ending.as_raw().to_string();
        person.types(&format!("echo {number} > signal.txt; sleep 31337\n"));
        let file = place.path.join(".cofer/worktrees/here/signal.txt");
        until_seen("the command runs", async || {
            let written = std::fs::read_to_string(&file).unwrap_or_default();
            if written.trim() == number {
                Ok(())
            } else {
                Err(format!("{written}; on the screen: {:?}", person.screen.lock().unwrap()))
            }
        })
        .await;
        signal(&person.child, ending);
        let code = person.ended().await;
        assert!(code.is_some_and(|code| code != 0), "{ending:?}: {code:?}");
        assert_eq!(person.modes(), modes, "{ending:?}");
        person.leaves();
        assert_eq!(place.git(&["show", "cofer/here:signal.txt"]), number, "it is committed");
        nothing_sleeps(&place).await;
    }
    place.cleared().await;
}

async fn a_terminal_that_goes_away_takes_its_shell_along(place: Place) {
    place.made("here").await;
    let mut person = Person::sits_down(&place, "here");
    person.sees(PROMPT).await;
    person.types("echo last > last.txt; sleep 31337\n");
    let file = place.path.join(".cofer/worktrees/here/last.txt");
    cofer_testkit::until("the command runs", async || file.exists()).await;
    // SIGKILL: nobody is there to end it, and the helper inside finds out by itself.
    signal(&person.child, Signal::KILL);
    person.ended().await;
    person.leaves();
    nothing_sleeps(&place).await;
    // The next command commits what the other left.
    assert_eq!(place.git(&["show", "cofer/here:last.txt"]), "last");
    place.cleared().await;
}

async fn nothing_sleeps(place: &Place) {
    until_seen("nothing of it runs inside", async || {
        let processes = place.run_in("here", "ps -o args").await;
        if processes.contains("sleep 31337") { Err(processes) } else { Ok(()) }
    })
    .await;
}
