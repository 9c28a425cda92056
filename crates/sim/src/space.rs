//! Space and files counted a second time: from the geometry of the pool, from the references that the check
//! finds on the devices, and from the model.
//!
//! # Invariants
//! 1. The total follows from the number of zones and the payload of a segment. Zones that no segment can use,
//!    because too few devices have a free zone, are the only difference (`check_total`).
//! 2. After a crash, total bytes are exactly those of the segments on the devices. Live bytes are at least
//!    those that some reference names, each once, and at most those of all references; after a census they
//!    are exactly the former, and the bytes that sharing saves are the difference. Free bytes may be fewer by
//!    the segments that the commit log has taken for later (`recount`).
//! 3. Inodes and allocated bytes are the same in `statfs`, in the attributes of all files, in the check and,
//!    as far as the model knows them, in the model (`census`, `recount`).
//! 4. A pool refuses an operation only if fewer bytes are free than the reserve, the memtables, the reserved
//!    bytes and the operation need (`refusal_fault`).
//! 5. Reserved bytes are those of the extents of all files, as the check counts them (`fsck`).

use std::collections::BTreeMap;

use warpfire_check::{CheckOptions, CheckReport, check};
use warpfire_fs::FileKind;
use warpfire_log::{LogStore, Space};
use warpfire_meta::room_of_reserved;
use warpfire_sim_env::SimWorld;

use crate::drive::node;
use crate::model::{Model, Path, show_path};
use crate::op::Op;
use crate::open_transactions::OpenTransactions;
use crate::session::Violation;
use crate::stack::{Shape, SimFs};

/// Zones at the beginning of each device that hold roots and no segments.
const ROOT_ZONES: u64 = 2;

/// Segments' worth of zones that unequal devices make unusable at most.
const LOST_SEGMENTS_MAX: u64 = 8;

/// Segments that the commit log has taken for later and that nothing on the devices names yet.
const SPARE_LOG_SEGMENTS_MAX: u64 = 2;

/// The headers of a segment's stripes take less than this part of its data zones.
const HEADER_PART: u64 = 16;

/// Most memtables' worth of bytes that the engine keeps in memory.
const MEMTABLES_IN_MEMORY: u64 = 4;

/// The engine's memtable takes at most this part of the pool.
const MEMTABLE_POOL_PART: u64 = 32;

/// The least bytes of a memtable.
const TABLE_BYTES_MIN: u64 = 64 << 10;

/// Bytes for the records of any operation: keys, values and attributes, without file data.
const RECORD_BYTES: u64 = 64 << 10;

fn demand(holds: bool, why: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation(why())) }
}

/// The space that the log reports.
#[must_use]
pub fn space_of(fs: &SimFs) -> Space {
    LogStore::space(fs.engine().log())
}

/// Zones that a segment of user data takes.
fn width(shape: &Shape) -> u64 {
    u64::from(shape.data) + u64::from(shape.parity)
}

/// The payload bytes of all zones of the pool.
fn geometry_bytes(shape: &Shape, segment_bytes: u64) -> u64 {
    shape.devices() as u64 * (shape.zones - ROOT_ZONES) * segment_bytes / width(shape)
}

/// Checks the total against the geometry of the pool, on devices that all take writes.
///
/// # Errors
/// If it is too large, or smaller than zones that no segment can use explain.
pub fn check_total(fs: &SimFs, shape: &Shape) -> Result<(), Violation> {
    let space = space_of(fs);
    let segment_bytes = fs.engine().log().pool().full_geometry().segment_payload_bytes;
    let data_bytes = u64::from(shape.data) * shape.zone_bytes;
    demand(segment_bytes < data_bytes && data_bytes - segment_bytes < data_bytes / HEADER_PART, || {
        format!("a segment of {data_bytes} bytes in its data zones holds {segment_bytes} bytes")
    })?;
    let sum = space.live_bytes + space.garbage_bytes + space.free_bytes;
    demand(sum == space.total_bytes, || format!("space does not add up: {space:?}"))?;
    let wanted = geometry_bytes(shape, segment_bytes);
    // A segment of the commit log lies on few of the devices, so the others may have a zone too many.
    let lost = wanted.saturating_sub(space.total_bytes) / segment_bytes;
    demand(space.total_bytes <= wanted && lost <= LOST_SEGMENTS_MAX, || {
        format!("the zones hold {wanted} bytes and the pool says {}: {space:?}", space.total_bytes)
    })
}

/// Runs the check on the devices of a world.
///
/// # Errors
/// If it cannot run, or finds an error.
pub fn fsck(world: &SimWorld) -> Result<CheckReport, Violation> {
    let options = CheckOptions { clock: world.clock(), counts_distinct: true, ..CheckOptions::default() };
    let report = check(&world.devices(), &options)
        .map_err(|e| Violation(format!("the pool cannot be checked: {e}")))?;
    demand(report.errors == 0, || format!("the check finds errors: {:?}", report.findings))?;
    Ok(report)
}

/// Checks a copy of the devices as a crash left them, opens it, checks it again, and counts its space and
/// files. Returns the last check.
///
/// # Errors
/// If the check finds an error, or if a count differs.
pub fn check_copy(copy: &SimWorld, shape: &Shape, model: &Model) -> Result<CheckReport, Violation> {
    fsck(copy)?;
    let fs = shape.open(copy).map_err(|e| Violation(format!("a copy cannot be opened: {e}")))?;
    fs.sync().map_err(|e| Violation(format!("a copy cannot be synced: {e}")))?;
    let report = fsck(copy)?;
    // The log counts no space of a device that it does not use, such as one that has lost the write of a root
    // and now looks like an old copy. The check reads all devices.
    if fs.engine().log().pool().status().lost() == 0 {
        recount(&fs, shape, &report)?;
    }
    count_files(model, &report)?;
    census(&fs, model, Some(&report))?;
    Ok(report)
}

/// Compares the log's counts with those of a check of the same devices, just opened and synced.
fn recount(fs: &SimFs, shape: &Shape, report: &CheckReport) -> Result<(), Violation> {
    let space = space_of(fs);
    let found = &report.totals;
    let segment_bytes = fs.engine().log().pool().full_geometry().segment_payload_bytes;
    // Each by its own width: a session without all devices writes segments with fewer data columns.
    let pool = fs.engine().log().pool();
    let widths = (0u16..).zip(&found.segments_by_data);
    let bulk_bytes: u64 = widths.map(|(data, count)| count * pool.bulk_payload_bytes(data)).sum();
    let log_zones = found.log_segments * (1 + u64::from(shape.parity));
    let log_bytes = log_zones * segment_bytes / width(shape);
    let payload_bytes = |data| pool.bulk_payload_bytes(u16::try_from(data).expect("few columns"));
    let free_bytes = free_payload_bytes(&found.zones_free_by_device, shape, payload_bytes);
    let total_bytes = bulk_bytes + log_bytes + free_bytes;
    let same = (found.distinct_bytes..=found.live_bytes).contains(&space.live_bytes)
        && space.total_bytes == total_bytes
        && space.free_bytes + SPARE_LOG_SEGMENTS_MAX * segment_bytes >= free_bytes
        && space.free_bytes.saturating_sub(free_bytes) <= bulk_bytes - found.live_bytes
        && space.garbage_bytes >= log_bytes;
    demand(same, || {
        format!(
            "the devices hold {} live bytes in {bulk_bytes} bytes of segments, {log_bytes} of commit log \
             and {free_bytes} free; the log says {space:?}",
            found.live_bytes
        )
    })?;
    fs.engine().count_live().map_err(|e| Violation(format!("the live bytes cannot be counted: {e}")))?;
    let counted = space_of(fs);
    demand(counted.live_bytes == found.distinct_bytes, || {
        format!(
            "values and tables name {} bytes, each once; the census says {counted:?}",
            found.distinct_bytes
        )
    })
}

/// The payload bytes of the segments that fit into these free zones, each zone of a segment on another
/// device: of every number of segments, those with the most data columns. The last free zone of a device is
/// kept.
fn free_payload_bytes(free: &[u64], shape: &Shape, payload_bytes: impl Fn(u64) -> u64) -> u64 {
    let (data, parity) = (u64::from(shape.data), u64::from(shape.parity));
    let (mut most, mut best) = (0, (0, 0));
    for segments in 1..=free.iter().sum() {
        let zones: u64 = free.iter().map(|zones| zones.saturating_sub(1).min(segments)).sum();
        let columns = zones.min(segments * (data + parity));
        // At least half of the data columns: fewer would be mostly parity.
        if columns >= segments * (data.div_ceil(2) + parity) && columns - segments * parity > most {
            most = columns - segments * parity;
            best = (segments, most);
        }
    }
    let (segments, columns) = best;
    let wider = columns % segments.max(1);
    (0..segments).map(|n| payload_bytes(columns / segments + u64::from(n < wider))).sum()
}

/// Compares the files that a check finds with the model.
fn count_files(model: &Model, report: &CheckReport) -> Result<(), Violation> {
    // The check counts files of clones that have lost their last name.
    if !model.doors().is_empty() {
        return Ok(());
    }
    let wanted = model.counts();
    let found = &report.totals;
    let found = [found.files, found.directories, found.symlinks, found.special_files, found.names];
    demand(wanted == found && report.totals.orphans == 0, || {
        format!(
            "files, directories, links, others and names: the model has {wanted:?}, the check finds \
             {found:?} and {} orphans",
            report.totals.orphans
        )
    })
}

/// The number of each inode, by the model's number of its node.
pub type InodeNumbers = BTreeMap<u64, u64>;

/// Counts inodes and allocated bytes by the attributes of all files, and compares them with `statfs` and with
/// a check. Returns the inode numbers.
///
/// # Errors
/// If a count differs, or if two nodes have one number.
pub fn census(fs: &SimFs, model: &Model, report: Option<&CheckReport>) -> Result<InodeNumbers, Violation> {
    let mut numbers = InodeNumbers::new();
    let mut nodes = BTreeMap::new();
    let mut allocated = 0;
    let failed = |path: &Path, why: String| Violation(format!("{}: {why}", show_path(path)));
    for (path, id) in model.nodes_by_path() {
        let attr = fs.getattr(&*node(fs, &path).map_err(|e| failed(&path, e.to_string()))?);
        if let Some(before) = numbers.insert(id, attr.ino) {
            demand(before == attr.ino, || format!("{}: two names, two inodes", show_path(&path)))?;
            continue;
        }
        if let Some(other) = nodes.insert(attr.ino, path.clone()) {
            return Err(failed(&path, format!("has the inode number of {}", show_path(&other))));
        }
        if attr.kind == FileKind::Regular {
            allocated += attr.allocated_bytes;
        }
    }
    let statfs = fs.statfs().map_err(|e| Violation(format!("statfs fails: {e}")))?;
    let inodes = numbers.len() as u64;
    let (counted, is_exact) = ((statfs.inodes, statfs.file_bytes), model.doors().is_empty());
    demand(if is_exact { counted == (inodes, allocated) } else { counted >= (inodes, allocated) }, || {
        format!("{inodes} inodes have {allocated} allocated bytes; statfs says {statfs:?}")
    })?;
    demand(!is_exact || report.is_none_or(|r| r.totals.file_bytes == allocated), || {
        format!("files have {allocated} allocated bytes; the check finds {:?}", report.map(|r| &r.totals))
    })?;
    Ok(numbers)
}

/// Why a refusal for lack of space is wrong; `None` if the pool is full.
#[must_use]
pub fn refusal_fault(fs: &SimFs, shape: &Shape, op: &Op, open: &OpenTransactions) -> Option<String> {
    let space = space_of(fs);
    let memtable_max = (space.total_bytes / MEMTABLE_POOL_PART).max(TABLE_BYTES_MIN);
    let reserved = fs.statfs().map_or(0, |statfs| statfs.reserved_bytes);
    let more_reserved = match op {
        // A clone counts all reserved room of its origin.
        Op::Clone(..) => reserved,
        // What the files of then have reserved is reserved again.
        Op::RollBack(to, _) => {
            let then = fs.open_snapshot(to).and_then(|then| then.statfs());
            then.map_or(0, |statfs| statfs.reserved_bytes)
        }
        _ => 0,
    };
    let needed = space.reserve_bytes
        + shape.memtable_bytes.min(memtable_max) * MEMTABLES_IN_MEMORY
        + RECORD_BYTES
        + op.bytes_max(open.slots())
        + room_of_reserved(reserved)
        + room_of_reserved(op.bytes_max(open.slots()) + more_reserved);
    (space.free_bytes >= needed)
        .then(|| format!("it is refused for lack of space, and needs {needed} bytes at most: {space:?}"))
}
