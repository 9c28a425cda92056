//! Makes prewritten image files, so that later writes need no space from the filesystem below.
//!
//! A filesystem allocates space for a file when the file is first written, and journals the allocation.
//! Writes into a sparse image wait for both. `fallocate` alone does not help, because the first write into
//! each allocated extent is journaled as well.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use warpfire_env::AlignedBuf;
use warpfire_units::BLOCK_BYTES;

/// Bytes of zeros per write.
const PIECE_BYTES: usize = 4 << 20;

/// Makes a file, or empties an existing one, and fills it with `size_bytes` of zeros, rounded up to whole
/// blocks. Writes bypass the page cache where the filesystem allows it. On return the file is durable, and
/// open for reading and writing. `progress` is called with the bytes of each write.
///
/// # Errors
/// The error of the operating system: no space, no permission, no such directory.
pub fn prefilled(path: &Path, size_bytes: u64, mut progress: impl FnMut(u64)) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        options.custom_flags(flags.bits().cast_signed()).open(path)
    };
    let file = match open(OFlags::DIRECT) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => open(OFlags::empty()),
        other => other,
    }?;
    let size_bytes = size_bytes.next_multiple_of(BLOCK_BYTES as u64);
    let zeros = AlignedBuf::zeroed(PIECE_BYTES);
    for at in (0..size_bytes).step_by(PIECE_BYTES) {
        let len = size_bytes.saturating_sub(at).min(PIECE_BYTES as u64);
        let len = usize::try_from(len).expect("at most PIECE_BYTES");
        file.write_all_at(&zeros[..len], at)?;
        progress(len as u64);
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_prefilled_file_has_all_of_its_space_and_whole_blocks() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("image");
        let mut written = 0;
        let made = prefilled(&path, (5 << 20) + 1, |bytes| written += bytes).expect("a small file");
        let found = made.metadata().expect("it is open");
        assert_eq!(written, found.len());
        assert_eq!(found.len(), (5 << 20) + 4096);
        assert!(
            found.blocks() * 512 >= found.len(),
            "{} of {} bytes taken",
            found.blocks() * 512,
            found.len()
        );
    }
}
