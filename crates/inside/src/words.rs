//! What can be said: a [`Deed`] first, [`Order`]s after it, and [`Word`]s in return.

use crate::codec::{Garbled, Reader, Writer, frame};
use crate::{FRAME_BYTES_MAX, VERSION};

const PING: u8 = b'P';
const RUN: u8 = b'R';
const OWN: u8 = b'O';
const WIPE: u8 = b'W';

const STDIN: u8 = b'I';
const CLOSE_STDIN: u8 = b'C';
const RESIZE: u8 = b'Z';
const END: u8 = b'E';

const PONG: u8 = b'p';
const STARTED: u8 = b's';
const REFUSED: u8 = b'r';
const STDOUT: u8 = b'1';
const STDERR: u8 = b'2';
const TAKEN: u8 = b't';
const ENDED: u8 = b'e';
const DONE: u8 = b'd';

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Says that the helper is there.
    Ping,
    Run(Run),
    /// Gives whatever is below this directory, and the directory, to somebody who does not own it yet.
    Own {
        path: Vec<u8>,
        uid: u32,
        gid: u32,
    },
    /// Empties this directory.
    Wipe {
        path: Vec<u8>,
    },
}

/// A command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub argv: Vec<Vec<u8>>,
    /// Added to what the container has.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the container starts, if not told.
    pub workdir: Option<Vec<u8>>,
    pub terminal: Option<Size>,
    pub stdin: bool,
    /// Whom it runs as, if not the container's own user.
    pub user: Option<(u32, u32)>,
}

/// Of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// What Cofer says while a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order<'a> {
    Stdin(&'a [u8]),
    CloseStdin,
    Resize(Size),
    /// SIGTERM to the whole tree, this grace, then SIGKILL.
    End {
        grace_ms: u32,
    },
}

/// What the helper says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    Pong,
    Started,
    Refused(Reason, String),
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    /// So many bytes of stdin have found their reader, or never will.
    Taken(u32),
    Ended(End),
    /// Of a deed that is not a command: how much was done, and how much could not be.
    Done {
        changed: u32,
        failed: u32,
    },
}

/// Why a request came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no such program, or no such directory.
    NotFound,
    /// It may not be done, or is no program.
    NotAllowed,
    /// This helper does not know what was asked.
    NotUnderstood,
    Failed,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By itself, or by somebody's signal.
    Exited,
    /// Was asked, and its whole tree ended within the grace.
    Terminated,
    /// Was asked, and something of its tree had to be killed.
    Killed,
}

impl Deed {
    pub fn frame(&self) -> Vec<u8> {
        let writer = Writer::default().byte(VERSION);
        match self {
            Self::Ping => frame(PING, &writer.done()),
            Self::Run(run) => frame(RUN, &run.write(writer).done()),
            Self::Own { path, uid, gid } => frame(OWN, &writer.bytes(path).number(*uid).number(*gid).done()),
            Self::Wipe { path } => frame(WIPE, &writer.bytes(path).done()),
        }
    }

    pub fn parse(kind: u8, payload: &[u8]) -> Result<Self, Garbled> {
        let mut reader = Reader(payload);
        if reader.byte()? != VERSION {
            return Err(Garbled);
        }
        let deed = match kind {
            PING => Self::Ping,
            RUN => Self::Run(Run::read(&mut reader)?),
            OWN => Self::Own { path: reader.bytes()?.to_vec(), uid: reader.number()?, gid: reader.number()? },
            WIPE => Self::Wipe { path: reader.bytes()?.to_vec() },
            _ => return Err(Garbled),
        };
        reader.finish(deed)
    }
}

impl Run {
    fn write(&self, writer: Writer) -> Writer {
        writer
            .each(&self.argv, |writer, part| writer.bytes(part))
            .each(&self.environment, |writer, (name, value)| writer.bytes(name).bytes(value))
            .perhaps(self.workdir.as_ref(), |writer, path| writer.bytes(path))
            .perhaps(self.terminal, |writer, size| writer.short(size.rows).short(size.columns))
            .byte(u8::from(self.stdin))
            .perhaps(self.user, |writer, (uid, gid)| writer.number(uid).number(gid))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Garbled> {
        Ok(Self {
            argv: reader.each(|reader| Ok(reader.bytes()?.to_vec()))?,
            environment: reader.each(|reader| Ok((reader.bytes()?.to_vec(), reader.bytes()?.to_vec())))?,
            workdir: reader.perhaps(|reader| Ok(reader.bytes()?.to_vec()))?,
            terminal: reader.perhaps(Size::read)?,
            stdin: reader.flag()?,
            user: reader.perhaps(|reader| Ok((reader.number()?, reader.number()?)))?,
        })
    }
}

impl Size {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Garbled> {
        Ok(Self { rows: reader.short()?, columns: reader.short()? })
    }
}

impl<'a> Order<'a> {
    pub fn frame(&self) -> Vec<u8> {
        let writer = Writer::default();
        match self {
            Self::Stdin(bytes) => frame(STDIN, bytes),
            Self::CloseStdin => frame(CLOSE_STDIN, &[]),
            Self::Resize(size) => frame(RESIZE, &writer.short(size.rows).short(size.columns).done()),
            Self::End { grace_ms } => frame(END, &writer.number(*grace_ms).done()),
        }
    }

    pub fn parse(kind: u8, payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut reader = Reader(payload);
        let order = match kind {
            STDIN => return Ok(Self::Stdin(reader.rest())),
            CLOSE_STDIN => Self::CloseStdin,
            RESIZE => Self::Resize(Size::read(&mut reader)?),
            END => Self::End { grace_ms: reader.number()? },
            _ => return Err(Garbled),
        };
        reader.finish(order)
    }
}

impl<'a> Word<'a> {
    /// The kinds of frames that are output alone, for whoever writes their heads by hand.
    pub const STDOUT: u8 = STDOUT;
    pub const STDERR: u8 = STDERR;

    pub fn frame(&self) -> Vec<u8> {
        let writer = Writer::default();
        match self {
            Self::Pong => frame(PONG, &[]),
            Self::Started => frame(STARTED, &[]),
            Self::Refused(reason, text) => {
                let text = &text.as_bytes()[..text.len().min(FRAME_BYTES_MAX / 2)];
                frame(REFUSED, &writer.byte(*reason as u8).bytes(text).done())
            }
            Self::Stdout(bytes) => frame(STDOUT, bytes),
            Self::Stderr(bytes) => frame(STDERR, bytes),
            Self::Taken(bytes) => frame(TAKEN, &writer.number(*bytes).done()),
            Self::Ended(end) => {
                let number = |writer: Writer, number: i32| writer.number(number.cast_unsigned());
                let writer = writer.perhaps(end.code, number).perhaps(end.signal, number);
                frame(ENDED, &writer.byte(end.how as u8).done())
            }
            Self::Done { changed, failed } => frame(DONE, &writer.number(*changed).number(*failed).done()),
        }
    }

    pub fn parse(kind: u8, payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut reader = Reader(payload);
        let word = match kind {
            STDOUT => return Ok(Self::Stdout(reader.rest())),
            STDERR => return Ok(Self::Stderr(reader.rest())),
            PONG => Self::Pong,
            STARTED => Self::Started,
            REFUSED => {
                let reason = Reason::read(reader.byte()?)?;
                Self::Refused(reason, String::from_utf8_lossy(reader.bytes()?).into_owned())
            }
            TAKEN => Self::Taken(reader.number()?),
            ENDED => {
                let number = |reader: &mut Reader<'_>| reader.number().map(u32::cast_signed);
                let (code, signal) = (reader.perhaps(number)?, reader.perhaps(number)?);
                Self::Ended(End { code, signal, how: How::read(reader.byte()?)? })
            }
            DONE => Self::Done { changed: reader.number()?, failed: reader.number()? },
            _ => return Err(Garbled),
        };
        reader.finish(word)
    }
}

impl Reason {
    fn read(byte: u8) -> Result<Self, Garbled> {
        let all = [Self::NotFound, Self::NotAllowed, Self::NotUnderstood, Self::Failed];
        all.into_iter().find(|reason| *reason as u8 == byte).ok_or(Garbled)
    }
}

impl How {
    fn read(byte: u8) -> Result<Self, Garbled> {
        let all = [Self::Exited, Self::Terminated, Self::Killed];
        all.into_iter().find(|how| *how as u8 == byte).ok_or(Garbled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER_BYTES, parse_header};

    fn parts(frame: &[u8]) -> (u8, &[u8]) {
        let (kind, length) = parse_header(frame, true).unwrap().unwrap();
        assert_eq!(frame.len(), HEADER_BYTES + length);
        (kind, &frame[HEADER_BYTES..])
    }

    fn deeds() -> Vec<Deed> {
        let run = Run {
            argv: vec![b"sh".to_vec(), b"-c".to_vec(), vec![0xff, b' ']],
            environment: vec![(b"A".to_vec(), b"=b\n".to_vec())],
            workdir: Some(b"/workdir".to_vec()),
            terminal: Some(Size { rows: 24, columns: 80 }),
            stdin: true,
            user: Some((1000, 100)),
        };
        vec![
            Deed::Ping,
            Deed::Run(run),
            Deed::Run(Run::default()),
            Deed::Own { path: b"/workdir".to_vec(), uid: 1, gid: u32::MAX },
            Deed::Wipe { path: b"/workdir".to_vec() },
        ]
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        for deed in deeds() {
            let frame = deed.frame();
            let (kind, payload) = parts(&frame);
            assert_eq!(Deed::parse(kind, payload), Ok(deed));
        }
        let size = Size { rows: 1, columns: u16::MAX };
        for order in [Order::Stdin(b"x"), Order::CloseStdin, Order::Resize(size), Order::End { grace_ms: 7 }]
        {
            let frame = order.frame();
            let (kind, payload) = parts(&frame);
            assert_eq!(Order::parse(kind, payload), Ok(order));
        }
        let end = End { code: Some(-1), signal: None, how: How::Killed };
        for word in [
            Word::Pong,
            Word::Started,
            Word::Refused(Reason::NotFound, "no".to_owned()),
            Word::Stdout(b"out"),
            Word::Stderr(b""),
            Word::Taken(3),
            Word::Ended(end),
            Word::Done { changed: 1, failed: 2 },
        ] {
            let frame = word.frame();
            let (kind, payload) = parts(&frame);
            assert_eq!(Word::parse(kind, payload), Ok(word));
        }
    }

    #[test]
    fn what_is_cut_or_goes_on_too_long_is_not_understood() {
        for deed in deeds() {
            let frame = deed.frame();
            let (kind, payload) = parts(&frame);
            for length in 0..payload.len() {
                assert_eq!(Deed::parse(kind, &payload[..length]), Err(Garbled), "{deed:?} {length}");
            }
            assert_eq!(Deed::parse(kind, &[payload, b"x"].concat()), Err(Garbled));
        }
    }

    #[test]
    fn one_that_promises_too_much_is_not_believed() {
        assert_eq!(parse_header(&[RUN, 0xff, 0xff, 0xff, 0xff], true), Err(Garbled));
        assert_eq!(parse_header(&[STDOUT, 0, 1, 0, 1], false), Err(Garbled));
        assert_eq!(parse_header(&[STDOUT, 0, 1, 0], false), Ok(None));
        let many = [&[VERSION][..], &u32::MAX.to_be_bytes()].concat();
        assert_eq!(Deed::parse(RUN, &many), Err(Garbled));
    }
}
