//! Listings with attributes: the record that a listing reads answers for the attributes too.
//!
//! The record of a file with one name lies at the name. A listing has read it, so the attributes of the file
//! need no search in the store while that record is unchanged.
//!
//! # Invariants
//! 1. Listed attributes are an answer only while the version counter of the name has not moved since before
//!    the snapshot of the listing, and while no call ran alone since: a commit of a transaction changes
//!    records without their counters (`attributes_now`; `tests::listed`).
//! 2. A transaction lists no attributes: its journal needs the search.

use warpfire_format::fs::Dentry;
use warpfire_meta::{ScanPage, Storage};

use super::DirEntry;
use crate::acl::{Caller, Perm};
use crate::attrs::{Attr, attr_of};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::dentry_key;
use crate::node::NodeRef;

/// A name of a directory, from a listing that may know the attributes of its file.
#[derive(Clone, Debug)]
pub struct ListedFile {
    /// The name and the kind of its file.
    pub entry: DirEntry,
    /// `None` if the record of the file is at another key.
    attributes: Option<ListedAttributes>,
}

/// The attributes of a file at the time of a listing, and the numbers that move if they change.
#[derive(Clone, Debug)]
struct ListedAttributes {
    attr: Attr,
    /// The version counter of the name.
    counter: u64,
    /// The number of calls that had run alone.
    calls_alone: u64,
}

impl From<DirEntry> for ListedFile {
    /// A name without attributes.
    fn from(entry: DirEntry) -> ListedFile {
        ListedFile { entry, attributes: None }
    }
}

impl<E: Storage> Fs<E> {
    /// As [`Fs::readdir`], for a caller that may ask for the attributes of the files.
    ///
    /// # Errors
    /// As [`Fs::readdir`].
    pub fn list_files(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<ListedFile>, FsError> {
        if self.call_gate.is_transaction() {
            let entries = self.readdir(caller, dir, after, max)?;
            return Ok(entries.into_iter().map(ListedFile::from).collect());
        }
        let _guard = self.call_gate.enter();
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        // Before the snapshot: the counter of a record that changes after the snapshot has moved.
        let counters = self.version_counters.snapshot();
        let calls_alone = self.call_gate.calls_alone();
        // A caller may ask for usize::MAX names.
        let mut files = Vec::with_capacity(max.min(1024));
        self.visit_names(dir.ino(), after, max, &mut ScanPage::default(), |key, name, dentry| {
            let entry = DirEntry { name: name.into(), ino: dentry.ino(), kind: dentry.kind() };
            let attributes = match dentry {
                Dentry::Embedded(inode) => Some(ListedAttributes {
                    attr: attr_of(inode.ino, &inode.attrs),
                    counter: counters.at(key),
                    calls_alone,
                }),
                Dentry::Reference(..) => None,
            };
            files.push(ListedFile { entry, attributes });
        })?;
        self.renew_atime_if_due(dir)?;
        Ok(files)
    }

    /// The attributes of a listed file as of now, as [`Fs::lookup`] and [`Fs::getattr`] find them. While its
    /// record is unchanged since the listing, they cost no search.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn attributes_now(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        file: &ListedFile,
    ) -> Result<Attr, FsError> {
        if let Some(listed) = &file.attributes {
            debug_assert!(!self.call_gate.is_transaction(), "a transaction lists no attributes");
            let _guard = self.call_gate.enter();
            self.access(caller, dir, Perm::EXECUTE)?;
            let counter = self.version_counters.at(&dentry_key(dir.ino(), &file.entry.name));
            if counter == listed.counter && self.call_gate.calls_alone() == listed.calls_alone {
                return Ok(listed.attr);
            }
        }
        Ok(self.getattr(&*self.lookup(caller, dir, &file.entry.name)?))
    }
}
