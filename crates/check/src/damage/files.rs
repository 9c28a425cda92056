//! Names the files, and the metadata, that damaged bytes belong to.
//!
//! In the order of keys, names come before regions. So the regions are read first
//! ([`FileNamer::scan_regions`]), and with them the inode numbers of damaged large files are known when the
//! walk over all keys meets their names ([`FileNamer::take`]). Paths are looked up at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;

use warpfire_format::fs::{
    Dentry, DoorVolume, Inode, InodeContent, Key, KeyKind, REGION_BYTES, VolumeId, extents, pointers,
    region_key, snapshot_range, volume_range,
};
use warpfire_format::table::VersionKind;
use warpfire_units::SegmentId;

use super::ledger::{DamageLedger, Loss};
use super::paths::PathFinder;
use super::report::{ByteRange, DamageReport, FileDamage, MetadataDamage};
use crate::load::LoadedPool;
use crate::media::{CheckedSegment, SliceReader};
use crate::names::InoSet;
use crate::report::Findings;
use crate::tables::{CommitVersions, DoorVolumes, LostKeys, Merge, Value, show};

/// Most names of one file in the report.
const NAMES_MAX: usize = 4;

/// Memory of a listed file without its ranges and names, in bytes.
const FILE_BYTES: u64 = 192;

/// A damaged file while its names are sought.
#[derive(Default)]
struct NamedFile {
    size_bytes: Option<u64>,
    lost: Vec<ByteRange>,
    weak: Vec<ByteRange>,
    /// Directory and name of each.
    names: Vec<(u64, Vec<u8>)>,
    more_names: u64,
    /// Whether there was no room for all ranges.
    has_more: bool,
}

/// The damaged files so far.
pub(crate) struct DamagedFiles {
    /// Memory for listed files that lose bytes, and for those that lose redundancy only.
    room: [u64; 2],
    files: BTreeMap<(u32, u64), NamedFile>,
    /// All files with lost bytes and all with weak ones, listed or not, by volume.
    found: BTreeMap<u32, [InoSet; 2]>,
    counted: [u64; 2],
    /// Damaged tables, and stripes of the commit log.
    metadata: Vec<MetadataDamage>,
}

impl DamagedFiles {
    pub(crate) fn new(max_memory_bytes: u64) -> Self {
        DamagedFiles {
            room: [max_memory_bytes / 8, max_memory_bytes / 32],
            files: BTreeMap::new(),
            found: BTreeMap::new(),
            counted: [0; 2],
            metadata: Vec::new(),
        }
    }

    fn record(&mut self, volume: u32, ino: u64, range: ByteRange, loss: Loss) {
        let which = usize::from(loss == Loss::Redundancy);
        let found = self.found.entry(volume).or_default().get_mut(which);
        if found.is_some_and(|set| set.insert(ino))
            && let Some(counted) = self.counted.get_mut(which)
        {
            *counted += 1;
        }
        let room = self.room.get_mut(which).expect("there are two kinds of loss");
        let is_new = !self.files.contains_key(&(volume, ino));
        let need = size_of::<ByteRange>() as u64 + if is_new { FILE_BYTES } else { 0 };
        if *room < need {
            if let Some(file) = self.files.get_mut(&(volume, ino)) {
                file.has_more = true;
            }
            return;
        }
        let file = self.files.entry((volume, ino)).or_default();
        let ranges = if loss == Loss::Bytes { &mut file.lost } else { &mut file.weak };
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => {
                *room -= need;
                ranges.push(range);
            }
        }
    }

    /// The damage, after the last key.
    pub(crate) fn finish(self, loaded: &LoadedPool, reader: &mut SliceReader<'_>) -> DamageReport {
        let mut paths = PathFinder::new(loaded);
        let [files_lost, files_weak] = self.counted;
        let mut report = DamageReport { files: Vec::new(), files_lost, files_weak, metadata: self.metadata };
        report.metadata.sort_by_key(|m| !m.is_lost);
        for ((volume, ino), file) in self.files {
            let size_bytes = file.size_bytes;
            let tidy = |ranges: Vec<ByteRange>| joined(ranges, size_bytes.unwrap_or(u64::MAX));
            let damage = FileDamage {
                inode: ino,
                paths: file.names.iter().map(|(dir, name)| paths.path(volume, *dir, name, reader)).collect(),
                more_paths: file.more_names,
                size_bytes,
                lost: tidy(file.lost),
                weak: tidy(file.weak),
                has_more: file.has_more,
            };
            if !damage.lost.is_empty() || !damage.weak.is_empty() {
                report.files.push(damage);
            }
        }
        report.files.sort_by(|a, b| (a.lost.is_empty(), &a.paths).cmp(&(b.lost.is_empty(), &b.paths)));
        report
    }
}

/// The records of the volumes behind doors, as far as they can be read.
pub(crate) fn door_volumes(loaded: &LoadedPool, reader: &mut SliceReader<'_>) -> DoorVolumes {
    let (quiet, mut volumes) = (Findings::default(), DoorVolumes::new());
    let (from, end) = volume_range();
    let commits = CommitVersions::starting_at(&loaded.commits, loaded.manifest.flushed, &from);
    let mut merge = Merge::new(&loaded.manifest, commits, &from, false, reader, &quiet);
    merge.for_each(reader, &quiet, |key, value| {
        if let (Ok(Key::Volume(volume)), Value::Present(value)) = (Key::decode(key), value)
            && let Ok(record) = DoorVolume::decode(value)
        {
            volumes.insert(volume, record);
        }
        key < &end[..]
    });
    volumes
}

/// Names the files of one ledger.
pub(crate) struct FileNamer<'a> {
    segments: &'a BTreeMap<SegmentId, CheckedSegment>,
    ledger: &'a mut DamageLedger,
    found: &'a mut DamagedFiles,
    /// Whether this walk also takes the names of the files that earlier ones found.
    takes_names: bool,
    /// Lost keys of regions, and regions among them with a value all the same.
    lost_regions: Vec<LostKeys>,
    survivors: BTreeSet<Vec<u8>>,
}

impl<'a> FileNamer<'a> {
    /// A namer of the ledger's files. If there is damage, it reads the regions of all files.
    pub(crate) fn new(
        loaded: &'a LoadedPool,
        ledger: &'a mut DamageLedger,
        found: &'a mut DamagedFiles,
        takes_names: bool,
        reader: &mut SliceReader<'_>,
    ) -> Self {
        let segments = &loaded.segments;
        let mut namer = FileNamer {
            segments,
            ledger,
            found,
            takes_names,
            lost_regions: Vec::new(),
            survivors: BTreeSet::new(),
        };
        if !namer.ledger.is_empty() {
            namer.scan_regions(loaded, reader);
        }
        namer
    }

    /// Reads the regions of all files.
    fn scan_regions(&mut self, loaded: &LoadedPool, reader: &mut SliceReader<'_>) {
        let quiet = Findings::default();
        let mut from = VolumeId::FIRST.0.to_be_bytes().to_vec();
        from.push(KeyKind::Region as u8);
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
        let mut merge = Merge::new(&loaded.manifest, commits, &from, false, reader, &quiet);
        merge.for_each(reader, &quiet, |key, value| {
            if let Ok(Key::Region(volume, ino, index)) = Key::decode(key) {
                match value {
                    Value::Present(value) => self.take_extents(volume.0, ino, index, key, value),
                    Value::Unreadable | Value::Unfolded(_) => self.lose_region(volume.0, ino, index),
                }
            }
            true
        });
        self.lost_regions = merge.lost().cloned().collect();
        self.survivors = std::mem::take(&mut merge.survivors);
    }

    /// Finds the damage of bytes that only snapshots show: older versions of files.
    pub(crate) fn take_snapshots(&mut self, loaded: &LoadedPool, reader: &mut SliceReader<'_>) {
        if self.ledger.is_empty() {
            return;
        }
        let quiet = Findings::default();
        let mut snapshots = Vec::new();
        let (from, end) = snapshot_range();
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
        let mut merge = Merge::new(&loaded.manifest, commits, &from, false, reader, &quiet);
        merge.for_each(reader, &quiet, |key, _| {
            if let Ok(Key::Snapshot(seq, _)) = Key::decode(key) {
                snapshots.push(seq);
            }
            key < &end[..]
        });
        let volumes = door_volumes(loaded, reader);
        snapshots.extend(volumes.values().filter_map(|volume| Some(volume.origin?.seq)));
        snapshots.extend(loaded.manifest.rollbacks.held());
        snapshots.sort_unstable();
        snapshots.dedup();
        if snapshots.is_empty() {
            return;
        }
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
        let mut merge = Merge::new(&loaded.manifest, commits, &[], false, reader, &quiet);
        let mut bytes = [0u64; 2];
        merge.for_each_held(&snapshots, reader, &quiet, |version| {
            let is_operand = version.kind == VersionKind::Merge;
            if version.kind == VersionKind::Delete {
                return;
            }
            // Values that do not decode are findings of the check of names.
            let _ = pointers(version.key, version.value, is_operand, &mut |slice| {
                self.ledger.hits(self.segments, slice, &mut |from, to, loss| {
                    if let Some(sum) = bytes.get_mut(usize::from(loss == Loss::Redundancy)) {
                        *sum += to - from;
                    }
                });
            });
        });
        for (bytes, is_lost) in bytes.into_iter().zip([true, false]).filter(|(bytes, _)| *bytes > 0) {
            let place = format!("snapshots, {bytes} bytes");
            let holds = "older versions of files, which snapshots or clones show".to_owned();
            self.found.metadata.push(MetadataDamage { place, is_lost, holds });
        }
    }

    /// Takes the next key of the whole map, in order.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) {
        // Values that do not decode are findings of the check of names.
        match Key::decode(key) {
            Ok(Key::Inode(volume, ino)) => {
                if let Ok(inode) = Inode::decode(value) {
                    self.take_inode(volume.0, ino, &inode, key, value);
                }
            }
            Ok(Key::Orphan(volume, ino)) => _ = self.found.files.remove(&(volume.0, ino)),
            Ok(Key::Dentry(volume, dir, name)) => {
                let ino = match Dentry::decode(value) {
                    Ok(Dentry::Embedded(inode)) => {
                        self.take_inode(volume.0, inode.ino, &inode, key, value);
                        inode.ino
                    }
                    Ok(Dentry::Reference(_, ino)) => ino,
                    Err(_) => return,
                };
                if let Some(file) = self.found.files.get_mut(&(volume.0, ino)).filter(|_| self.takes_names) {
                    if file.names.len() < NAMES_MAX {
                        file.names.push((dir, name.to_vec()));
                    } else {
                        file.more_names += 1;
                    }
                }
            }
            _ => {}
        }
    }

    fn take_inode(&mut self, volume: u32, ino: u64, inode: &Inode<'_>, key: &[u8], value: &[u8]) {
        match inode.content {
            InodeContent::Small(_) => self.take_extents(volume, ino, 0, key, value),
            InodeContent::Regions => self.lose_regions(volume, ino, inode.attrs.size_bytes),
            _ => {}
        }
        if let Some(file) = self.found.files.get_mut(&(volume, ino)) {
            file.size_bytes = Some(inode.attrs.size_bytes);
        }
    }

    /// Records the damaged bytes of a region or a small file.
    fn take_extents(&mut self, volume: u32, ino: u64, index: u64, key: &[u8], value: &[u8]) {
        let Ok(Some(extents)) = extents(key, value, false) else { return };
        let start = index.saturating_mul(u64::from(REGION_BYTES));
        let mut hits: Vec<(ByteRange, Loss)> = Vec::new();
        for extent in extents.flatten() {
            let Some(slice) = extent.pointer() else { continue };
            let at = start.saturating_add(u64::from(extent.offset));
            self.ledger.hits(self.segments, slice, &mut |from, to, loss| {
                hits.push((ByteRange { start: at.saturating_add(from), end: at.saturating_add(to) }, loss));
            });
        }
        for (range, loss) in hits {
            self.record(volume, ino, range, loss);
        }
    }

    fn lose_region(&mut self, volume: u32, ino: u64, index: u64) {
        let start = index.saturating_mul(u64::from(REGION_BYTES));
        let range = ByteRange { start, end: start.saturating_add(u64::from(REGION_BYTES)) };
        self.record(volume, ino, range, Loss::Bytes);
    }

    /// Records the regions of a file whose keys are lost.
    fn lose_regions(&mut self, volume: u32, ino: u64, size_bytes: u64) {
        let Some(last) = size_bytes.div_ceil(u64::from(REGION_BYTES)).checked_sub(1) else { return };
        let key = |index| region_key(VolumeId(volume), ino, index);
        let (first_key, last_key) = (key(0), key(last));
        let mut lost = Vec::new();
        for range in &self.lost_regions {
            if range.first.as_slice() > &last_key[..] || range.end.as_slice() < &first_key[..] {
                continue;
            }
            // Keys of one file's regions rise with the index.
            let from = partition_point(last, |index| key(index)[..] < range.first[..]);
            let past = partition_point(last, |index| key(index)[..] <= range.end[..]);
            lost.extend((from..past).filter(|index| {
                let key = key(*index);
                range.may_hold(&key) && !self.survivors.contains(&key[..])
            }));
        }
        for index in lost {
            self.lose_region(volume, ino, index);
        }
    }

    fn record(&mut self, volume: u32, ino: u64, range: ByteRange, loss: Loss) {
        self.found.record(volume, ino, range, loss);
    }

    /// Records the damage of tables and of the commit log. `lost` are the keys that could not be read.
    pub(crate) fn take_metadata(self, loaded: &LoadedPool, lost: &[LostKeys], reader: &mut SliceReader<'_>) {
        let paths = &mut PathFinder::new(loaded);
        let all = &mut self.found.metadata;
        for keys in lost {
            let ends = [&keys.first, &keys.end].map(|key| words(key, paths, reader));
            let holds = ends.join(" to ");
            all.push(MetadataDamage { place: keys.place.clone(), is_lost: true, holds });
        }
        for (segment, stripe, is_lost) in self.ledger.log_stripes() {
            let holds = "the latest changes, which are in no table yet".to_owned();
            all.push(MetadataDamage {
                place: format!("commit log, {segment} stripe {stripe}"),
                is_lost,
                holds,
            });
        }
        for table in loaded.manifest.tables() {
            let mut bytes = [0u64; 2];
            for slice in &table.slices {
                self.ledger.hits(self.segments, *slice, &mut |from, to, loss| {
                    if let Some(sum) = bytes.get_mut(usize::from(loss == Loss::Redundancy)) {
                        *sum += to - from;
                    }
                });
            }
            let [lost_bytes, weak_bytes] = bytes;
            if bytes == [0; 2] {
                continue;
            }
            let ends = [&table.smallest, &table.largest].map(|key| words(key, paths, reader));
            let holds = ends.join(" to ");
            if lost_bytes > 0 {
                let place = format!("table {}, {lost_bytes} bytes", table.id);
                all.push(MetadataDamage { place, is_lost: true, holds: holds.clone() });
            }
            if weak_bytes > 0 {
                let place = format!("table {}, {weak_bytes} bytes", table.id);
                all.push(MetadataDamage { place, is_lost: false, holds });
            }
        }
    }
}

/// The first number in `0..=last` for which `is_before` is false; `last + 1` if there is none.
fn partition_point(last: u64, is_before: impl Fn(u64) -> bool) -> u64 {
    let (mut from, mut past) = (0, last.saturating_add(1));
    while from < past {
        let middle = from + (past - from) / 2;
        if is_before(middle) {
            from = middle + 1;
        } else {
            past = middle;
        }
    }
    from
}

/// The ranges below `end`, sorted and joined.
fn joined(mut ranges: Vec<ByteRange>, end: u64) -> Vec<ByteRange> {
    ranges.sort_unstable();
    let mut all: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let range = ByteRange { start: range.start, end: range.end.min(end) };
        match all.last_mut() {
            _ if range.start >= range.end => {}
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// A key, or the beginning of one, in words that name its file.
fn words(key: &[u8], paths: &mut PathFinder<'_>, reader: &mut SliceReader<'_>) -> String {
    match Key::decode(key) {
        Ok(Key::Dentry(volume, dir, name)) => {
            format!("name {}", paths.path(volume.0, dir, name, reader).escape_ascii())
        }
        Ok(Key::Inode(volume, ino)) => {
            format!("inode {ino} ({})", paths.directory(volume.0, ino, reader).escape_ascii())
        }
        Ok(_) => show(key),
        Err(_) => match key.get(4) {
            None => "the first key".to_owned(),
            Some(3) => "inodes".to_owned(),
            Some(5) => "names".to_owned(),
            Some(6) => "attributes".to_owned(),
            Some(7) => "contents of large files".to_owned(),
            Some(_) => "counters".to_owned(),
        },
    }
}
