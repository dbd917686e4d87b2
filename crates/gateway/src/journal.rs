//! Calls that have ended and are not rows of the database yet, in two files of the data directory.
//!
//! Whoever makes a call appends it to one of them, a line of JSON, before the answer goes out. That is a copy into the kernel's memory, and
//! cheap; it outlives this process, however that ends. Meanwhile rows are made of the other file, which is emptied when all of it is written;
//! then they change places. What a killed Cofer has left in either is made rows of by the next.
//!
//! Each line begins with a line break of its own, so that one that was cut off by a full disk spoils nobody else's.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cofer_model::{CallId, CallStatus, Moment, ProjectId, RunId, ToolCallRecord};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

const FILES: [&str; 2] = ["calls.1.jsonl", "calls.2.jsonl"];
/// Without input and output.
const LINE_BYTES_USUAL: usize = 384;
const BATCH_LINES_MAX: usize = 1024;
const BATCH_BYTES_MAX: u64 = 4 << 20;
const READ_BYTES: usize = 64 << 10;
/// No line of ours is longer: input and output are cut before, and what is escaped grows at most sixfold.
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

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_seq(None)?;
        line.serialize_element(&self.id)?;
        line.serialize_element(&self.project)?;
        line.serialize_element(&self.run)?;
        line.serialize_element(&self.step)?;
        line.serialize_element(&self.tool)?;
        line.serialize_element(&self.server)?;
        line.serialize_element(&self.input)?;
        line.serialize_element(&self.output)?;
        line.serialize_element(&self.status)?;
        line.serialize_element(&self.took_ms)?;
        line.serialize_element(&self.caller)?;
        line.serialize_element(&self.trace)?;
        line.serialize_element(&self.ended_unix_ms)?;
        line.end()
    }
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
    fn len(&self) -> usize {
        match self {
            Self::Json(json) => json.get().len(),
            Self::Text(text) => text.len(),
        }
    }

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
    /// Read-locked to append, as the kernel puts what is appended at once into an order of its own; write-locked to be exchanged.
    file: RwLock<Arc<File>>,
    bytes: AtomicU64,
    /// As much was on the page when it was last turned to.
    page_bytes: AtomicU64,
}

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
        Ok((Self { file: RwLock::new(file.into()), bytes, page_bytes }, Page { file: other.into(), done: 0 }))
    }

    /// How much waits to become rows, besides the page.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Says how much there was before it, and how much there is with it.
    pub(crate) fn append(&self, line: &Line<'_>) -> io::Result<Range<u64>> {
        let texts: usize = [&line.input, &line.output].into_iter().flatten().map(Kept::len).sum();
        let mut written = Vec::with_capacity(LINE_BYTES_USUAL + texts);
        written.push(b'\n');
        serde_json::to_writer(&mut written, line)?;
        written.push(b'\n');
        let length = written.len() as u64;
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        // In one piece: the rest of one that did not fit would come behind somebody else's.
        let appended = (&**file).write(&written)?;
        if appended < written.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        Ok(before..before + length)
    }

    /// How much is in both files.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.bytes() + self.page_bytes.load(Ordering::Relaxed)
    }

    /// Exchanges the files, once the page's is empty. Says whether there is something on the page then.
    pub(crate) fn turn(&self, page: &mut Page) -> io::Result<bool> {
        if page.bytes()? == 0 && self.bytes() > 0 {
            let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *file, &mut page.file);
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
