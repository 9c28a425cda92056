//! The damage of a pool by file, as `fsck` and `scrub` show it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use warpfire_check::{ByteRange, DamageReport, FileDamage, MetadataDamage};
use warpfire_terminal::{Size, counted, grouped, path_bytes, path_text, shown};

/// Most files of each kind, and most ranges of a file, that are listed as text. JSON lists more.
const FILES_SHOWN: usize = 1000;
const WEAK_FILES_SHOWN: usize = 20;
const RANGES_SHOWN: usize = 8;

/// The damage of a pool, by file.
#[derive(Debug, Serialize)]
pub struct DamageOutput {
    /// Files that lose bytes, listed or not.
    files_lost: u64,
    /// Files with bytes that have less redundancy than they should, listed or not.
    files_weak: u64,
    /// Damaged files: first those that lose bytes.
    files: Vec<DamagedFile>,
    /// Damaged tables, and stripes of the commit log.
    metadata: Vec<MetadataDamage>,
}

/// The damage of a file.
#[derive(Debug, Serialize)]
struct DamagedFile {
    /// Its inode number.
    inode: u64,
    /// Paths that lead to it, at most four. Empty if its names are lost.
    paths: Vec<DamagedPath>,
    /// Number of its further names.
    more_paths: u64,
    /// Its size; `null` if its inode is lost.
    size_bytes: Option<u64>,
    /// Number of bytes that cannot be read.
    lost_bytes: u64,
    /// Number of bytes that can be read and have less redundancy than they should.
    weak_bytes: u64,
    /// Ranges of bytes that cannot be read, rising.
    lost: Vec<ByteRange>,
    /// Ranges of bytes with less redundancy, rising.
    weak: Vec<ByteRange>,
    /// Whether further ranges did not fit the memory of the check.
    has_more: bool,
}

/// A path of a damaged file.
#[derive(Debug, Serialize)]
struct DamagedPath {
    /// The path.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
}

impl DamageOutput {
    /// The damage in the form of JSON.
    pub fn new(report: &DamageReport) -> Self {
        DamageOutput {
            files_lost: report.files_lost,
            files_weak: report.files_weak,
            files: report.files.iter().map(DamagedFile::new).collect(),
            metadata: report.metadata.clone(),
        }
    }
}

impl DamagedFile {
    fn new(file: &FileDamage) -> Self {
        DamagedFile {
            inode: file.inode,
            paths: file.paths.iter().map(|path| DamagedPath::new(path)).collect(),
            more_paths: file.more_paths,
            size_bytes: file.size_bytes,
            lost_bytes: file.lost_bytes(),
            weak_bytes: file.weak_bytes(),
            lost: file.lost.clone(),
            weak: file.weak.clone(),
            has_more: file.has_more,
        }
    }
}

impl DamagedPath {
    fn new(path: &[u8]) -> Self {
        let path = Path::new(OsStr::from_bytes(path));
        DamagedPath { path: path_text(path), path_bytes: path_bytes(path) }
    }
}

/// The damage in words, a line for each file and structure.
#[must_use]
pub fn in_words(report: &DamageReport) -> String {
    let mut text = String::new();
    let lost = report.files.iter().filter(|file| !file.lost.is_empty());
    for file in lost.clone().take(FILES_SHOWN) {
        text += &line(file, &file.lost, file.lost_bytes(), "lost");
    }
    let listed = lost.count().min(FILES_SHOWN) as u64;
    text += &more(report.files_lost - report.files_lost.min(listed), "lose bytes");
    let weak = report.files.iter().filter(|file| !file.weak.is_empty());
    for file in weak.clone().take(WEAK_FILES_SHOWN) {
        text += &line(file, &file.weak, file.weak_bytes(), "with less redundancy");
    }
    let listed = weak.count().min(WEAK_FILES_SHOWN) as u64;
    text += &more(report.files_weak - report.files_weak.min(listed), "have less redundancy");
    for metadata in &report.metadata {
        let what = if metadata.is_lost { "LOST" } else { "less redundancy" };
        text += &format!("metadata: {}: {what}; it holds {}\n", metadata.place, metadata.holds);
    }
    text
}

fn line(file: &FileDamage, ranges: &[ByteRange], bytes: u64, what: &str) -> String {
    let mut names = file.paths.iter().map(|path| shown(Path::new(OsStr::from_bytes(path))));
    let name =
        names.next().unwrap_or_else(|| format!("(a file without a readable name, inode {})", file.inode));
    let size = file.size_bytes.map(|size| format!(" of {}", Size(size))).unwrap_or_default();
    let shown_ranges = ranges.iter().take(RANGES_SHOWN).map(|r| format!("{}..{}", r.start, r.end));
    let mut line = format!(
        "{name}: {}{size} {what}, bytes {}",
        Size(bytes),
        shown_ranges.collect::<Vec<_>>().join(", ")
    );
    if ranges.len() > RANGES_SHOWN {
        line += &format!(" and {} more ranges", grouped((ranges.len() - RANGES_SHOWN) as u64));
    }
    if file.has_more {
        line += "; further ranges need more memory ('--memory')";
    }
    let others: Vec<String> = names.collect();
    if !others.is_empty() {
        line += &format!("; also {}", others.join(", "));
    }
    if file.more_paths > 0 {
        line += &format!(" and {}", counted(file.more_paths, "more name", "more names"));
    }
    line + "\n"
}

fn more(files: u64, what: &str) -> String {
    if files == 0 { String::new() } else { format!("{} more {what}\n", counted(files, "file", "files")) }
}
