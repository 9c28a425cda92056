//! The check of one volume: collects facts of its inodes and compares them.
//!
//! Invariants
//! 1. Facts are kept of inodes in `window` only (`add`). After `give_up` the window is empty.
//! 2. `keyed_inodes` is sorted by inode number, because the keys of the map are. Keys of a table out of order
//!    are a finding of their own, and `keyed` may then miss an inode.
//! 3. `files` and `flagged` are sorted when `files_sorted` and `flagged_sorted` say so. Attributes and
//!    regions come after all inodes in the order of keys, so each list is sorted once (`keep_promise`,
//!    `take_region`).
//! 4. A finding that is wrong if some key could not be read goes to `doubtful`, any other to the pass's
//!    findings.

use warpfire_format::fs::{
    Attrs, CounterId, Dentry, FileKind, Inode, InodeContent, LOCAL_INO_MAX, REGION_BYTES, VolumeId,
    decode_region, decode_xattr, flag, number_from, number_in, volume_of,
};
use warpfire_format::key_hash;

use super::acl;
use super::facts::{ATTRIBUTE_FLAGS, InoRange, KeyedInode, PromisedAttributes, RegionFile};
use super::inoset::InoSet;
use crate::code::FindingCode;
use crate::report::{Findings, Totals};

/// The facts and counts of the current volume.
pub(super) struct VolumeCheck {
    pub(super) id: u32,
    window: InoRange,
    /// The facts outgrew the memory. Only checks without facts continue.
    pub(super) gave_up: bool,
    /// Local inode number of the root.
    root: Option<u64>,
    /// Whether it is a clone: then it also has what its origin has outside of the cloned directory.
    pub(super) shows_origin: bool,
    /// Whether a file may have more links than names.
    pub(super) may_miss_names: bool,
    counters: [Option<i64>; 3],
    inodes_found: u64,
    bytes_found: u64,
    reserved_found: u64,
    inodes: InoSet,
    with_attributes: InoSet,
    keyed_inodes: Vec<KeyedInode>,
    files: Vec<RegionFile>,
    files_sorted: bool,
    flagged: Vec<PromisedAttributes>,
    flagged_sorted: bool,
    /// Findings that hold only if the whole map was readable.
    pub(super) doubtful: Findings,
}

/// The state of a pass that all its volumes share.
pub(super) struct PassContext<'a> {
    pub(super) is_first: bool,
    pub(super) next_ino: u64,
    pub(super) totals: &'a mut Totals,
    pub(super) findings: &'a Findings,
}

/// The kind of key that holds an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InodeLocation {
    Own,
    Orphan,
    Name,
}

impl VolumeCheck {
    pub(super) fn new(id: u32, window: InoRange) -> Self {
        VolumeCheck {
            id,
            window,
            gave_up: false,
            root: None,
            shows_origin: false,
            may_miss_names: false,
            counters: [None; 3],
            inodes_found: 0,
            bytes_found: 0,
            reserved_found: 0,
            inodes: InoSet::default(),
            with_attributes: InoSet::default(),
            keyed_inodes: Vec::new(),
            files: Vec::new(),
            files_sorted: false,
            flagged: Vec::new(),
            flagged_sorted: false,
            doubtful: Findings::default(),
        }
    }

    /// Memory of the facts, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let keyed_inodes = self.keyed_inodes.capacity() * size_of::<KeyedInode>();
        let files = self.files.capacity() * size_of::<RegionFile>();
        let flagged = self.flagged.capacity() * size_of::<PromisedAttributes>();
        (keyed_inodes + files + flagged) as u64 + self.inodes.bytes() + self.with_attributes.bytes()
    }

    /// Drops all facts and their doubtful findings. Root, counters and sums remain.
    pub(super) fn give_up(&mut self) {
        let window = InoRange { first: u64::MAX, past: 0 };
        *self = VolumeCheck {
            gave_up: true,
            root: self.root,
            shows_origin: self.shows_origin,
            may_miss_names: self.may_miss_names,
            counters: self.counters,
            inodes_found: self.inodes_found,
            bytes_found: self.bytes_found,
            reserved_found: self.reserved_found,
            ..VolumeCheck::new(self.id, window)
        };
    }

    pub(super) fn take_root(&mut self, ino: u64) {
        self.root = Some(ino);
    }

    pub(super) fn take_counter(&mut self, id: CounterId, sum: i64) {
        let [inodes, bytes, reserved] = &mut self.counters;
        match id {
            CounterId::Inodes => *inodes = Some(sum),
            CounterId::Bytes => *bytes = Some(sum),
            CounterId::Reserved => *reserved = Some(sum),
        }
    }

    pub(super) fn take_inode(&mut self, key_ino: u64, value: &[u8], context: &mut PassContext<'_>) {
        let place = format!("inode {key_ino}");
        match Inode::decode(value) {
            Err(e) => context.findings.error(FindingCode::Value, place, e),
            Ok(inode) if inode.ino != key_ino => {
                context.findings.error(FindingCode::Value, place, format_args!("is inode {}", inode.ino));
            }
            Ok(inode) => self.add(&inode, InodeLocation::Own, &place, context),
        }
    }

    pub(super) fn take_orphan(&mut self, key_ino: u64, value: &[u8], context: &mut PassContext<'_>) {
        let place = format!("orphan {key_ino}");
        match Inode::decode(value) {
            Err(e) => context.findings.error(FindingCode::Value, place, e),
            Ok(inode) if inode.ino != key_ino || inode.attrs.links != 0 => {
                let message = format_args!("is inode {} with {} links", inode.ino, inode.attrs.links);
                context.findings.error(FindingCode::Orphan, place, message);
            }
            Ok(inode) => {
                if context.is_first {
                    context.totals.orphans += 1;
                    context.findings.note(FindingCode::Orphan, &place, "has no name and waits to be removed");
                }
                self.add(&inode, InodeLocation::Orphan, &place, context);
            }
        }
    }

    /// Takes a name. Returns the volume that it is a door of, and its place.
    pub(super) fn take_name(
        &mut self,
        dir: u64,
        name: &[u8],
        value: &[u8],
        context: &mut PassContext<'_>,
    ) -> Option<(VolumeId, (u64, u64))> {
        let place = || format!("name {dir}/{}", name.escape_ascii());
        let dentry = match Dentry::decode(value) {
            Ok(dentry) => dentry,
            Err(e) => {
                context.findings.error(FindingCode::Value, place(), e);
                return None;
            }
        };
        context.totals.names += u64::from(context.is_first);
        // A name concerns two inodes, its directory and its own. Either may be outside the window.
        let is_directory = matches!(dentry, Dentry::Reference(FileKind::Directory, _));
        if self.window.contains(dir) {
            match self.keyed(dir).filter(|h| h.kind == FileKind::Directory as u8) {
                Some(keyed) => keyed.directories = keyed.directories.saturating_add(u32::from(is_directory)),
                None => {
                    let message = format_args!("there is no directory {dir}");
                    self.doubtful.error(FindingCode::NameWithoutDirectory, place(), message);
                }
            }
        }
        match dentry {
            Dentry::Embedded(inode) => self.add(&inode, InodeLocation::Name, &place(), context),
            Dentry::Reference(_, stored) if stored > LOCAL_INO_MAX => {
                let volume = VolumeId(self.id);
                let to = volume_of(number_from(volume, stored));
                return Some((to, (number_in(volume, dir), key_hash(name))));
            }
            Dentry::Reference(kind, ino) if self.window.contains(ino) => {
                self.refer(dir, name, kind, ino, context.findings);
            }
            Dentry::Reference(..) => {}
        }
        None
    }

    fn refer(&mut self, dir: u64, name: &[u8], kind: FileKind, ino: u64, findings: &Findings) {
        let place = || format!("name {dir}/{}", name.escape_ascii());
        let Some(keyed) = self.keyed(ino) else {
            let message = format_args!("there is no inode {ino}");
            return self.doubtful.error(FindingCode::NameWithoutInode, place(), message);
        };
        keyed.names = keyed.names.saturating_add(1);
        let misplaced = (keyed.parent, keyed.name_hash) != (dir, key_hash(name));
        let (says, parent) = (keyed.kind, keyed.parent);
        let was_root = self.shows_origin && parent > LOCAL_INO_MAX;
        if says != kind as u8 {
            let message = format_args!("says {kind:?}; inode {ino} has type {says}");
            findings.error(FindingCode::NameKind, place(), message);
        } else if kind == FileKind::Directory && misplaced && !was_root {
            let message = format_args!("directory {ino} has another name, or another parent: {parent}");
            findings.error(FindingCode::DirectoryPlace, place(), message);
        }
    }

    fn keyed(&mut self, ino: u64) -> Option<&mut KeyedInode> {
        let at = self.keyed_inodes.binary_search_by_key(&ino, |h| h.ino).ok()?;
        self.keyed_inodes.get_mut(at)
    }

    /// Takes an inode from any kind of key.
    fn add(&mut self, inode: &Inode<'_>, found: InodeLocation, place: &str, context: &mut PassContext<'_>) {
        let attrs = &inode.attrs;
        if context.is_first {
            count(attrs, context.totals);
            self.inodes_found += 1;
            self.bytes_found = self.bytes_found.wrapping_add(attrs.allocated_bytes);
            self.reserved_found = self.reserved_found.wrapping_add(attrs.reserved_bytes);
            check_inode(inode, found, place, context);
        }
        if !self.window.contains(inode.ino) {
            return;
        }
        // Facts of a second inode with one number would hide those of the first.
        if !self.inodes.insert(inode.ino) {
            let message = format_args!("inode {} exists twice", inode.ino);
            return context.findings.error(FindingCode::InoTwice, place, message);
        }
        if attrs.flags & flag::XATTRS != 0 {
            self.with_attributes.insert(inode.ino);
        }
        let left = ATTRIBUTE_FLAGS.iter().fold(0, |all, (bit, _)| all | (attrs.flags & bit));
        if left != 0 {
            self.flagged.push(PromisedAttributes { ino: inode.ino, left });
        }
        if found == InodeLocation::Own {
            let (parent, name) = match inode.content {
                InodeContent::Directory(parent, name) => (parent, name),
                _ => (0, &[][..]),
            };
            self.keyed_inodes.push(KeyedInode {
                ino: inode.ino,
                parent,
                name_hash: key_hash(name),
                links: attrs.links,
                names: 0,
                directories: 0,
                kind: attrs.kind as u8,
            });
        }
        if matches!(inode.content, InodeContent::Regions) {
            self.files.push(RegionFile {
                ino: inode.ino,
                size_bytes: attrs.size_bytes,
                allocated_left: attrs.allocated_bytes,
                reserved_left: attrs.reserved_bytes,
                is_orphan: found == InodeLocation::Orphan,
            });
        }
    }

    pub(super) fn take_attribute(&mut self, ino: u64, name: &[u8], value: &[u8], context: &PassContext<'_>) {
        let place = || format!("attribute {} of inode {ino}", name.escape_ascii());
        let value = match decode_xattr(value) {
            Ok(value) => value,
            Err(e) => return context.findings.error(FindingCode::Value, place(), e),
        };
        let promised = ATTRIBUTE_FLAGS.iter().find(|(_, of)| *of == name).map(|(bit, _)| *bit);
        let is_list = promised.is_some_and(|bit| bit != flag::CAPABILITY);
        if let Some(fault) = acl::fault(value).filter(|_| is_list) {
            context.findings.error(FindingCode::Acl, place(), fault);
        }
        if !self.window.contains(ino) {
            return;
        }
        // A clone shows what orphans of its origin have, and not the orphans.
        if !self.inodes.contains(ino) && self.shows_origin {
            return;
        }
        if !self.inodes.contains(ino) {
            self.doubtful.error(FindingCode::XattrWithoutInode, place(), "there is no such inode");
        } else if !self.with_attributes.contains(ino) {
            let message = "the inode has no flag for attributes";
            self.doubtful.error(FindingCode::XattrWithoutInode, place(), message);
        }
        if let Some(bit) = promised {
            self.keep_promise(ino, bit, &place());
        }
    }

    /// Notes that an attribute exists for which inodes have a flag.
    fn keep_promise(&mut self, ino: u64, bit: u32, place: &str) {
        if !self.flagged_sorted {
            self.flagged.sort_unstable_by_key(|f| f.ino);
            self.flagged_sorted = true;
        }
        let found = self.flagged.binary_search_by_key(&ino, |f| f.ino).ok();
        match found.and_then(|at| self.flagged.get_mut(at)).filter(|f| f.left & bit != 0) {
            Some(flagged) => flagged.left &= !bit,
            None => self.doubtful.error(FindingCode::AttributeFlags, place, "the inode has no flag for it"),
        }
    }

    pub(super) fn take_region(&mut self, ino: u64, index: u64, value: &[u8], context: &PassContext<'_>) {
        let place = || format!("region {index} of inode {ino}");
        let map = match decode_region(value, false) {
            Ok(map) => map,
            Err(e) => return context.findings.error(FindingCode::Value, place(), e),
        };
        if !self.window.contains(ino) {
            return;
        }
        if !self.files_sorted {
            self.files.sort_unstable_by_key(|f| f.ino);
            self.files_sorted = true;
        }
        // All inodes have been seen: their keys stand before those of regions.
        let found = self.files.binary_search_by_key(&ino, |f| f.ino).ok();
        let Some(file) = found.and_then(|at| self.files.get_mut(at)) else {
            if self.shows_origin && !self.inodes.contains(ino) {
                return;
            }
            return self.doubtful.error(
                FindingCode::RegionWithoutFile,
                place(),
                "no file in regions has this inode number",
            );
        };
        let reserved = map.reserved_bytes();
        file.allocated_left = file.allocated_left.wrapping_sub(map.data_bytes() + reserved);
        file.reserved_left = file.reserved_left.wrapping_sub(reserved);
        let end = u64::from(map.data_end());
        let end = index.checked_mul(u64::from(REGION_BYTES)).and_then(|start| start.checked_add(end));
        // Reserved bytes may lie past the end of the file.
        let has_data = map.data_bytes() > 0;
        if has_data && end.is_none_or(|end| end > file.size_bytes) && !file.is_orphan {
            let message = format_args!("reaches past the end of the file at {}", file.size_bytes);
            context.findings.error(FindingCode::PastEnd, place(), message);
        }
    }

    /// Compares the facts after the last key of the volume.
    pub(super) fn finish(&mut self) {
        self.check_root();
        for keyed in &self.keyed_inodes {
            self.check_links(keyed);
        }
        for flagged in self.flagged.iter().filter(|f| f.left != 0) {
            let message = format_args!("has flags {:#x} for attributes that do not exist", flagged.left);
            self.doubtful.error(FindingCode::AttributeFlags, format_args!("inode {}", flagged.ino), message);
        }
        // A crash during the removal of an orphan leaves fewer regions than its inode says, never more.
        for file in &self.files {
            for (left, kind) in [(file.allocated_left, "allocated"), (file.reserved_left, "reserved")] {
                let over = left.cast_signed();
                if over < 0 || (over > 0 && !file.is_orphan) {
                    let message =
                        format_args!("says that {over} more bytes are {kind} than its extents have");
                    self.doubtful.error(FindingCode::Allocated, format_args!("inode {}", file.ino), message);
                }
            }
        }
        if self.window.is_all() {
            self.check_tree();
        } else if self.window.first == 0 {
            let message =
                "cycles of directories are not checked: the directories do not fit the allowed memory";
            self.doubtful.note(FindingCode::NotChecked, format_args!("volume {}", self.id), message);
        }
    }

    /// The counters, and the sums that were found. They need no facts.
    pub(super) fn sums(&self) -> ([i64; 3], [i64; 3]) {
        let found = [self.inodes_found, self.bytes_found, self.reserved_found].map(u64::cast_signed);
        (self.counters.map(|said| said.unwrap_or(0)), found)
    }

    /// The directory and the hash of the name that the root says it has, if the volume has a door and the
    /// root is in the window.
    pub(super) fn door_place(&mut self) -> Option<(u64, u64)> {
        let volume = VolumeId(self.id);
        let root = self.keyed(self.root?)?;
        let place = (root.parent, root.name_hash);
        (volume != VolumeId::FIRST && place.0 != 0).then(|| (number_from(volume, place.0), place.1))
    }

    /// Whether a directory has no name in this volume: the root, and in a clone a former root of an origin.
    fn is_top(&self, keyed: &KeyedInode) -> bool {
        self.root == Some(keyed.ino)
            || self.shows_origin && (keyed.parent == keyed.ino || keyed.parent > LOCAL_INO_MAX)
    }

    fn check_root(&mut self) {
        let place = format!("volume {}", self.id);
        let Some(root) = self.root else {
            return self.doubtful.error(FindingCode::PoolRecords, place, "has no record");
        };
        if self.window.contains(root) {
            let has_door = self.id != VolumeId::FIRST.0;
            let is_root = |h: &&mut KeyedInode| {
                let has_place = if has_door { h.parent > LOCAL_INO_MAX } else { h.parent == root };
                h.kind == FileKind::Directory as u8 && has_place
            };
            if self.keyed(root).filter(is_root).is_none() {
                let parent =
                    if has_door { "with a parent in another volume" } else { "that is its own parent" };
                let message = format_args!("its root, inode {root}, is not a directory {parent}");
                self.doubtful.error(FindingCode::PoolRecords, place, message);
            }
        }
    }

    fn check_links(&self, keyed: &KeyedInode) {
        let place = format!("inode {}", keyed.ino);
        if keyed.kind != FileKind::Directory as u8 {
            let is_right = keyed.names == keyed.links || self.may_miss_names && keyed.names < keyed.links;
            if !is_right {
                let message = format_args!("says {} links and has {} names", keyed.links, keyed.names);
                self.doubtful.error(FindingCode::Links, place, message);
            }
            return;
        }
        let is_top = self.is_top(keyed);
        // A clone shows the name that its root had in the origin.
        let is_named = keyed.names == u32::from(!is_top) || is_top && self.shows_origin && keyed.names <= 1;
        if !is_named {
            let message = format_args!("is a directory with {} names", keyed.names);
            self.doubtful.error(FindingCode::DirectoryPlace, &place, message);
        }
        let links = keyed.directories.saturating_add(2);
        if keyed.links != links {
            let message =
                format_args!("says {} links and has {} directories", keyed.links, keyed.directories);
            self.doubtful.error(FindingCode::Links, &place, message);
        }
    }

    /// Checks that the parents of each directory lead to the root.
    ///
    /// Each directory is visited once. A walk up ends at a directory with a known state, at the root, or on
    /// its own path, which is a cycle. All directories of the path then get the state of the end.
    ///
    /// ```text
    /// No ──(walk)──▶ OnPath ──(the walk ends at the root or at a Reaches)──▶ Reaches
    ///                       └─(it ends anywhere else)─────────────────────▶ Lost
    /// ```
    fn check_tree(&self) {
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum PathState {
            No,
            OnPath,
            Reaches,
            Lost,
        }
        // Walks are iterative: directories may be nested as deep as the pool has inodes.
        let mut seen = vec![PathState::No; self.keyed_inodes.len()];
        let mut path = Vec::new();
        for start in 0..self.keyed_inodes.len() {
            let mut at = start;
            let end = loop {
                let (Some(keyed), Some(state)) = (self.keyed_inodes.get(at), seen.get_mut(at)) else {
                    break PathState::Lost;
                };
                match *state {
                    PathState::No if keyed.kind != FileKind::Directory as u8 => break PathState::Lost,
                    PathState::No => {}
                    PathState::OnPath => break PathState::Lost,
                    decided => break decided,
                }
                *state = PathState::OnPath;
                path.push(at);
                if self.is_top(keyed) {
                    break PathState::Reaches;
                }
                match self.keyed_inodes.binary_search_by_key(&keyed.parent, |h| h.ino) {
                    Ok(parent) => at = parent,
                    Err(_) => break PathState::Lost,
                }
            };
            for at in path.drain(..) {
                let (Some(keyed), Some(state)) = (self.keyed_inodes.get(at), seen.get_mut(at)) else {
                    continue;
                };
                *state = end;
                if end == PathState::Lost {
                    let place = format_args!("directory {}", keyed.ino);
                    self.doubtful.error(FindingCode::Unreachable, place, "cannot be reached from the root");
                }
            }
        }
    }
}

fn count(attrs: &Attrs, totals: &mut Totals) {
    totals.file_bytes = totals.file_bytes.saturating_add(attrs.allocated_bytes);
    match attrs.kind {
        FileKind::Regular => totals.files += 1,
        FileKind::Directory => totals.directories += 1,
        FileKind::Symlink => totals.symlinks += 1,
        FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice | FileKind::Socket => {
            totals.special_files += 1;
        }
    }
}

/// Checks that the fields of one inode agree with each other.
fn check_inode(inode: &Inode<'_>, found: InodeLocation, place: &str, context: &PassContext<'_>) {
    let attrs = &inode.attrs;
    if inode.ino >= context.next_ino {
        let message = format_args!("inode {} is not reserved: {} is next", inode.ino, context.next_ino);
        context.findings.error(FindingCode::InoUnreserved, place, message);
    }
    // An orphan may have been truncated to a size below its remaining regions when its removal began.
    // Reserved bytes may lie past the end.
    let data_bytes = attrs.allocated_bytes.wrapping_sub(attrs.reserved_bytes);
    if data_bytes > attrs.size_bytes && found != InodeLocation::Orphan && attrs.kind == FileKind::Regular {
        let message = format_args!("{data_bytes} bytes of data in {}", attrs.size_bytes);
        context.findings.error(FindingCode::Allocated, place, message);
    }
    let is_sparse = attrs.flags & flag::SPARSE != 0;
    if data_bytes < attrs.size_bytes && attrs.kind == FileKind::Regular && !is_sparse {
        let size_bytes = attrs.size_bytes;
        let message = format_args!("has holes, {data_bytes} of {size_bytes} bytes, and no flag for them");
        context.findings.error(FindingCode::Allocated, place, message);
    }
    let InodeContent::Small(extents) = inode.content else { return };
    match extents.to_map() {
        Err(e) => context.findings.error(FindingCode::Value, place, e),
        Ok(map) => {
            let end = u64::from(map.data_end());
            if end > attrs.size_bytes {
                let message = format_args!("has bytes up to {end}, past its end at {}", attrs.size_bytes);
                context.findings.error(FindingCode::PastEnd, place, message);
            }
            let reserved_bytes = map.reserved_bytes();
            let allocated_bytes = map.data_bytes() + reserved_bytes;
            if (allocated_bytes, reserved_bytes) != (attrs.allocated_bytes, attrs.reserved_bytes) {
                let message = format_args!(
                    "says {} bytes, {} of them reserved; its extents have {allocated_bytes} and \
                     {reserved_bytes}",
                    attrs.allocated_bytes, attrs.reserved_bytes
                );
                context.findings.error(FindingCode::Allocated, place, message);
            }
        }
    }
}
