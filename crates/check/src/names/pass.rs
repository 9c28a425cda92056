//! One pass over the map: hands each key to the check of its volume.

use warpfire_format::fs::{
    FilesystemRecord, HealthRecord, Key, PoolRecordId, SnapshotName, SnapshotRecord, SnapshotRuleRecord,
    VolumeId, VolumeRecord, WishesRecord, decode_counter,
};
use warpfire_format::key_hash;
use warpfire_units::Seq;

pub(super) use super::facts::InoRange;
use super::volume::{PassContext, VolumeCheck};
use crate::code::FindingCode;
use crate::report::{Findings, Totals};
use crate::tables::show;

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
            doubtful: Findings::default(),
        }
    }

    /// Takes the next key. Keys come in order. `false` if the pass needs no more keys.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.keys += 1;
        self.context.totals.keys += u64::from(self.context.is_first);
        match Key::decode(key) {
            Ok(key) => self.take_decoded(key, value),
            Err(e) => self.context.findings.error(FindingCode::Value, format_args!("key {}", show(key)), e),
        }
        if self.keys.is_multiple_of(MEASURE_EVERY) {
            self.measure();
        }
        // The first pass goes on without facts, because it also checks every value.
        self.context.is_first || !self.too_much
    }

    /// Takes a key with an unreadable value.
    pub(super) fn take_hole(&mut self) -> bool {
        self.has_holes = true;
        true
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

    fn take_decoded(&mut self, key: Key<'_>, value: &[u8]) {
        let volume_id = match key {
            Key::Pool(PoolRecordId::Filesystem) => return self.take_filesystem_record(value),
            Key::Pool(PoolRecordId::Health) => return self.take_health_record(value),
            Key::Pool(PoolRecordId::Wishes) => return self.take_wishes_record(value),
            Key::Snapshot(seq, of) => return self.take_snapshot(seq, of, value),
            Key::SnapshotName(of, name) => return self.take_snapshot_name(of, name, value),
            Key::SnapshotRule(_, name) => return self.take_snapshot_rule(name, value),
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
            Key::Dentry(_, dir, name) => volume.take_name(dir, name, value, context),
            Key::Xattr(_, ino, name) => volume.take_attribute(ino, name, value, context),
            Key::Region(_, ino, index) => volume.take_region(ino, index, value, context),
            Key::Snapshot(..) | Key::SnapshotName(..) | Key::SnapshotRule(..) => {
                unreachable!("they are taken above")
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
        if self.too_much {
            volume.give_up();
        }
        self.volume = Some(volume);
    }

    fn leave(&mut self) {
        self.measure();
        if let Some(mut volume) = self.volume.take() {
            if volume.gave_up {
                volume.finish_sums(&self.context);
            } else {
                volume.finish(&self.context);
            }
            self.doubtful.append(volume.doubtful);
        }
    }

    /// Ends the pass. With `holes` part of the map could not be read, so an absent key may exist.
    pub(super) fn finish(mut self, holes: bool) -> PassOutcome {
        self.leave();
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
