//! One pass over the map: hands each key to the check of its volume.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::Corrupt;
use warpfire_format::fs::{
    BookmarkRecord, DoorVolume, FilesystemRecord, HealthRecord, Key, PoolRecordId, RolledBack, SnapshotName,
    SnapshotRecord, SnapshotRuleRecord, VolumeId, VolumeRecord, WishesRecord, decode_counter,
};
use warpfire_format::key_hash;
use warpfire_units::Seq;

pub(super) use super::facts::InoRange;
use super::volume::{PassContext, VolumeCheck};
use crate::code::FindingCode;
use crate::report::{Findings, Totals};
use crate::tables::{DoorVolumes, show};

/// The names of the sums of a volume.
const SUM_NAMES: [&str; 3] = ["inodes", "bytes", "reserved bytes"];

/// The volume that a key belongs to; `None` for records of the whole pool.
fn volume_of_key(key: &Key<'_>) -> Option<VolumeId> {
    match *key {
        Key::Pool(PoolRecordId::Volume(volume))
        | Key::Counter(volume, _)
        | Key::Inode(volume, _)
        | Key::Orphan(volume, _)
        | Key::Dentry(volume, ..)
        | Key::Xattr(volume, ..)
        | Key::Region(volume, ..) => Some(volume),
        _ => None,
    }
}

/// Keys between two measurements of the memory of the facts.
const MEASURE_EVERY: u64 = 4096;

/// The outcome of a pass.
pub(super) enum PassOutcome {
    /// The window is checked. `next` is the next window, `None` after the last.
    Done { next: Option<InoRange> },
    /// The facts outgrew the memory. All inode numbers are below `past`.
    TooMuch { past: u64 },
}

/// The records of snapshots against the records of their names: a sum to which each record adds, and from
/// which each name takes the same away. So it takes no memory, however many snapshots there are.
#[derive(Default)]
struct SnapshotSum(u64);

impl SnapshotSum {
    fn number(seq: Seq, of: VolumeId, name: &[u8]) -> u64 {
        let mut bytes = Key::Snapshot(seq, of).encode();
        bytes.extend_from_slice(name);
        key_hash(&bytes)
    }

    fn add(&mut self, seq: Seq, of: VolumeId, name: &[u8]) {
        self.0 = self.0.wrapping_add(Self::number(seq, of, name));
    }

    fn subtract(&mut self, seq: Seq, of: VolumeId, name: &[u8]) {
        self.0 = self.0.wrapping_sub(Self::number(seq, of, name));
    }

    fn is_even(&self) -> bool {
        self.0 == 0
    }
}

/// A pass over the map.
pub(super) struct NamesPass<'a> {
    window: InoRange,
    max_memory_bytes: u64,
    context: PassContext<'a>,
    filesystem_record_seen: bool,
    volume: Option<VolumeCheck>,
    keys: u64,
    too_much: bool,
    has_holes: bool,
    snapshots: SnapshotSum,
    /// The volumes behind doors. Their records come before all keys of volumes.
    volumes: DoorVolumes,
    /// The doors that were found: the directory by its number, and the hash of the name.
    doors: BTreeMap<VolumeId, Vec<(u64, u64)>>,
    /// The places that the roots of volumes behind doors have by their own records.
    roots: BTreeMap<VolumeId, (u64, u64)>,
    /// The counters of the first volume, and the sums that were found in it.
    first_sums: Option<([i64; 3], [i64; 3])>,
    /// What the counters of the other volumes say, together.
    sums_behind_doors: [i64; 3],
    /// Volumes of which keys were found and that have no record.
    unknown: BTreeSet<VolumeId>,
    /// Findings that hold only if the whole map was readable.
    doubtful: Findings,
}

impl<'a> NamesPass<'a> {
    pub(super) fn new(
        window: InoRange,
        is_first: bool,
        max_memory_bytes: u64,
        totals: &'a mut Totals,
        findings: &'a Findings,
    ) -> Self {
        NamesPass {
            window,
            max_memory_bytes,
            context: PassContext { is_first, next_ino: u64::MAX, totals, findings },
            filesystem_record_seen: false,
            volume: None,
            keys: 0,
            too_much: false,
            has_holes: false,
            snapshots: SnapshotSum::default(),
            volumes: DoorVolumes::new(),
            doors: BTreeMap::new(),
            roots: BTreeMap::new(),
            first_sums: None,
            sums_behind_doors: [0; 3],
            unknown: BTreeSet::new(),
            doubtful: Findings::default(),
        }
    }

    /// Takes the next key. Keys come in order. `false` if the pass needs no more keys.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.keys += 1;
        self.context.totals.keys += u64::from(self.context.is_first);
        match Key::decode(key) {
            Ok(key) if self.is_left_out(&key) => {}
            Ok(key) => self.take_decoded(key, value, true),
            Err(e) => self.context.findings.error(FindingCode::Value, format_args!("key {}", show(key)), e),
        }
        if self.keys.is_multiple_of(MEASURE_EVERY) {
            self.measure();
        }
        // The first pass goes on without facts, because it also checks every value.
        self.context.is_first || !self.too_much
    }

    /// Takes the next key that a clone shows. Keys of one clone come in order, after those of `take`.
    pub(super) fn take_shown(&mut self, key: &[u8], value: &[u8], is_own: bool) -> bool {
        self.keys += 1;
        match Key::decode(key) {
            // The snapshots of the first volume are none of its clones, and are taken there.
            Ok(Key::SnapshotName(..) | Key::SnapshotRule(..) | Key::Bookmark(..)) if !is_own => {}
            Ok(key) => self.take_decoded(key, value, is_own),
            // Keys that do not decode are findings of their own volume.
            Err(_) => {}
        }
        if self.keys.is_multiple_of(MEASURE_EVERY) {
            self.measure();
        }
        self.context.is_first || !self.too_much
    }

    /// The volumes behind doors.
    pub(super) fn volumes(&self) -> &DoorVolumes {
        &self.volumes
    }

    /// The clones that are not removed, each with the seq at which it is shown.
    pub(super) fn clones(&self) -> Vec<(VolumeId, Seq)> {
        // With those that are detached and whose origin is kept for snapshots: they show nothing of it now.
        let clones = self.volumes.iter().filter(|(_, v)| v.removed_at.is_none() && v.origin.is_some());
        clones.map(|(volume, _)| (*volume, Seq::MAX)).collect()
    }

    /// The origins of a volume are too deep, or in a circle.
    pub(super) fn refuse_origins(&self, volume: VolumeId) {
        let place = format_args!("volume {}", volume.0);
        let message = "its origins are too deep, or in a circle";
        self.context.findings.error(FindingCode::PoolRecords, place, message);
    }

    /// Whether a key is taken later, when its clone is shown, or is of a volume that is removed.
    fn is_left_out(&mut self, key: &Key<'_>) -> bool {
        let Some(volume) = volume_of_key(key).filter(|volume| *volume > VolumeId::FIRST) else {
            return false;
        };
        match self.volumes.get(&volume) {
            Some(record) => record.removed_at.is_some() || record.origin.is_some(),
            None => {
                if self.context.is_first && self.unknown.insert(volume) {
                    let place = format_args!("volume {}", volume.0);
                    self.doubtful.error(FindingCode::PoolRecords, place, "has keys and no record");
                }
                true
            }
        }
    }

    /// Takes a key with an unreadable value.
    pub(super) fn take_hole(&mut self) -> bool {
        self.has_holes = true;
        true
    }

    /// Takes a key whose versions do not fold. In a removed volume that says nothing: compaction drops the
    /// versions that nobody reads from one run before another, and a base may go before its operands.
    pub(super) fn take_unfolded(&mut self, key: &[u8], error: Corrupt) -> bool {
        let volume = Key::decode(key).ok().and_then(|key| volume_of_key(&key));
        if volume.and_then(|of| self.volumes.get(&of)).is_some_and(|record| record.removed_at.is_some()) {
            return true;
        }
        if self.context.is_first {
            self.context.findings.error(FindingCode::Value, show(key), error);
        }
        self.take_hole()
    }

    fn measure(&mut self) {
        let Some(volume) = &mut self.volume else { return };
        let bytes = volume.bytes();
        let most = &mut self.context.totals.ledger_bytes_max;
        *most = (*most).max(bytes);
        if bytes > self.max_memory_bytes {
            self.too_much = true;
            volume.give_up();
        }
    }

    fn take_decoded(&mut self, key: Key<'_>, value: &[u8], is_own: bool) {
        let volume_id = match key {
            Key::Volume(volume) => return self.take_volume(volume, value),
            Key::Pool(PoolRecordId::Filesystem) => return self.take_filesystem_record(value),
            Key::Pool(PoolRecordId::Health) => return self.take_health_record(value),
            Key::Pool(PoolRecordId::Wishes) => return self.take_wishes_record(value),
            Key::Snapshot(seq, of) => return self.take_snapshot(seq, of, value),
            Key::SnapshotName(of, name) => return self.take_snapshot_name(of, name, value),
            Key::SnapshotRule(_, name) => return self.take_snapshot_rule(name, value),
            Key::Bookmark(_, name) => return self.take_bookmark(name, value),
            Key::Rollback(at, _) => return self.take_rollback(at, value),
            Key::Pool(PoolRecordId::Volume(v))
            | Key::Counter(v, _)
            | Key::Inode(v, _)
            | Key::Orphan(v, _)
            | Key::Dentry(v, ..)
            | Key::Xattr(v, ..)
            | Key::Region(v, ..) => v,
        };
        // Keys of a volume are neighbours, so only one volume is in memory at a time.
        self.enter(volume_id);
        let volume = self.volume.as_mut().expect("a volume was entered");
        let context = &mut self.context;
        match key {
            Key::Pool(_) => match VolumeRecord::decode(value) {
                Ok(record) => volume.take_root(record.root_ino),
                Err(e) => {
                    context.findings.error(FindingCode::Value, format_args!("volume {}", volume_id.0), e)
                }
            },
            Key::Counter(_, id) => match decode_counter(value) {
                Ok(sum) => volume.take_counter(id, sum),
                Err(e) => context.findings.error(FindingCode::Value, format_args!("counter {id:?}"), e),
            },
            Key::Inode(_, ino) => volume.take_inode(ino, value, context),
            Key::Orphan(_, ino) => volume.take_orphan(ino, value, context),
            Key::Dentry(_, dir, name) => {
                if let Some((to, place)) = volume.take_name(dir, name, value, context)
                    && is_own
                {
                    self.doors.entry(to).or_default().push(place);
                }
            }
            Key::Xattr(_, ino, name) => volume.take_attribute(ino, name, value, context),
            Key::Region(_, ino, index) => volume.take_region(ino, index, value, context),
            Key::Snapshot(..)
            | Key::SnapshotName(..)
            | Key::SnapshotRule(..)
            | Key::Bookmark(..)
            | Key::Rollback(..)
            | Key::Volume(_) => unreachable!("they are taken above"),
        }
    }

    fn take_volume(&mut self, volume: VolumeId, value: &[u8]) {
        match DoorVolume::decode(value) {
            Ok(record) => _ = self.volumes.insert(volume, record),
            Err(e) => {
                let place = format_args!("volume {}", volume.0);
                self.context.findings.error(FindingCode::PoolRecords, place, e);
            }
        }
    }

    fn take_snapshot(&mut self, seq: Seq, of: VolumeId, value: &[u8]) {
        match SnapshotRecord::decode(value) {
            Ok(record) => self.snapshots.add(seq, of, record.name),
            Err(e) => {
                self.context.findings.error(FindingCode::PoolRecords, format_args!("snapshot {}", seq.0), e)
            }
        }
    }

    fn take_snapshot_name(&mut self, of: VolumeId, name: &[u8], value: &[u8]) {
        match SnapshotName::decode(value) {
            Ok(record) => self.snapshots.subtract(record.seq, of, name),
            Err(e) => {
                let place = format_args!("snapshot {}", name.escape_ascii());
                self.context.findings.error(FindingCode::PoolRecords, place, e);
            }
        }
    }

    fn take_snapshot_rule(&mut self, name: &[u8], value: &[u8]) {
        if let Err(e) = SnapshotRuleRecord::decode(value) {
            let place = format_args!("rule {}", name.escape_ascii());
            self.context.findings.error(FindingCode::PoolRecords, place, e);
        }
    }

    fn take_bookmark(&mut self, name: &[u8], value: &[u8]) {
        if let Err(e) = BookmarkRecord::decode(value) {
            let place = format_args!("bookmark {}", name.escape_ascii());
            self.context.findings.error(FindingCode::PoolRecords, place, e);
        }
    }

    fn take_rollback(&mut self, at: Seq, value: &[u8]) {
        if let Err(e) = RolledBack::decode(at, value) {
            self.context.findings.error(FindingCode::PoolRecords, format_args!("rollback {}", at.0), e);
        }
    }

    fn take_filesystem_record(&mut self, value: &[u8]) {
        self.filesystem_record_seen = true;
        match FilesystemRecord::decode(value) {
            Ok(filesystem_record) => self.context.next_ino = filesystem_record.next_ino,
            Err(e) => self.context.findings.error(FindingCode::PoolRecords, "filesystem record", e),
        }
    }

    fn take_health_record(&mut self, value: &[u8]) {
        if let Err(e) = HealthRecord::decode(value) {
            self.context.findings.error(FindingCode::PoolRecords, "health record", e);
        }
    }

    fn take_wishes_record(&mut self, value: &[u8]) {
        if let Err(e) = WishesRecord::decode(value) {
            self.context.findings.error(FindingCode::PoolRecords, "wishes record", e);
        }
    }

    fn enter(&mut self, id: VolumeId) {
        if self.volume.as_ref().is_some_and(|v| v.id == id.0) {
            return;
        }
        self.leave();
        let mut volume = VolumeCheck::new(id.0, self.window);
        if let Some(record) = self.volumes.get(&id) {
            volume.take_root(record.root);
            volume.shows_origin = record.origin.is_some_and(|origin| origin.is_read_at(Seq::MAX));
            volume.may_miss_names = self.shows_detached(record);
        }
        if self.too_much {
            volume.give_up();
        }
        self.volume = Some(volume);
    }

    /// Whether a volume is a detached clone, or shows one: then names of its files may have been outside of
    /// the cloned directory.
    fn shows_detached(&self, record: &DoorVolume) -> bool {
        let mut below = Some(record);
        // Origins in a circle are a finding of their own.
        for _ in 0..=self.volumes.len() {
            let Some(record) = below else { return false };
            if record.is_detached {
                return true;
            }
            below = record.origin.and_then(|origin| self.volumes.get(&origin.volume));
        }
        false
    }

    fn leave(&mut self) {
        self.measure();
        if let Some(mut volume) = self.volume.take() {
            let id = VolumeId(volume.id);
            if let Some(place) = volume.door_place() {
                self.roots.insert(id, place);
            }
            if !volume.gave_up {
                volume.finish();
            }
            if self.context.is_first {
                self.compare_sums(&mut volume);
            }
            self.doubtful.append(volume.doubtful);
        }
    }

    /// Compares the sums of a volume behind a door. Those of the first volume count all volumes, so they
    /// wait.
    fn compare_sums(&mut self, volume: &mut VolumeCheck) {
        let (said, found) = volume.sums();
        if volume.id == VolumeId::FIRST.0 {
            self.first_sums = Some((said, found));
            return;
        }
        for (sum, said) in self.sums_behind_doors.iter_mut().zip(said) {
            *sum = sum.wrapping_add(said);
        }
        // A clone counts the whole origin, also orphans that it does not show.
        let is_right =
            |said: i64, found: i64| if volume.shows_origin { said >= found } else { said == found };
        for (name, (said, found)) in SUM_NAMES.into_iter().zip(said.into_iter().zip(found)) {
            if !is_right(said, found) {
                let place = format_args!("volume {} sum of {name}", volume.id);
                let message = format_args!("says {said}; the counted sum is {found}");
                self.doubtful.error(FindingCode::Counter, place, message);
            }
        }
    }

    /// Compares the sums of the first volume with those of all volumes.
    fn compare_first_sums(&mut self) {
        let Some((said, found)) = self.first_sums else { return };
        for ((name, said), (found, behind)) in
            SUM_NAMES.into_iter().zip(said).zip(found.into_iter().zip(self.sums_behind_doors))
        {
            let found = found.wrapping_add(behind);
            if said != found {
                let place = format_args!("volume {} sum of {name}", VolumeId::FIRST.0);
                let message = format_args!("says {said}; the counted sum is {found}");
                self.doubtful.error(FindingCode::Counter, place, message);
            }
        }
    }

    /// Compares each volume with its door.
    fn compare_doors(&mut self) {
        for (volume, record) in &self.volumes {
            let place = format_args!("volume {}", volume.0);
            let doors = self.doors.get(volume).map_or(&[][..], Vec::as_slice);
            if record.removed_at.is_some() {
                continue;
            }
            if doors.len() != 1 && self.context.is_first {
                let message = format_args!("has {} doors", doors.len());
                self.doubtful.error(FindingCode::DirectoryPlace, place, message);
            }
            if let (Some(root), [door]) = (self.roots.get(volume), doors)
                && root != door
            {
                let message = "its root has another place than its door";
                self.doubtful.error(FindingCode::DirectoryPlace, place, message);
            }
        }
        let is_live = |volume: &VolumeId| self.volumes.get(volume).is_some_and(|v| v.removed_at.is_none());
        for volume in self.doors.keys().filter(|volume| self.context.is_first && !is_live(volume)) {
            let place = format_args!("volume {}", volume.0);
            self.doubtful.error(
                FindingCode::NameWithoutInode,
                place,
                "has a door, and there is no such volume",
            );
        }
    }

    /// Ends the pass. With `holes` part of the map could not be read, so an absent key may exist.
    pub(super) fn finish(mut self, holes: bool) -> PassOutcome {
        self.leave();
        self.compare_first_sums();
        self.compare_doors();
        if self.context.is_first && self.keys > 0 && !self.filesystem_record_seen {
            self.doubtful.error(FindingCode::PoolRecords, "pool", "has names and no filesystem record");
        }
        if self.context.is_first && !self.snapshots.is_even() {
            let message = "the records of snapshots and the names that refer to them differ";
            self.doubtful.error(FindingCode::PoolRecords, "snapshots", message);
        }
        if !(holes || self.has_holes) {
            self.context.findings.append(self.doubtful);
        } else if self.context.is_first {
            let message = "part of the map is unreadable, so links, sums and the tree are not checked";
            self.context.findings.note(FindingCode::NotChecked, "names", message);
        }
        let past = self.context.next_ino;
        if self.too_much {
            return PassOutcome::TooMuch { past };
        }
        let next = if self.window.is_all() { None } else { self.window.next(past) };
        PassOutcome::Done { next }
    }
}
