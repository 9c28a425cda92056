//! An independent check of a whole store: every record decodes, and all records agree.

use std::collections::BTreeMap;

use warpfire_format::fs::{
    BookmarkRecord, CounterId, Dentry, DoorVolume, FileKind, FilesystemRecord, HealthRecord, Inode,
    InodeContent, Key, LOCAL_INO_MAX, PoolRecordId, RolledBack, SnapshotName, SnapshotRecord,
    SnapshotRuleRecord, VolumeId, VolumeRecord, WishesRecord, decode_counter, decode_region, decode_xattr,
    flag, number_from, number_in,
};
use warpfire_meta::{Direction, KeyRange, ScanPage, Storage};
use warpfire_units::Seq;

struct CheckedInode {
    kind: FileKind,
    links: u32,
    /// Allocated bytes, if the extents are in regions.
    /// Allocated and reserved bytes of a file in regions.
    in_regions: Option<(u64, u64)>,
    /// A directory's parent and name.
    place: Option<(u64, Vec<u8>)>,
    flags: u32,
}

#[derive(Default)]
struct CheckedTree {
    /// The record of a volume behind a door.
    volume: Option<DoorVolume>,
    inodes: BTreeMap<u64, CheckedInode>,
    orphans: Vec<u64>,
    names: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
    kinds: Vec<(u64, FileKind)>,
    regions: BTreeMap<u64, (u64, u64)>,
    attributes: Vec<u64>,
    counters: BTreeMap<u64, i64>,
    bytes: u64,
    reserved: u64,
    next_ino: u64,
    /// Snapshots for which no name was met yet.
    snapshots: BTreeMap<Vec<u8>, Seq>,
}

/// Checks a store. Panics with the first fault.
pub(crate) fn check<E: Storage>(engine: &E, what: &str) {
    let mut trees = BTreeMap::from([(VolumeId::FIRST, CheckedTree::default())]);
    let snapshot = engine.snapshot();
    let mut start = vec![0];
    let mut page = ScanPage::default();
    loop {
        let range = KeyRange { start: &start, end: None };
        engine.scan(range, engine.seq(&snapshot), Direction::Forward, 1000, 1 << 20, &mut page).unwrap();
        for entry in page.iter() {
            if let Key::Volume(volume) = Key::decode(entry.key).unwrap() {
                let record = DoorVolume::decode(entry.value).unwrap();
                if record.removed_at.is_none() {
                    trees.insert(volume, CheckedTree { volume: Some(record), ..CheckedTree::default() });
                }
                continue;
            }
            let volume = VolumeId(u32::from_be_bytes(*entry.key.first_chunk().unwrap())).max(VolumeId::FIRST);
            // The rest of a removed volume goes with compaction.
            if let Some(tree) = trees.get_mut(&volume) {
                tree.record(entry.key, entry.value);
            }
        }
        let Some(last) = page.iter().last().filter(|_| page.more) else { break };
        start = [last.key, &[0]].concat();
    }
    let (mut behind, mut doors) = ([0; 3], BTreeMap::new());
    for (volume, tree) in trees.iter().filter(|(volume, _)| **volume != VolumeId::FIRST) {
        (1..=3).for_each(|id| behind[id as usize - 1] += tree.counters.get(&id).copied().unwrap_or(0));
        let root = tree.volume.unwrap().root;
        let (parent, name) = tree.inodes[&root].place.clone().expect("the root is a directory");
        doors.insert(number_in(*volume, root), vec![(number_from(*volume, parent), name)]);
    }
    let mut found: BTreeMap<u64, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for (volume, tree) in &trees {
        for (stored, names) in tree.names.iter().filter(|(stored, _)| **stored > LOCAL_INO_MAX) {
            let number = number_from(*volume, *stored);
            let names = names.iter().map(|(dir, name)| (number_in(*volume, *dir), name.clone()));
            // A clone shows the doors beside the directory that it is a clone of.
            let own = |place: &(u64, Vec<u8>)| {
                tree.volume.is_none() || doors.get(&number) == Some(&vec![place.clone()])
            };
            let own: Vec<_> = names.filter(own).collect();
            if !own.is_empty() {
                found.entry(number).or_default().extend(own);
            }
        }
    }
    assert_eq!(found, doors, "{what}: each volume has its door");
    for (volume, tree) in &trees {
        let what = format!("{what}, volume {}", volume.0);
        tree.agree(&what, if *volume == VolumeId::FIRST { behind } else { [0; 3] });
    }
}

impl CheckedTree {
    fn record(&mut self, key: &[u8], value: &[u8]) {
        match Key::decode(key).unwrap() {
            Key::Pool(PoolRecordId::Filesystem) => {
                self.next_ino = FilesystemRecord::decode(value).unwrap().next_ino
            }
            Key::Pool(PoolRecordId::Health) => _ = HealthRecord::decode(value).unwrap(),
            Key::Pool(PoolRecordId::Wishes) => _ = WishesRecord::decode(value).unwrap(),
            Key::Pool(PoolRecordId::Volume(_)) => {
                assert_eq!(VolumeRecord::decode(value).unwrap().root_ino, 1)
            }
            Key::Snapshot(seq, _) => {
                let name = SnapshotRecord::decode(value).unwrap().name.to_vec();
                assert!(self.snapshots.insert(name, seq).is_none(), "two snapshots have one name");
            }
            // These keys come after those of the snapshots.
            Key::SnapshotName(_, name) => {
                assert_eq!(self.snapshots.remove(name), Some(SnapshotName::decode(value).unwrap().seq));
            }
            Key::Volume(_) => unreachable!("taken before"),
            Key::Bookmark(..) => _ = BookmarkRecord::decode(value).unwrap(),
            Key::Rollback(at, _) => _ = RolledBack::decode(at, value).unwrap(),
            Key::SnapshotRule(..) => _ = SnapshotRuleRecord::decode(value).unwrap(),
            Key::Counter(_, id) => _ = self.counters.insert(id as u64, decode_counter(value).unwrap()),
            Key::Inode(_, ino) => {
                let inode = Inode::decode(value).unwrap();
                assert_eq!(inode.ino, ino);
                self.inode(&inode);
            }
            Key::Orphan(_, ino) => {
                let inode = Inode::decode(value).unwrap();
                assert_eq!((inode.ino, inode.attrs.links), (ino, 0));
                self.orphans.push(ino);
                self.inode(&inode);
            }
            Key::Dentry(_, dir, name) => {
                let dentry = Dentry::decode(value).unwrap();
                self.names.entry(dentry.ino()).or_default().push((dir, name.to_vec()));
                self.kinds.push((dentry.ino(), dentry.kind()));
                if let Dentry::Embedded(inode) = dentry {
                    assert_eq!(inode.attrs.links, 1, "an inode in its name has one link");
                    self.inode(&inode);
                }
            }
            Key::Xattr(_, ino, _) => {
                decode_xattr(value).unwrap();
                self.attributes.push(ino);
            }
            Key::Region(_, ino, _) => {
                let map = decode_region(value, false).unwrap();
                let sums = self.regions.entry(ino).or_default();
                sums.0 += map.data_bytes() + map.reserved_bytes();
                sums.1 += map.reserved_bytes();
            }
        }
    }

    fn inode(&mut self, inode: &Inode<'_>) {
        let a = &inode.attrs;
        assert!(
            [a.btime, a.mtime, a.ctime, a.atime].iter().all(|t| !crate::stamp::is_provisional(*t)),
            "a time of inode {} is still that of a transaction",
            inode.ino
        );
        let place = match inode.content {
            InodeContent::Directory(parent, name) => Some((parent, name.to_vec())),
            _ => None,
        };
        let in_regions =
            matches!(inode.content, InodeContent::Regions).then_some((a.allocated_bytes, a.reserved_bytes));
        if let InodeContent::Small(extents) = inode.content {
            let map = extents.to_map().unwrap();
            assert_eq!(map.data_bytes() + map.reserved_bytes(), a.allocated_bytes);
            assert_eq!(map.reserved_bytes(), a.reserved_bytes);
            assert!(u64::from(map.data_end()) <= a.size_bytes);
        }
        if a.kind == FileKind::Regular {
            self.bytes += a.allocated_bytes;
            self.reserved += a.reserved_bytes;
            assert_eq!(a.flags & flag::SPARSE != 0, a.allocated_bytes - a.reserved_bytes < a.size_bytes);
        }
        let seen = CheckedInode { kind: a.kind, links: a.links, in_regions, place, flags: a.flags };
        let old = self.inodes.insert(inode.ino, seen);
        assert!(old.is_none(), "inode {} has one record", inode.ino);
    }

    fn agree(&self, what: &str, behind: [i64; 3]) {
        // A clone shows what its origin has outside of the cloned directory too, but no orphans.
        let origin = self.volume.and_then(|volume| volume.origin);
        let is_clone = origin.is_some_and(|origin| origin.released_at.is_none());
        // Names that were outside of the cloned directory are not copied.
        let may_miss_names = self.volume.is_some_and(|volume| volume.is_detached || is_clone);
        let root = self.volume.map_or(1, |volume| volume.root);
        assert!(self.snapshots.is_empty(), "{what}: snapshots without a name: {:?}", self.snapshots);
        for (ino, kind) in self.kinds.iter().filter(|(ino, _)| *ino <= LOCAL_INO_MAX) {
            assert_eq!(
                self.inodes.get(ino).map(|i| i.kind),
                Some(*kind),
                "{what}: kind of inode {ino} in its name"
            );
        }
        for (ino, CheckedInode { kind, links, in_regions, place, flags }) in &self.inodes {
            assert!(self.volume.is_some() || *ino < self.next_ino, "{what}: inode {ino} was reserved");
            let names = self.names.get(ino).map_or(&[][..], Vec::as_slice);
            if *kind == FileKind::Directory {
                let children = |(i, k): &&(u64, FileKind)| {
                    *k == FileKind::Directory && self.names[i].iter().any(|(dir, _)| dir == ino)
                };
                let subdirectories = self.kinds.iter().filter(children).count() as u32;
                assert_eq!(*links, 2 + subdirectories, "{what}: links of directory {ino}");
                let (parent, name) = place.as_ref().unwrap();
                let is_top = (*parent, &name[..]) == (*ino, b"") || *parent > LOCAL_INO_MAX;
                assert!(is_top == (*ino == root) || is_clone, "{what}: only the root has no parent");
                let place = (*parent, name.clone());
                if !(is_top && is_clone && names.len() <= 1) {
                    assert_eq!(names, if is_top { &[][..] } else { std::slice::from_ref(&place) }, "{what}");
                }
            } else {
                let (links, names) = (*links as usize, names.len());
                assert!(links == names || may_miss_names && links > names, "{what}: links of inode {ino}");
                assert!(links > 0 || self.orphans.contains(ino), "{what}: inode {ino} has a name");
            }
            if let Some(allocated) = in_regions {
                assert_eq!(
                    self.regions.get(ino).copied().unwrap_or_default(),
                    *allocated,
                    "{what}: regions of {ino}"
                );
            }
            assert!(
                !self.attributes.contains(ino) || flags & flag::XATTRS != 0,
                "{what}: attributes of {ino}"
            );
        }
        for (ino, dirs) in &self.names {
            for (dir, _) in dirs {
                assert!(
                    self.inodes.get(dir).is_some_and(|d| d.kind == FileKind::Directory),
                    "{what}: {ino} is in {dir}"
                );
            }
        }
        for ino in self.regions.keys().chain(&self.attributes) {
            assert!(
                is_clone || self.inodes.contains_key(ino),
                "{what}: inode {ino}, which has records, is there"
            );
        }
        let counter = |id: CounterId| self.counters.get(&(id as u64)).copied().unwrap_or(0);
        let counted = [
            (CounterId::Inodes, self.inodes.len() as i64),
            (CounterId::Bytes, self.bytes.cast_signed()),
            (CounterId::Reserved, self.reserved.cast_signed()),
        ];
        for ((id, found), behind) in counted.into_iter().zip(behind) {
            if is_clone {
                assert!(counter(id) >= found, "{what}: {id:?}: {} and {found}", counter(id));
            } else {
                assert_eq!(counter(id), found + behind, "{what}: {id:?}");
            }
        }
    }
}
