//! What external servers write to stderr: a book for each, kept over their lives and bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cofer_model::ServerId;
use cofer_supervisor::LogBook;

const LINES_MAX: usize = 1000;
const BYTES_MAX: usize = 256 << 10;

/// All books.
#[derive(Debug, Default)]
pub struct LogShelf(Mutex<HashMap<ServerId, Arc<LogBook>>>);

impl LogShelf {
    /// The book of this server, an empty one if it never said anything.
    pub fn book(&self, id: ServerId) -> Arc<LogBook> {
        let mut books = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        books.entry(id).or_insert_with(|| Arc::new(LogBook::new(LINES_MAX, BYTES_MAX))).clone()
    }

    /// The server is gone.
    pub fn forget(&self, id: ServerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}
