//! Finding the newest root: reads every root in zones 0 and 1 of every device.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device};
use warpfire_format::Uuid;
use warpfire_format::root::{DeviceEntry, DeviceUse, EarlierSession, RootHeader, RootPoint, unsupported};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::code::FindingCode;
use crate::options::CheckError;
use crate::report::Findings;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks of one read during the search for roots.
const SCAN_BLOCKS: u64 = 256;

/// The search in a root zone ends after this many blocks of zeroes: 1 MiB, several times the length of a
/// usual root.
const QUIET_BLOCKS: u64 = 256;

/// In a pool of at most this many devices every root is written to all of them.
const ROOT_ON_ALL_MAX: usize = 8;

/// A root with a header that verifies.
#[derive(Clone, Debug)]
pub(crate) struct RootRecord {
    pub(crate) zone: u32,
    pub(crate) block: u64,
    pub(crate) header: RootHeader,
    /// Whether the body verifies.
    pub(crate) body_good: bool,
}

/// The newest root of a pool, and the devices of the pool.
pub(crate) struct FoundRoots {
    pub(crate) newest: RootHeader,
    pub(crate) table: Vec<DeviceEntry>,
    pub(crate) payload: Vec<u8>,
    /// Devices by their index in the device table; `None` for a missing one.
    pub(crate) devices: Vec<Option<Arc<dyn Device>>>,
    /// All roots, by name of the device.
    pub(crate) records: Vec<(String, Vec<RootRecord>)>,
}

/// Reads all roots and chooses the newest.
pub(crate) fn find_roots(devices: &[Arc<dyn Device>], findings: &Findings) -> Result<FoundRoots, CheckError> {
    if devices.is_empty() {
        return Err(CheckError::NoDevices);
    }
    let zone_blocks: Vec<Option<u32>> = devices.iter().map(|d| zone_blocks_of(&**d)).collect();
    // All devices of a pool have zones of one size. A device with destroyed first roots is read with the size
    // of another device.
    let usual = zone_blocks.iter().flatten().copied().next();
    let mut remains = Vec::new();
    let scans: Vec<Vec<RootRecord>> = devices
        .iter()
        .zip(&zone_blocks)
        .map(|(d, own)| {
            own.or(usual).map_or_else(Vec::new, |blocks| scan(&**d, blocks, &mut remains, findings))
        })
        .collect();
    let Some(pool) = usual_pool(&scans) else {
        let mut firsts = devices.iter().filter_map(|device| read(&**device, 0, BLOCK));
        return Err(match firsts.find_map(|block| unsupported(&block)) {
            Some(found) => CheckError::OtherVersion(found),
            None => CheckError::NoPool("zones 0 and 1 hold no root that verifies".into()),
        });
    };
    let (newest, table, payload) = newest_root(devices, &scans, pool, findings)?;
    let by_index = place_devices(devices, &scans, &newest, &table, findings);
    if !remains.is_empty() {
        // A device that lacks the newest root is a finding of its own (`place_devices`).
        let message =
            format_args!("older roots, torn or damaged, which nothing needs: {}", remains.join(", "));
        findings.note(FindingCode::RootDamaged, "roots", message);
    }
    let records = devices.iter().map(|d| d.info().name.clone()).zip(scans).collect();
    Ok(FoundRoots { newest, table, payload, devices: by_index, records })
}

/// The zone size that the device's own roots name. Zone 0 begins with a root at block 0. If that root is
/// unreadable, the first root of zone 1 is tried at every possible zone size.
fn zone_blocks_of(device: &dyn Device) -> Option<u32> {
    let size = device.info().size_bytes;
    let own = device.info().zones.map(|z| z.zone_bytes);
    let powers = (16..40).map(|shift| 1u64 << shift);
    std::iter::once(0).chain(own).chain(powers).take_while(|at| *at < size).find_map(|at| {
        let header = RootHeader::decode(&read(device, at, BLOCK)?).ok()?;
        (at == 0 || u64::from(header.zone_blocks) * BLOCK == at).then_some(header.zone_blocks)
    })
}

fn read(device: &dyn Device, at: u64, len: u64) -> Option<AlignedBuf> {
    device.info().check_range(at, len).ok()?;
    let mut buf = AlignedBuf::zeroed(usize::try_from(len).ok()?);
    device.read(at, &mut buf).ok()?;
    Some(buf)
}

/// All roots of a device. Appends the places of damaged ones to `remains`.
fn scan(
    device: &dyn Device,
    zone_blocks: u32,
    remains: &mut Vec<String>,
    findings: &Findings,
) -> Vec<RootRecord> {
    let mut records = Vec::new();
    for zone in 0..2 {
        scan_zone(device, zone, zone_blocks, &mut records, remains, findings);
    }
    records
}

/// Reads the roots of one zone front to back. Other bytes between two roots are a damaged root. Other bytes
/// after the last root are a torn one, or remains from before a reset, which takes all bytes only on a device
/// with zones.
fn scan_zone(
    device: &dyn Device,
    zone: u32,
    zone_blocks: u32,
    records: &mut Vec<RootRecord>,
    damaged: &mut Vec<String>,
    findings: &Findings,
) {
    let start = u64::from(zone) * u64::from(zone_blocks);
    let mut block = 0;
    let mut quiet = 0;
    // First block of bytes that are neither a root nor zero, since the last root.
    let mut remains = None;
    let mut chunk: Option<(u64, AlignedBuf)> = None;
    let mut last_sequence = 0;
    let name = &device.info().name;
    // A file that is smaller is no device of the pool (`place_devices`).
    let device_blocks = device.info().size_bytes / BLOCK;
    let end = u64::from(zone_blocks).min(device_blocks.saturating_sub(start));
    while block < end && quiet < QUIET_BLOCKS {
        let chunk_first = block / SCAN_BLOCKS * SCAN_BLOCKS;
        if chunk.as_ref().is_none_or(|(first, _)| *first != chunk_first) {
            let len = SCAN_BLOCKS.min(end - chunk_first);
            chunk = read(device, (start + chunk_first) * BLOCK, len * BLOCK).map(|buf| (chunk_first, buf));
        }
        let within = usize::try_from((block - chunk_first) * BLOCK).expect("a chunk is 1 MiB");
        let Some(bytes) = chunk.as_ref().and_then(|(_, buf)| buf.get(within..within + BLOCK_BYTES)) else {
            findings.repairable(
                FindingCode::ReadFailed,
                name,
                format_args!("root zone {zone}, block {block}"),
            );
            return;
        };
        let like = records.first().map(|r| r.header.clone());
        let same = |h: &RootHeader| (h.pool, h.device_uuid, h.device, h.zone_blocks);
        match RootHeader::decode(bytes) {
            Ok(header)
                if header.zone_blocks == zone_blocks
                    && header.sequence > last_sequence
                    && like.as_ref().is_none_or(|l| same(l) == same(&header)) =>
            {
                quiet = 0;
                last_sequence = header.sequence;
                if let Some(block) = remains.take() {
                    damaged.push(format!("{name} zone {zone} block {block}"));
                }
                let body = read_body(device, start + block, &header);
                let body_good = body.is_some_and(|b| header.decode_body(&b).is_ok());
                if !body_good {
                    remains = Some(block);
                }
                let root_block = block;
                block += header.record_blocks();
                records.push(RootRecord { zone, block: root_block, header, body_good });
            }
            // A root from before the zone was reset, or of another pool: no newer root can follow.
            Ok(_) => break,
            Err(_) if bytes.iter().all(|b| *b == 0) => {
                quiet += 1;
                block += 1;
            }
            Err(_) => {
                quiet = 0;
                remains.get_or_insert(block);
                block += 1;
            }
        }
    }
    if let Some(block) = remains {
        // A device without zones keeps older bytes at a reset: a shorter root ends inside an older one.
        let is_root = records.last().is_some_and(|last| (last.zone, last.block) == (zone, block));
        if is_root || device.info().zones.is_some() {
            damaged.push(format!("{name} zone {zone} block {block}"));
        }
    }
}

fn read_body(device: &dyn Device, block: u64, header: &RootHeader) -> Option<AlignedBuf> {
    read(device, (block + 1) * BLOCK, (header.record_blocks() - 1) * BLOCK)
}

/// The pool that most devices belong to. Of pools with equally many devices the first.
fn usual_pool(scans: &[Vec<RootRecord>]) -> Option<Uuid> {
    let pools: Vec<Uuid> = scans.iter().filter_map(|s| newest_of(s).map(|r| r.header.pool)).collect();
    let votes = |pool: &Uuid| pools.iter().filter(|p| *p == pool).count();
    pools.iter().rev().max_by_key(|p| votes(p)).copied()
}

/// The root that an inherited root repeats.
fn origin_of(header: &RootHeader) -> Option<&EarlierSession> {
    header.earlier.iter().find(|e| header.is_inherited && !e.is_inherited)
}

/// The age of a root. Roots of a later session are newer whatever their sequences. A root that repeats the
/// state of an earlier one is as old as that one, and newer than its copies.
fn age(header: &RootHeader) -> ((u32, u64), (u32, u64)) {
    let state = origin_of(header);
    let state = state.map_or((header.epoch, header.sequence), |e| (e.last.epoch, e.last.sequence));
    (state, (header.epoch, header.sequence))
}

/// Whether the device with this newest root was written apart from the pool (rule 4 of "Roots" in
/// `docs/FORMAT.md`). `entry` is the device in the newest root's table.
fn is_apart(found: &RootHeader, newest: &RootHeader, entry: &DeviceEntry) -> bool {
    let own = found.as_earlier();
    std::iter::once(&own).chain(origin_of(found)).all(|root| {
        let session = |p: RootPoint| (p.epoch, p.session);
        let history = newest.earlier.iter().map(|e| e.last).chain([entry.seen]);
        let known = history.clone().find(|p| session(*p) == session(root.last));
        match known {
            _ if session(newest.point()) == session(root.last) => false,
            Some(known) => root.is_narrow && root.last.sequence > known.sequence,
            None => root.last.epoch >= entry.seen.epoch,
        }
    })
}

/// The newest root with a body that verifies.
fn newest_of(records: &[RootRecord]) -> Option<&RootRecord> {
    records.iter().filter(|r| r.body_good).max_by_key(|r| age(&r.header))
}

type NewestRoot = (RootHeader, Vec<DeviceEntry>, Vec<u8>);

fn newest_root(
    devices: &[Arc<dyn Device>],
    scans: &[Vec<RootRecord>],
    pool: Uuid,
    findings: &Findings,
) -> Result<NewestRoot, CheckError> {
    let candidates = devices.iter().zip(scans).filter_map(|(device, records)| {
        newest_of(records).filter(|r| r.header.pool == pool).map(|r| (device, r))
    });
    let mut found: Option<NewestRoot> = None;
    for (device, record) in candidates {
        let newest = found.as_ref().map(|(h, ..)| age(h));
        let block = u64::from(record.zone) * u64::from(record.header.zone_blocks) + record.block;
        if newest.is_some_and(|newest| age(&record.header) < newest) {
            continue;
        }
        let Some(body) = read_body(&**device, block, &record.header) else { continue };
        let Ok((table, payload)) = record.header.decode_body(&body) else { continue };
        // Two bodies for one (epoch, sequence) mean that parts of the pool were written separately.
        match &found {
            Some((header, _, known)) if header.point() == record.header.point() => {
                if known != payload {
                    let message =
                        format_args!("root {} differs from the other devices' copies", header.sequence);
                    findings.error(FindingCode::RootDamaged, &device.info().name, message);
                }
            }
            _ => found = Some((record.header.clone(), table, payload.to_vec())),
        }
    }
    found.ok_or_else(|| CheckError::NoPool("the root of the pool cannot be read a second time".into()))
}

/// Puts each device into its place in the device table. Reports missing, foreign and repeated devices, and
/// devices without the newest root.
fn place_devices(
    devices: &[Arc<dyn Device>],
    scans: &[Vec<RootRecord>],
    newest: &RootHeader,
    table: &[DeviceEntry],
    findings: &Findings,
) -> Vec<Option<Arc<dyn Device>>> {
    let mut by_index: Vec<Option<Arc<dyn Device>>> = vec![None; table.len()];
    let mut by_uuid: BTreeMap<Uuid, usize> = BTreeMap::new();
    let members = || table.iter().enumerate().filter(|(_, entry)| entry.state != DeviceUse::Gone);
    by_uuid.extend(members().map(|(i, entry)| (entry.uuid, i)));
    let mut holders = 0;
    let mut without = Vec::new();
    let mut rootless = Vec::new();
    for (device, records) in devices.iter().zip(scans) {
        let name = &device.info().name;
        // A device without an undamaged body is still identified by a header.
        let identity = newest_of(records).or_else(|| records.last()).map(|r| &r.header);
        let index = identity
            .filter(|h| h.pool == newest.pool)
            .and_then(|h| by_uuid.get(&h.device_uuid).copied().map(|i| (i, h)));
        let Some((index, header)) = index else {
            match identity {
                None => rootless.push(name),
                Some(found) if found.pool != newest.pool => {
                    let message = format_args!("is a device of another pool, {}", found.pool);
                    findings.error(FindingCode::DeviceForeign, name, message);
                }
                Some(_) => {
                    let message = "is not a device of this pool any more; the pool does not need it";
                    findings.note(FindingCode::DeviceForeign, name, message);
                }
            }
            continue;
        };
        let entry = table.get(index).expect("the index was found in the table");
        if newest_of(records).is_some_and(|r| is_apart(&r.header, newest, entry)) {
            let message =
                "was written apart from the pool: its state and that of the others cannot be joined";
            findings.error(FindingCode::DeviceForeign, name, message);
            continue;
        }
        let blocks = u64::from(entry.zones) * u64::from(newest.zone_blocks);
        let needed = blocks.saturating_mul(BLOCK);
        if usize::from(header.device.0) != index || device.info().size_bytes < needed {
            let message = format_args!(
                "names itself {}; the pool has it as device {index} of {needed} bytes",
                header.device
            );
            findings.error(FindingCode::DeviceMismatch, name, message);
        }
        let holds = newest_of(records).is_some_and(|r| age(&r.header) == age(newest));
        holders += usize::from(holds);
        // A device that is kept offline gets no roots.
        if !holds && !entry.is_kept_offline {
            without.push(name.clone());
        }
        match by_index.get_mut(index) {
            Some(slot @ None) => *slot = Some(Arc::clone(device)),
            _ => findings.error(
                FindingCode::DeviceTwice,
                name,
                format_args!("is device {index}, which is in the list already"),
            ),
        }
    }
    let wanted = (usize::from(newest.parity) + 1).min(members().count());
    if members().count() <= ROOT_ON_ALL_MAX && !without.is_empty() {
        let (sequence, without) = (newest.sequence, without.join(", "));
        let message = format_args!("root {sequence} is the newest and is stale or damaged on {without}");
        findings.repairable(FindingCode::RootMissing, "roots", message);
    } else if holders < wanted {
        let message = format_args!("the newest root is on {holders} devices and should be on {wanted}");
        findings.repairable(FindingCode::RootMissing, "roots", message);
    }
    report_missing(&by_index, table, newest, findings);
    report_rootless(&rootless, &by_index, table, findings);
    by_index
}

/// Reports devices without a root. Where devices are missing, one of these may have lost its roots. Otherwise
/// they are files that the pool does not need.
fn report_rootless(
    rootless: &[&String],
    by_index: &[Option<Arc<dyn Device>>],
    table: &[DeviceEntry],
    findings: &Findings,
) {
    let mut members = table.iter().zip(by_index).filter(|(entry, _)| entry.state != DeviceUse::Gone);
    let is_one_missing = members.any(|(_, device)| device.is_none());
    for name in rootless {
        if is_one_missing {
            let message = "has no root of a pool; it may be a missing device that has lost its roots";
            findings.repairable(FindingCode::DeviceForeign, name, message);
        } else {
            let message = "is not a device of this pool; the pool does not need it";
            findings.note(FindingCode::DeviceForeign, name, message);
        }
    }
}

fn report_missing(
    by_index: &[Option<Arc<dyn Device>>],
    table: &[DeviceEntry],
    newest: &RootHeader,
    findings: &Findings,
) {
    let places = || (0u16..).zip(table).zip(by_index);
    let is_missing =
        |entry: &DeviceEntry, device: &Option<_>| device.is_none() && entry.state != DeviceUse::Gone;
    let missing = places().filter(|((_, entry), device)| is_missing(entry, device)).count();
    for ((index, entry), device) in places() {
        if is_missing(entry, device) {
            let place_devices = DeviceIndex(index);
            let message = format_args!("missing (uuid {})", entry.uuid);
            if missing <= usize::from(newest.parity) {
                findings.repairable(FindingCode::DeviceMissing, place_devices, message);
            } else {
                findings.error(FindingCode::DeviceMissing, place_devices, message);
            }
        }
    }
}
