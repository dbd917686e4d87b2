//! What a background command said: the newest of it, in two files of bounded length that take turns. Each begins with its place in the order of
//! all that were begun, so that whoever reads them knows which is older.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use cofer_inside::{LOG_BYTES_MAX, LOGS};
use rustix::fs::{Mode, OFlags};

pub struct Log {
    files: [File; 2],
    /// How many were begun.
    begun: u64,
    /// Of the one that is being written.
    length: usize,
}

impl Log {
    pub fn begin(channel: &Path) -> io::Result<Self> {
        let open = |name| -> io::Result<File> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
            Ok(rustix::fs::open(channel.join(name), flags, mode)?.into())
        };
        let mut log = Self { files: [open(LOGS[0])?, open(LOGS[1])?], begun: 0, length: 0 };
        log.begin_next()?;
        Ok(log)
    }

    /// What cannot be written is lost; the command goes on.
    pub fn note(&mut self, said: &[u8]) {
        for piece in said.chunks(LOG_BYTES_MAX) {
            let (before, after) = piece.split_at(piece.len().min(LOG_BYTES_MAX - self.length));
            self.write(before);
            if !after.is_empty() {
                let _ = self.begin_next();
                self.write(after);
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.current().write_all(bytes);
        self.length += bytes.len();
    }

    fn begin_next(&mut self) -> io::Result<()> {
        self.begun += 1;
        self.length = 0;
        let begun = self.begun;
        let file = self.current();
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&begun.to_be_bytes())
    }

    fn current(&mut self) -> &mut File {
        &mut self.files[usize::from(self.begun.is_multiple_of(2))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_take_turns_and_stay_short() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::begin(directory.path()).unwrap();
        let line = [b'x'; 1000];
        for _ in 0..1000 {
            log.note(&line);
        }
        log.note(b"last");
        let files = LOGS.map(|name| std::fs::read(directory.path().join(name)).unwrap());
        let newest = files.iter().max_by_key(|file| file[..8].to_vec()).unwrap();
        assert!(newest.ends_with(b"last"));
        let oldest = files.iter().min_by_key(|file| file[..8].to_vec()).unwrap();
        assert_eq!(oldest.len(), LOG_BYTES_MAX + 8);
        assert!(newest.len() <= LOG_BYTES_MAX + 8);
        log.note(&vec![b'y'; 3 * LOG_BYTES_MAX]);
        assert!(LOGS.iter().all(|name| {
            std::fs::metadata(directory.path().join(name)).unwrap().len() <= LOG_BYTES_MAX as u64 + 8
        }));
    }
}
