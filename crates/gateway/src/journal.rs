//! Calls that have ended and are not rows of the database yet, in two files of the data directory.
//!
//! Whoever makes a call has it appended to one of them, a line of JSON, before the answer goes out. That is a copy into the kernel's memory,
//! and cheap; it outlives this process, however that ends. Meanwhile rows are made of the other file, which is emptied when all of it is
//! written; then they change places. What a killed Cofer has left in either is made rows of by the next.
//!
//! Calls that end together are written together: each puts its line on the sheet, and whoever is the first to need it on disk writes the
//! whole sheet. Each line begins with a line break of its own, so that one that was cut off by a full disk spoils nobody else's.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofer_mcp::raw;
use cofer_model::{CallId, CallStatus, Moment, ProjectId, RunId, ToolCallRecord};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

const FILES: [&str; 2] = ["calls.1.jsonl", "calls.2.jsonl"];
/// What is kept of the room for lines between two writes.
const SHEET_BYTES_KEPT: usize = 64 << 10;
const BATCH_LINES_MAX: usize = 1024;
const BATCH_BYTES_MAX: u64 = 4 << 20;
const READ_BYTES: usize = 64 << 10;
/// No line of ours is longer: names, input and output are cut before, and what is escaped grows at most sixfold.
const LINE_BYTES_MAX: u64 = 2 << 20;

/// One call. In the journal it is an array of these, in this order: their names would cost as much as they do.
#[derive(Debug, Deserialize)]
pub(crate) struct Line<'a> {
    pub id: CallId,
    pub project: ProjectId,
    pub run: Option<RunId>,
    pub step: Option<i64>,
    pub tool: Cow<'a, str>,
    pub server: Cow<'a, str>,
    #[serde(borrow)]
    pub input: Option<Kept<'a>>,
    #[serde(borrow)]
    pub output: Option<Kept<'a>>,
    pub status: CallStatus,
    pub took_ms: i64,
    pub caller: Cow<'a, str>,
    pub trace: Cow<'a, str>,
    pub ended_unix_ms: i64,
}

impl Line<'_> {
    fn write(&self, to: &mut Vec<u8>) -> serde_json::Result<()> {
        to.push(b'[');
        write_id(to, self.id.0);
        write_id(to, self.project.0);
        write_value(to, &self.run)?;
        write_value(to, &self.step)?;
        write_text(to, &self.tool)?;
        write_text(to, &self.server)?;
        write_kept(to, self.input.as_ref())?;
        write_kept(to, self.output.as_ref())?;
        write_text(to, self.status.as_str())?;
        write_value(to, &self.took_ms)?;
        write_text(to, &self.caller)?;
        write_text(to, &self.trace)?;
        serde_json::to_writer(&mut *to, &self.ended_unix_ms)?;
        to.push(b']');
        Ok(())
    }
}

fn write_value(to: &mut Vec<u8>, value: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    to.push(b',');
    Ok(())
}

/// As serde would write it, without looking for what must be escaped.
fn write_id(to: &mut Vec<u8>, id: Uuid) {
    to.push(b'"');
    to.extend_from_slice(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes());
    to.extend_from_slice(b"\",");
}

/// Mostly plain, and then copied as it is.
fn write_text(to: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    if !raw::is_plain(text) {
        return write_value(to, &text);
    }
    to.push(b'"');
    to.extend_from_slice(text.as_bytes());
    to.extend_from_slice(b"\",");
    Ok(())
}

/// As serde would write it, without looking at it.
fn write_kept(to: &mut Vec<u8>, kept: Option<&Kept<'_>>) -> serde_json::Result<()> {
    let Some(Kept::Json(json)) = kept else { return write_value(to, &kept) };
    to.extend_from_slice(br#"{"json":"#);
    to.extend_from_slice(json.get().as_bytes());
    to.extend_from_slice(b"},");
    Ok(())
}

/// An input or output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept<'a> {
    /// As it came. Most are so, and then nothing of it has to be looked at.
    Json(#[serde(borrow)] &'a RawValue),
    /// Changed, or with line breaks.
    Text(String),
}

impl Kept<'_> {
    fn into_text(self) -> String {
        match self {
            Self::Json(json) => json.get().to_owned(),
            Self::Text(text) => text,
        }
    }
}

impl From<Line<'_>> for ToolCallRecord {
    fn from(line: Line<'_>) -> Self {
        Self {
            id: line.id,
            project_id: line.project,
            run_id: line.run,
            step_number: line.step,
            tool_name: line.tool.into_owned(),
            server: line.server.into_owned(),
            input: line.input.map(Kept::into_text),
            output: line.output.map(Kept::into_text),
            status: line.status,
            duration_ms: Some(line.took_ms),
            caller: Some(line.caller.into_owned()),
            trace_id: Some(line.trace.into_owned()),
            created_at: Moment::from_unix_ms(line.ended_unix_ms),
        }
    }
}

/// Where calls are appended to.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Held while it is written: who waits for that would have to wait for their own write in any case.
    pen: Mutex<Pen>,
    bytes: AtomicU64,
    /// As much was on the page when it was last turned to.
    page_bytes: AtomicU64,
}

#[derive(Debug)]
struct Pen {
    file: Arc<File>,
    /// Lines that are written next, together.
    sheet: Vec<u8>,
    /// Which sheet it is.
    number: u64,
}

/// The sheet that a line was put on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sheet(u64);

/// The file that rows are made of.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    file: Arc<File>,
    /// Up to here they are made.
    done: u64,
}

/// Some calls of a page.
#[derive(Debug)]
pub(crate) struct Batch {
    pub records: Vec<ToolCallRecord>,
    /// Where the next one begins.
    end: u64,
}

impl Journal {
    /// Both files, made if they are not there.
    pub(crate) fn open(dir: &Path) -> io::Result<(Self, Page)> {
        let open =
            |name| OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(dir.join(name));
        let (file, other) = (open(FILES[0])?, open(FILES[1])?);
        let bytes = file.metadata()?.len().into();
        let page_bytes = other.metadata()?.len().into();
        let pen = Pen { file: file.into(), sheet: Vec::new(), number: 0 };
        Ok((Self { pen: pen.into(), bytes, page_bytes }, Page { file: other.into(), done: 0 }))
    }

    fn pen(&self) -> MutexGuard<'_, Pen> {
        self.pen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much waits to become rows, besides the page.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Puts it on the sheet that is written next.
    pub(crate) fn put(&self, line: &Line<'_>) -> serde_json::Result<Sheet> {
        let mut pen = self.pen();
        let before = pen.sheet.len();
        pen.sheet.push(b'\n');
        if let Err(error) = line.write(&mut pen.sheet) {
            pen.sheet.truncate(before);
            return Err(error);
        }
        pen.sheet.push(b'\n');
        Ok(Sheet(pen.number))
    }

    /// Writes this sheet, unless somebody has.
    pub(crate) fn write(&self, sheet: Sheet) -> Written {
        let mut pen = self.pen();
        if sheet.0 != pen.number || pen.sheet.is_empty() {
            let bytes = self.bytes();
            return Written { bytes: bytes..bytes, lost: None };
        }
        // At once: the rest of one that did not fit would come behind somebody else's.
        let outcome = (&*pen.file).write(&pen.sheet);
        let appended = *outcome.as_ref().unwrap_or(&0);
        let lost = (appended < pen.sheet.len()).then(|| Lost {
            lines: lines(&pen.sheet) - lines(&pen.sheet[..appended]),
            why: outcome.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into()),
        });
        pen.number += 1;
        pen.sheet.clear();
        pen.sheet.shrink_to(SHEET_BYTES_KEPT);
        let before = self.bytes.fetch_add(appended as u64, Ordering::Relaxed);
        Written { bytes: before..before + appended as u64, lost }
    }

    /// How much is in both files.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.bytes() + self.page_bytes.load(Ordering::Relaxed)
    }

    /// Exchanges the files, once the page's is empty. Says whether there is something on the page then.
    pub(crate) fn turn(&self, page: &mut Page) -> io::Result<bool> {
        if page.bytes()? == 0 && self.bytes() > 0 {
            let mut pen = self.pen();
            std::mem::swap(&mut pen.file, &mut page.file);
            self.bytes.store(0, Ordering::Relaxed);
        }
        let bytes = page.bytes()?;
        self.page_bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes > 0)
    }

    /// Rows are made of all that is on the page.
    pub(crate) fn clear(&self, page: &mut Page) -> io::Result<()> {
        page.file.set_len(0)?;
        page.done = 0;
        self.page_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// How many are whole.
fn lines(sheet: &[u8]) -> u64 {
    let line_breaks = sheet.split(|byte| *byte == b'\n').count() - 1;
    line_breaks as u64 / 2
}

/// What became of a sheet.
#[derive(Debug)]
pub(crate) struct Written {
    /// How much there was before it, and how much there is with it.
    pub bytes: Range<u64>,
    pub lost: Option<Lost>,
}

/// Not all of a sheet could be written.
#[derive(Debug)]
pub(crate) struct Lost {
    pub lines: u64,
    pub why: io::Error,
}

impl Page {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The next calls of which no rows are made yet; none at the end.
    pub(crate) fn read(&self) -> io::Result<Batch> {
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.done))?;
        let mut reader = BufReader::with_capacity(READ_BYTES, file);
        let mut batch = Batch { records: Vec::new(), end: self.done };
        let mut line = Vec::new();
        while batch.records.len() < BATCH_LINES_MAX && batch.end - self.done < BATCH_BYTES_MAX {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? as u64;
            if read == 0 {
                break;
            }
            batch.end += read;
            if read == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                batch.end += reader.skip_until(b'\n')? as u64;
            }
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice::<Line<'_>>(line) {
                Ok(line) => batch.records.push(line.into()),
                Err(error) => tracing::error!("a recorded call is lost: its line cannot be read: {error}"),
            }
        }
        Ok(batch)
    }

    /// Rows are made of these.
    pub(crate) fn is_written(&mut self, batch: &Batch) {
        self.done = batch.end;
    }
}

impl Batch {
    /// Nothing is left on the page.
    pub(crate) fn is_end(&self, page: &Page) -> bool {
        self.end == page.done
    }
}
