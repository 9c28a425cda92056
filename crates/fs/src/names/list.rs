//! Listing a directory, in the order of its keys.

use warpfire_format::fs::{Dentry, FileKind, Key, dentry_key, dentry_range};
use warpfire_meta::{Direction, KeyRange, Page, SliceStore, Store};

use crate::acl::{Caller, Perm};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::PAGE_BYTES;
use crate::node::{Name, NodeRef};

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` are not listed.
    pub name: Name,
    /// Number of the inode it leads to.
    pub ino: u64,
    /// Kind of file it leads to.
    pub kind: FileKind,
}

impl<E: Store + SliceStore> Fs<E> {
    /// Up to `max` names, in the order of their bytes, after `after`, or from the first. Fewer than `max` only at the end.
    /// A name that is there all the time is listed exactly once by a walk that goes on after its last name, whatever else changes.
    ///
    /// # Errors
    /// `NotDirectory`; `AccessDenied` if the caller may not read the directory.
    pub fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        let entries = self.names_after(dir.ino(), after, max)?;
        self.was_read(dir)?;
        Ok(entries)
    }

    /// As `readdir`, without asking who calls: for handles, which asked when they were opened.
    pub(super) fn names_after(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        let (mut start, end) = dentry_range(self.volume, dir);
        if let Some(name) = after {
            start = dentry_key(self.volume, dir, name);
            start.push(0);
        }
        let mut entries = Vec::with_capacity(max.min(1024));
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let mut page = Page::default();
        while entries.len() < max {
            let range = KeyRange { start: &start, end: Some(&end) };
            let wanted = max - entries.len();
            self.engine.scan(range, at, Direction::Forward, wanted, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Key::Dentry(_, _, name) = Key::decode(entry.key)? else {
                    return Err(FsError::Damaged { code: 0, reason: "a key is in the wrong range".into() });
                };
                let dentry = Dentry::decode(entry.value)?;
                entries.push(DirEntry { name: name.into(), ino: dentry.ino(), kind: dentry.kind() });
            }
            let Some(last) = page.iter().last().filter(|_| page.more) else { break };
            start = last.key.into();
            start.push(0);
        }
        Ok(entries)
    }
}
