//! Paths: from an inode number up to the root, by single keys of the map.

use std::collections::BTreeMap;

use warpfire_format::fs::{FoldBase, FoldOutcome, Inode, InodeContent, VolumeId, fold, inode_key};
use warpfire_format::table::{KeyVersion, VersionKind};

use crate::load::LoadedPool;
use crate::media::SliceReader;
use crate::report::Findings;
use crate::tables::{CommitVersions, find_block};

/// Directories above one name. More of them are a cycle.
const DEPTH_MAX: usize = 4096;

/// Paths in memory, to be used again.
const CACHED_MAX: usize = 1 << 14;

/// Finds the paths of directories.
pub(crate) struct PathFinder<'a> {
    loaded: &'a LoadedPool,
    commits: CommitVersions<'a>,
    cache: BTreeMap<(u32, u64), Option<Vec<u8>>>,
}

impl<'a> PathFinder<'a> {
    pub(crate) fn new(loaded: &'a LoadedPool) -> Self {
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &Findings::default());
        PathFinder { loaded, commits, cache: BTreeMap::new() }
    }

    /// The path of a name in a directory. If the directory's path is not known, it begins with the inode
    /// number of the last known directory.
    pub(crate) fn path(
        &mut self,
        volume: u32,
        dir: u64,
        name: &[u8],
        reader: &mut SliceReader<'_>,
    ) -> Vec<u8> {
        let mut path = self.directory(volume, dir, reader);
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The path of a directory.
    pub(crate) fn directory(&mut self, volume: u32, dir: u64, reader: &mut SliceReader<'_>) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = dir;
        let mut path = loop {
            if let Some(Some(known)) = self.cache.get(&(volume, at)) {
                break known.clone();
            }
            match self.parent(volume, at, reader) {
                Some((parent, _)) if parent == at => break b"/".to_vec(),
                Some((parent, name)) if names.len() < DEPTH_MAX => {
                    names.push(name);
                    at = parent;
                }
                _ => break format!("(directory with inode {at})").into_bytes(),
            }
        };
        while let Some(name) = names.pop() {
            if path != b"/" {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
        }
        if self.cache.len() >= CACHED_MAX {
            self.cache.clear();
        }
        self.cache.insert((volume, dir), Some(path.clone()));
        path
    }

    fn parent(&self, volume: u32, dir: u64, reader: &mut SliceReader<'_>) -> Option<(u64, Vec<u8>)> {
        let value = self.value(&inode_key(VolumeId(volume), dir), reader)?;
        match Inode::decode(&value).ok()?.content {
            InodeContent::Directory(parent, name) => Some((parent, name.to_vec())),
            _ => None,
        }
    }

    /// The newest value of a key; `None` if it has none or it cannot be read.
    fn value(&self, key: &[u8], reader: &mut SliceReader<'_>) -> Option<Vec<u8>> {
        let mut operands: Vec<Vec<u8>> = Vec::new();
        let mut base = None;
        let mut take = |version: KeyVersion<'_>| match version.kind {
            _ if base.is_some() => {}
            VersionKind::Put => base = Some(Some(version.value.to_vec())),
            VersionKind::Delete => base = Some(None),
            VersionKind::Merge => operands.push(version.value.to_vec()),
        };
        let all = self.commits.all();
        let from = all.partition_point(|c| c.key < key);
        all.iter().skip(from).take_while(|c| c.key == key).for_each(|c| take(*c));
        for run in self.loaded.manifest.runs() {
            let Some(entry) =
                run.iter().find(|t| t.smallest.as_slice() <= key && key <= t.largest.as_slice())
            else {
                continue;
            };
            let block = find_block(entry, key, reader)?;
            let start = block.find(key);
            if start < block.len() && block.key(start) == key {
                (start..block.group_end(start)).for_each(|i| take(block.entry(i)));
            }
        }
        operands.reverse();
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        let base = base.flatten();
        if operands.is_empty() {
            return base;
        }
        let mut folded = Vec::new();
        let base = base.as_deref().map_or(FoldBase::Absent, FoldBase::Value);
        matches!(fold(key, base, &operands, &mut folded), Ok(FoldOutcome::Value)).then_some(folded)
    }
}
