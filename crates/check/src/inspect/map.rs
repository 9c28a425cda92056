//! Dumps of tables, keys and inodes.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_format::fs::{
    BookmarkRecord, Dentry, DoorVolume, Extent, ExtentSource, FilesystemRecord, HealthRecord, Inode,
    InodeContent, InodeEdit, InodeTime, Key, PoolRecordId, RolledBack, SnapshotName, SnapshotRecord,
    SnapshotRuleRecord, VolumeRecord, WishesRecord, decode_counter, decode_region,
};
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{Partition, VersionKind};
use warpfire_units::{Seq, SlicePtr};

use super::DumpValue;
use crate::load::{LoadedPool, load};
use crate::media::SliceReader;
use crate::options::CheckError;
use crate::report::{Findings, Totals};
use crate::tables::{CommitVersions, Merge, Value, read_table, read_top, show};

/// All tables, by number.
///
/// # Errors
/// If there is no pool, or its newest root does not decode.
pub fn tables(devices: &[Arc<dyn Device>]) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let is_past = |t: &TableDescriptor| loaded.manifest.is_past(t.run);
    let tables = loaded.manifest.tables().map(|t| DumpValue::Fields(summary(t, is_past(t))));
    Ok(DumpValue::List(tables.collect()))
}

fn summary(t: &TableDescriptor, is_past: bool) -> Vec<(&'static str, DumpValue)> {
    vec![
        ("table", t.id.into()),
        ("run", t.run.into()),
        ("of", if is_past { "the past" } else { "the present" }.into()),
        ("versions", t.entries.into()),
        ("deletes", t.deletes.into()),
        ("superseded", t.superseded.into()),
        ("bytes", t.len_bytes.into()),
        ("first_commit", t.seq_min.0.into()),
        ("last_commit", t.seq_max.0.into()),
        ("smallest", show(&t.smallest).into()),
        ("largest", show(&t.largest).into()),
    ]
}

/// One table: its slices, partitions and references.
///
/// # Errors
/// If there is no pool, or no such table.
pub fn table(devices: &[Arc<dyn Device>], id: u64) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let entry = loaded.manifest.table(id).ok_or_else(|| CheckError::NotFound(format!("table {id}")))?;
    let mut reader = SliceReader::new(&loaded.media, &loaded.segments);
    // The manifest's fields come first: they can be shown when no block of the table can be read.
    let mut fields = summary(entry, loaded.manifest.is_past(entry.run));
    fields.push(("slices", DumpValue::List(entry.slices.iter().map(|s| slice(*s)).collect())));
    let references = entry.references.iter().map(|(segment, bytes)| {
        DumpValue::Fields(vec![("segment", segment.get().into()), ("bytes", (*bytes).into())])
    });
    fields.push(("references", DumpValue::List(references.collect())));
    let partitions = match read_top(entry, &mut reader) {
        Err(message) => message.into(),
        Ok(top) => {
            let each = top.partitions().iter().map(|place| {
                let mut bytes = Vec::new();
                let partition = read_table(entry, place.offset, place.len, &mut reader, &mut bytes)
                    .and_then(|()| Partition::decode(&bytes).map_err(|e| e.to_string()));
                let mut fields = vec![("offset", place.offset.into()), ("bytes", place.len.into())];
                match partition {
                    Ok(p) => fields.push(("data_blocks", (p.blocks().len() as u64).into())),
                    Err(message) => fields.push(("damage", message.into())),
                }
                DumpValue::Fields(fields)
            });
            DumpValue::List(each.collect())
        }
    };
    fields.push(("partitions", partitions));
    Ok(DumpValue::Fields(fields))
}

/// Calls `each` with every key that has a value, in order, until it returns `false`.
fn walk(loaded: &LoadedPool, each: impl FnMut(&[u8], Value<'_>) -> bool) {
    let quiet = Findings::default();
    let mut reader = SliceReader::new(&loaded.media, &loaded.segments);
    let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
    let mut merge = Merge::new(&loaded.manifest, commits, &[], false, &mut reader, &quiet);
    merge.for_each(&mut reader, &quiet, each);
}

/// One key: its value, and each of its versions with its place.
///
/// # Errors
/// If there is no pool, or no such key.
pub fn key(devices: &[Arc<dyn Device>], wanted: &[u8]) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let mut versions = Vec::new();
    let quiet = Findings::default();
    let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
    let mut version = |place: String, kind: VersionKind, seq: u64, value: &[u8]| {
        versions.push(DumpValue::Fields(vec![
            ("in", place.into()),
            ("commit", seq.into()),
            ("does", format!("{kind:?}").to_lowercase().into()),
            ("value", describe(wanted, value, kind == VersionKind::Merge)),
        ]));
    };
    // Newest first: the commit log, then the runs in the order of the manifest. Those of the past come last.
    for change in commits.all().iter().filter(|c| c.key == wanted) {
        version("commit log".into(), change.kind, change.seq.0, change.value);
    }
    let mut reader = SliceReader::new(&loaded.media, &loaded.segments);
    for run in loaded.manifest.runs().into_iter().chain(loaded.manifest.past()) {
        let holds = |t: &&&TableDescriptor| t.smallest.as_slice() <= wanted && wanted <= t.largest.as_slice();
        let Some(entry) = run.iter().find(holds) else { continue };
        let Some(block) = crate::tables::find_block(entry, wanted, &mut reader) else { continue };
        let start = block.find(wanted);
        if start < block.len() && block.key(start) == wanted {
            for i in start..block.group_end(start) {
                let e = block.entry(i);
                let of = if loaded.manifest.is_past(entry.run) { " of the past" } else { "" };
                version(format!("table {} of run {}{of}", entry.id, entry.run), e.kind, e.seq.0, e.value);
            }
        }
    }
    if versions.is_empty() {
        return Err(CheckError::NotFound(format!("key {}", show(wanted))));
    }
    let mut resolved: DumpValue = "none".into();
    walk(&loaded, |key, value| {
        if let (true, Value::Present(value)) = (key == wanted, value) {
            resolved = describe(key, value, false);
        }
        key < wanted
    });
    Ok(DumpValue::Fields(vec![
        ("key", show(wanted).into()),
        ("value", resolved),
        ("versions", DumpValue::List(versions)),
    ]))
}

/// One inode: its record and every key that refers to it. Reads the whole map, because an inode may be the
/// value of any name.
///
/// # Errors
/// If there is no pool, or no such inode.
pub fn inode(devices: &[Arc<dyn Device>], ino: u64) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let mut found = Vec::new();
    walk(&loaded, |key, value| {
        let Value::Present(value) = value else { return true };
        let concerns = match Key::decode(key) {
            Ok(Key::Inode(_, n) | Key::Orphan(_, n) | Key::Xattr(_, n, _) | Key::Region(_, n, _)) => n == ino,
            Ok(Key::Dentry(..)) => Dentry::decode(value).is_ok_and(|d| d.ino() == ino),
            _ => false,
        };
        if concerns {
            let value = describe(key, value, false);
            found.push(DumpValue::Fields(vec![("key", show(key).into()), ("value", value)]));
        }
        true
    });
    if found.is_empty() {
        return Err(CheckError::NotFound(format!("inode {ino}")));
    }
    Ok(DumpValue::Fields(vec![("inode", ino.into()), ("records", DumpValue::List(found))]))
}

fn slice(slice: SlicePtr) -> DumpValue {
    DumpValue::Fields(vec![
        ("segment", slice.segment.get().into()),
        ("offset", slice.offset_bytes.into()),
        ("bytes", slice.len_bytes.into()),
    ])
}

/// A value or an operand. Bytes that do not decode are shown escaped, with the error.
fn describe(key: &[u8], value: &[u8], is_operand: bool) -> DumpValue {
    // One error for all: a value that does not decode by its key is shown as bytes below.
    let described = Key::decode(key).and_then(|key| {
        Ok(match key {
            Key::Counter(..) => decode_counter(value)?.into(),
            Key::Region(..) => extents(decode_region(value, is_operand)?.iter().copied()),
            Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) if is_operand => {
                format!("{:?}", InodeEdit::decode(value)?).into()
            }
            Key::Inode(..) | Key::Orphan(..) => describe_inode(&Inode::decode(value)?),
            Key::Dentry(..) => match Dentry::decode(value)? {
                Dentry::Reference(kind, ino) => {
                    DumpValue::Fields(vec![("refers_to", ino.into()), ("type", format!("{kind:?}").into())])
                }
                Dentry::Embedded(inode) => describe_inode(&inode),
            },
            Key::Xattr(..) => value.escape_ascii().to_string().into(),
            Key::Pool(PoolRecordId::Filesystem) => {
                DumpValue::Fields(vec![("next_inode", FilesystemRecord::decode(value)?.next_ino.into())])
            }
            Key::Pool(PoolRecordId::Health) => {
                let health = HealthRecord::decode(value)?;
                let scrubbed = health.scrub.map_or(0, |scrub| scrub.ended_seconds);
                DumpValue::Fields(vec![
                    ("rebuilt_blocks", health.rebuilt_blocks.into()),
                    ("bad_blocks", health.bad_blocks().into()),
                    ("last_scrub_seconds", scrubbed.into()),
                    ("damaged_files", (health.damaged_files.len() as u64 + health.more_damaged_files).into()),
                ])
            }
            Key::Pool(PoolRecordId::Wishes) => {
                let wishes = WishesRecord::decode(value)?;
                let (every, rate) = wishes.schedule.map_or((0, 0), |s| (s.every_seconds, s.rate_bytes));
                DumpValue::Fields(vec![
                    ("upkeep_paused", u64::from(wishes.is_paused).into()),
                    ("upkeep_rate_bytes", wishes.rate_bytes.into()),
                    ("scrub_every_seconds", every.into()),
                    ("scrub_rate_bytes", rate.into()),
                    ("scrub_cursor", wishes.round.map_or(0, |round| round.cursor).into()),
                ])
            }
            Key::Snapshot(..) => {
                let snapshot = SnapshotRecord::decode(value)?;
                DumpValue::Fields(vec![
                    ("name", snapshot.name.escape_ascii().to_string().into()),
                    ("made_seconds", snapshot.made.seconds.into()),
                    ("inodes", snapshot.inodes.into()),
                    ("bytes", snapshot.bytes.into()),
                    ("rule", snapshot.rule.unwrap_or_default().escape_ascii().to_string().into()),
                    ("holds", (snapshot.holds.len() as u64).into()),
                ])
            }
            Key::SnapshotRule(..) => {
                let rule = SnapshotRuleRecord::decode(value)?;
                DumpValue::Fields(vec![
                    ("every_seconds", rule.every_seconds.into()),
                    ("expire_seconds", rule.expire_seconds.into()),
                    ("free_permille", u64::from(rule.free_permille).into()),
                ])
            }
            Key::SnapshotName(..) => {
                DumpValue::Fields(vec![("seq", SnapshotName::decode(value)?.seq.0.into())])
            }
            Key::Bookmark(..) => {
                let bookmark = BookmarkRecord::decode(value)?;
                DumpValue::Fields(vec![
                    ("seq", bookmark.seq.0.into()),
                    ("made_seconds", bookmark.made.seconds.into()),
                    ("snapshot", bookmark.snapshot.escape_ascii().to_string().into()),
                ])
            }
            Key::Rollback(at, _) => {
                let rollback = RolledBack::decode(at, value)?;
                DumpValue::Fields(vec![
                    ("to", rollback.to.0.into()),
                    ("ended_at", rollback.ended_at.map_or(0, |ended| ended.0).into()),
                ])
            }
            Key::Volume(_) => {
                let volume = DoorVolume::decode(value)?;
                let seq = |seq: Option<Seq>| DumpValue::from(seq.map_or(0, |seq| seq.0));
                DumpValue::Fields(vec![
                    ("root", volume.root.into()),
                    ("removed_at", seq(volume.removed_at)),
                    ("origin", volume.origin.map_or(0, |origin| u64::from(origin.volume.0)).into()),
                    ("origin_seq", seq(volume.origin.map(|origin| origin.seq))),
                    ("released_at", seq(volume.origin.and_then(|origin| origin.released_at))),
                    ("is_detached", u64::from(volume.is_detached).into()),
                ])
            }
            Key::Pool(_) => {
                let volume = VolumeRecord::decode(value)?;
                let name = volume.name.escape_ascii().to_string();
                DumpValue::Fields(vec![("root", volume.root_ino.into()), ("name", name.into())])
            }
        })
    });
    described.unwrap_or_else(|e| format!("{e}: {}", value.escape_ascii()).into())
}

fn describe_inode(inode: &Inode<'_>) -> DumpValue {
    let a = &inode.attrs;

    let time = |t: InodeTime| -> DumpValue { format!("{}.{:09}", t.seconds, t.nanos).into() };
    let content = match inode.content {
        InodeContent::None => "none".into(),
        InodeContent::Regions => "in regions".into(),
        // Extents decode one by one, so a damaged list still shows those before the damage.
        InodeContent::Small(small) => extents(small.filter_map(Result::ok)),
        InodeContent::Symlink(target) => {
            DumpValue::Fields(vec![("target", target.escape_ascii().to_string().into())])
        }
        InodeContent::Directory(parent, name) => DumpValue::Fields(vec![
            ("parent", parent.into()),
            ("name", name.escape_ascii().to_string().into()),
        ]),
    };
    DumpValue::Fields(vec![
        ("inode", inode.ino.into()),
        ("type", format!("{:?}", a.kind).into()),
        ("permissions", format!("{:04o}", a.permissions).into()),
        ("uid", a.uid.into()),
        ("gid", a.gid.into()),
        ("links", a.links.into()),
        ("size_bytes", a.size_bytes.into()),
        ("allocated_bytes", a.allocated_bytes.into()),
        ("reserved_bytes", a.reserved_bytes.into()),
        ("rdev", a.rdev.into()),
        ("born", time(a.btime)),
        ("modified", time(a.mtime)),
        ("changed", time(a.ctime)),
        ("accessed", time(a.atime)),
        ("flags", a.flags.into()),
        ("content", content),
    ])
}

fn extents<'a>(list: impl Iterator<Item = Extent<'a>>) -> DumpValue {
    let each = list.map(|e| {
        let mut fields = vec![("at", e.offset.into()), ("bytes", e.len.into())];
        match e.source {
            ExtentSource::Hole => fields.push(("is", "hole".into())),
            ExtentSource::Reserved => fields.push(("is", "reserved".into())),
            ExtentSource::Bytes(bytes) => fields.push(("is", bytes.escape_ascii().to_string().into())),
            ExtentSource::Slice(segment, offset) => {
                fields.push(("segment", segment.get().into()));
                fields.push(("offset", offset.into()));
            }
        }
        DumpValue::Fields(fields)
    });
    DumpValue::List(each.collect())
}
