//! The files of an open pool that lose bytes.
//!
//! `warpfire-check` reads a pool that nobody writes. In a pool that is in use every file is read, by the code
//! that programs read it by. So a byte is lost if no program can read it; whether a byte that can be read has
//! less redundancy is not known.
//!
//! The list fits in an answer: `LISTED_BYTES_MAX`. Other files are counted.

use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use warpfire::{Error, ErrorKind, Metadata, Warpfire};
use warpfire_check::{ByteRange, DamageReport, FileDamage, MetadataDamage};
use warpfire_terminal::shown;

/// Most bytes of the list, as JSON.
const LISTED_BYTES_MAX: usize = 3 << 20;
/// Bytes of a listed range or file as JSON, but for its path; and of a byte of a path.
const ENTRY_BYTES: usize = 200;
const PATH_BYTE_BYTES: usize = 4;
/// Most paths of a file, as `fsck` lists them.
const PATHS_MAX: usize = 4;
/// Bytes that are read between two looks whether to go on.
const PIECE_BYTES: u64 = 64 << 20;

/// A search through a pool.
struct Search<'a, F> {
    pool: &'a Warpfire,
    goes_on: F,
    report: DamageReport,
    /// Places in the list, by inode number.
    listed: HashMap<u64, usize>,
    room_bytes: usize,
}

/// Reads all files, and finds those that lose bytes. When `goes_on` breaks, the report has those found until
/// then.
pub fn lost_files(pool: &Warpfire, goes_on: impl FnMut() -> ControlFlow<()>) -> DamageReport {
    let (report, listed) = Default::default();
    let mut search = Search { pool, goes_on, report, listed, room_bytes: LISTED_BYTES_MAX };
    // Broken off, the report is not whole. The caller knows that.
    let _ = search.run();
    search.report
}

impl<F: FnMut() -> ControlFlow<()>> Search<'_, F> {
    fn run(&mut self) -> ControlFlow<()> {
        let mut directories = VecDeque::from([PathBuf::from("/")]);
        while let Some(directory) = directories.pop_front() {
            let entries = match self.pool.read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) => {
                    self.take_lost_names(&directory, &error);
                    continue;
                }
            };
            for entry in entries {
                (self.goes_on)()?;
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => {
                        self.take_lost_names(&directory, &error);
                        break;
                    }
                };
                let path = directory.join(entry.file_name());
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => directories.push_back(path),
                    Ok(metadata) if metadata.is_file() => self.take_file(&path, &metadata)?,
                    Ok(_) => {}
                    Err(error) => self.take_lost_names(&path, &error),
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn take_file(&mut self, path: &Path, metadata: &Metadata) -> ControlFlow<()> {
        let bytes = path.as_os_str().as_bytes();
        if let Some(file) = self.listed.get(&metadata.ino()).and_then(|at| self.report.files.get_mut(*at)) {
            if file.paths.len() < PATHS_MAX {
                file.paths.push(bytes.to_vec());
            } else {
                file.more_paths += 1;
            }
            return ControlFlow::Continue(());
        }
        let mut lost: Vec<Range<u64>> = Vec::new();
        // A file that was removed since it was listed loses nothing.
        if let Ok(file) = self.pool.open(path) {
            let mut at = 0;
            while at < metadata.len() {
                (self.goes_on)()?;
                let end = metadata.len().min(at + PIECE_BYTES);
                for range in file.unreadable(at..end).unwrap_or_default() {
                    match lost.last_mut().filter(|last| last.end == range.start) {
                        Some(last) => last.end = range.end,
                        None => lost.push(range),
                    }
                }
                at = end;
            }
        }
        if !lost.is_empty() {
            self.report.files_lost += 1;
            self.list(bytes, metadata, &lost);
        }
        ControlFlow::Continue(())
    }

    fn list(&mut self, path: &[u8], metadata: &Metadata, lost: &[Range<u64>]) {
        // Further names of the file may follow.
        let names_bytes = ENTRY_BYTES + PATHS_MAX * PATH_BYTE_BYTES * path.len();
        let Some(room_bytes) = self.room_bytes.checked_sub(names_bytes + ENTRY_BYTES) else { return };
        let ranges = lost.len().min(1 + room_bytes / ENTRY_BYTES);
        self.room_bytes = room_bytes.saturating_sub((ranges - 1) * ENTRY_BYTES);
        self.listed.insert(metadata.ino(), self.report.files.len());
        let listed = lost.iter().take(ranges).map(|range| ByteRange { start: range.start, end: range.end });
        self.report.files.push(FileDamage {
            inode: metadata.ino(),
            paths: vec![path.to_vec()],
            more_paths: 0,
            size_bytes: Some(metadata.len()),
            lost: listed.collect(),
            weak: Vec::new(),
            has_more: ranges < lost.len(),
        });
    }

    /// Takes the failure to read names or an inode. Only damage counts: a file may be gone by now.
    fn take_lost_names(&mut self, path: &Path, error: &Error) {
        let place = shown(path);
        let entry_bytes = ENTRY_BYTES + PATH_BYTE_BYTES * place.len();
        if error.kind() != ErrorKind::Damaged || self.room_bytes < entry_bytes {
            return;
        }
        self.room_bytes -= entry_bytes;
        let holds = "names, or the attributes of the file".to_owned();
        self.report.metadata.push(MetadataDamage { place, is_lost: true, holds });
    }
}

#[cfg(test)]
mod tests {
    use warpfire::Pool;

    use super::*;

    #[test]
    fn a_sound_pool_loses_nothing_and_a_search_ends_when_it_shall() {
        let pool = Pool::options().in_memory().expect("a pool");
        pool.create_dir_all("/a/b").expect("made");
        pool.write("/a/b/file", vec![7; 1 << 20]).expect("written");
        let mut looks = 0;
        let report = lost_files(&pool, || {
            looks += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(report, DamageReport::default());
        assert!(looks >= 4, "each entry and each piece of a file");
        let mut looks = 0;
        let stopped = lost_files(&pool, || {
            looks += 1;
            ControlFlow::Break(())
        });
        assert_eq!((stopped, looks), (DamageReport::default(), 1));
    }
}
