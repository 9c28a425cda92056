//! The damage of a pool, by file.

use serde::{Deserialize, Serialize};

/// A range of bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte past the range.
    pub end: u64,
}

impl ByteRange {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The damage of one file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileDamage {
    /// Its inode number.
    pub inode: u64,
    /// Paths that lead to it, at most four, as bytes. Empty if the names of the file are lost.
    pub paths: Vec<Vec<u8>>,
    /// Number of its further names.
    pub more_paths: u64,
    /// Its size in bytes. `None` if its inode is lost.
    pub size_bytes: Option<u64>,
    /// Bytes that cannot be read, rising, without neighbours.
    pub lost: Vec<ByteRange>,
    /// Bytes that can be read and have less redundancy than they should, rising, without neighbours.
    pub weak: Vec<ByteRange>,
    /// Whether further ranges did not fit the memory of the check.
    pub has_more: bool,
}

impl FileDamage {
    /// Number of bytes that cannot be read.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.lost.iter().map(ByteRange::bytes).sum()
    }

    /// Number of bytes with less redundancy.
    #[must_use]
    pub fn weak_bytes(&self) -> u64 {
        self.weak.iter().map(ByteRange::bytes).sum()
    }
}

/// Damage of a structure that holds names and pointers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MetadataDamage {
    /// The structure, such as a table or the commit log.
    pub place: String,
    /// Whether part of it cannot be read. Otherwise it has only lost redundancy.
    pub is_lost: bool,
    /// What it holds: names and contents that cannot be found without it.
    pub holds: String,
}

/// All damage that something needs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DamageReport {
    /// Damaged files: first those that lose bytes, then those that lose redundancy only.
    pub files: Vec<FileDamage>,
    /// Number of files that lose bytes, listed or not.
    pub files_lost: u64,
    /// Number of files with bytes that lose redundancy only, listed or not.
    pub files_weak: u64,
    /// Damaged metadata: first the lost structures.
    pub metadata: Vec<MetadataDamage>,
}

impl DamageReport {
    /// Whether something that is needed cannot be read.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.files_lost > 0 || self.metadata.iter().any(|m| m.is_lost)
    }
}
