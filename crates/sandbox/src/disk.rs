//! How much disk a sandbox uses: its writable layer and its volumes together.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const BLOCK_BYTES: u64 = 512;

/// What everything below a directory takes on the disk. A file with two names counts once; one that goes away meanwhile is none.
pub(crate) fn bytes_below(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut seen_with_two_names = HashSet::new();
    let mut directories = vec![std::fs::read_dir(directory)?];
    while let Some(entries) = directories.pop() {
        for entry in entries {
            let Ok(entry) = entry else { continue };
            let Ok(about) = entry.metadata() else { continue };
            if about.nlink() > 1 && !about.is_dir() && !seen_with_two_names.insert((about.dev(), about.ino()))
            {
                continue;
            }
            total += about.blocks() * BLOCK_BYTES;
            if about.is_dir() {
                directories.extend(std::fs::read_dir(entry.path()));
            }
        }
    }
    Ok(total)
}
