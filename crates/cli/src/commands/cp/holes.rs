//! Which parts of a local file hold data.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// `st_blocks` counts in these, whatever the filesystem's own are.
const STAT_BLOCK_BYTES: u64 = 512;

/// Whether less is allocated than the file is long, so that looking for holes may pay.
pub fn may_have_holes(metadata: &Metadata) -> bool {
    metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) < metadata.len()
}

/// The next range of data at or after an offset, `None` if only a hole is left. Moves the file's offset.
///
/// # Errors
/// As lseek(2).
pub fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
