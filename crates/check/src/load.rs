//! Loading a pool: roots and commit log, which every later stage needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device};
use warpfire_format::log_state::{self, LogState};
use warpfire_format::root::{DeviceEntry, DeviceUse, RootHeader, RootWishes};
use warpfire_format::stripe::StripeHeader;
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::code::FindingCode;
use crate::log::{read_saved, replay};
use crate::media::{CheckedSegment, Media, RootRecord, find_roots};
use crate::options::CheckError;
use crate::report::{Findings, Totals};
use crate::tables::{Manifest, Rollbacks, split_records};

/// The state of a pool after its newest root and the commit log.
pub(crate) struct LoadedPool {
    pub(crate) media: Media,
    pub(crate) root: RootHeader,
    /// The device table.
    pub(crate) table: Vec<DeviceEntry>,
    /// All roots that were found, by name of the device.
    pub(crate) records: Vec<(String, Vec<RootRecord>)>,
    pub(crate) state: LogState,
    /// Bulk segments.
    pub(crate) segments: BTreeMap<SegmentId, CheckedSegment>,
    /// Number of bulk segments in the saved state.
    pub(crate) saved_segments: usize,
    /// Segments of the commit log, oldest first, then those of the state log.
    pub(crate) chain: Vec<CheckedSegment>,
    pub(crate) manifest: Manifest,
    /// Commit records of the log, oldest first.
    pub(crate) commits: Vec<Vec<u8>>,
}

/// Reads the roots and the commit log.
pub(crate) fn load(
    devices: &[Arc<dyn Device>],
    totals: &mut Totals,
    findings: &Findings,
) -> Result<LoadedPool, CheckError> {
    let roots = find_roots(devices, findings)?;
    totals.devices = roots.devices.iter().flatten().count() as u64;
    // A damaged body leaves its header in the list, so only whole roots are counted.
    totals.roots = roots.records.iter().flat_map(|(_, r)| r).filter(|r| r.body_good).count() as u64;
    let media = Media::new(roots.newest.pool, roots.newest.zone_blocks, roots.devices);
    if let Some(found) = log_state::unsupported(&roots.payload) {
        return Err(CheckError::OtherVersion(found));
    }
    let (state, tail) = LogState::decode(&roots.payload).map_err(|e| CheckError::NoState(e.to_string()))?;
    let (saved, state_chain) = read_saved(&media, &state, tail)?;
    let saved_segments = saved.segments.len();
    let mut replayed = replay(&media, &state, &saved.segments, totals, findings);
    let (manifest, commits) = split_records(&saved.client, replayed.records, findings);
    replayed.chain.extend(state_chain);
    let mut loaded = LoadedPool {
        media,
        root: roots.newest,
        table: roots.table,
        records: roots.records,
        state,
        saved_segments,
        segments: replayed.segments,
        chain: replayed.chain,
        manifest,
        commits,
    };
    loaded.check_zones(totals, findings);
    loaded.manifest.rollbacks = Rollbacks::read(&loaded);
    Ok(loaded)
}

/// Looks for stripes of a later session than that of every root. A session makes its first root durable
/// before it writes a stripe, so such a stripe proves that newer roots are lost.
pub(crate) fn check_newer_sessions(loaded: &LoadedPool, findings: &Findings) {
    let (media, table) = (&loaded.media, &loaded.table);
    let epochs = loaded.records.iter().flat_map(|(_, roots)| roots).map(|root| root.header.epoch);
    let epoch_max = epochs.max().unwrap_or_default();
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for (index, entry) in (0u16..).map(DeviceIndex).zip(table).filter(|(n, _)| media.is_present(*n)) {
        let newer = (2..entry.zones.min(media.zones_of(index))).filter_map(|zone| {
            // A block that cannot be read is a finding of the stage that needs it.
            let is_read = media.read_one(index, ZoneIndex(zone), 0, &mut block);
            let identity = StripeHeader::decode(&block).ok().filter(|_| is_read)?.header.identity;
            (identity.pool == media.pool && identity.epoch > epoch_max).then_some(identity.epoch)
        });
        if let Some(epoch) = newer.max() {
            let message = format_args!(
                "holds data of session {epoch}, and the newest root is of session {epoch_max}: newer roots are \
                 lost, and this is an older state of the pool"
            );
            findings.error(FindingCode::NewerSession, index, message);
        }
    }
}

impl LoadedPool {
    /// The parity columns of a new bulk segment: as many as the pool has parity, if there are devices for
    /// them.
    pub(crate) fn parity_of_new(&self) -> u8 {
        let takes_columns = |(index, entry): &(DeviceIndex, &DeviceEntry)| {
            entry.state != DeviceUse::Gone
                && !entry.is_leaving
                && !entry.is_spare
                && self.media.is_present(*index)
        };
        let devices = (0u16..).map(DeviceIndex).zip(&self.table).filter(takes_columns).count();
        u8::try_from(devices.saturating_sub(1)).unwrap_or(u8::MAX).min(self.root.parity)
    }

    /// The parity columns with which a segment is complete: one from before the present shape of the pool may
    /// have fewer than a new one.
    pub(crate) fn parity_wanted(wishes: &RootWishes, segment: SegmentId, of_new: u8) -> u8 {
        if segment.get() < wishes.shape_since { of_new.min(wishes.older_parity) } else { of_new }
    }

    /// Checks that every zone exists and belongs to at most one segment, and that every segment fits its
    /// zones.
    fn check_zones(&mut self, totals: &mut Totals, findings: &Findings) {
        let mut owners = BTreeMap::new();
        for segment in self.chain.iter().chain(self.segments.values()) {
            let id = segment.descriptor.id;
            for &(device, zone) in &segment.descriptor.columns {
                let zones = self.table.get(usize::from(device.0)).map_or(0, |d| d.zones);
                if zone.0 >= zones {
                    let message = format_args!("lies in zone {} of {device}, which has {zones}", zone.0);
                    findings.error(FindingCode::ZoneOutside, id, message);
                } else if let Some(other) = owners.insert((device, zone), id) {
                    let message = format_args!("shares zone {} of {device} with {other}", zone.0);
                    findings.error(FindingCode::ZoneTwice, id, message);
                }
            }
        }
        // Later stages read every listed stripe, so stripes past the end of a zone are removed from the list
        // here.
        for segment in self.chain.iter_mut().chain(self.segments.values_mut()) {
            if segment.clip(self.media.zone_blocks) {
                findings.error(
                    FindingCode::SegmentTooLong,
                    segment.descriptor.id,
                    "does not fit into its zones",
                );
            }
        }
        let used_on = |index: usize| {
            owners.keys().filter(|(device, _): &&(DeviceIndex, _)| usize::from(device.0) == index).count()
        };
        let free_on = |(index, device): (usize, &DeviceEntry)| {
            let zones = if device.state == DeviceUse::Gone { 0 } else { device.zones };
            u64::from(zones.saturating_sub(2)).saturating_sub(used_on(index) as u64)
        };
        totals.segments = (self.chain.len() + self.segments.len()) as u64;
        totals.log_segments = self.chain.len() as u64;
        for segment in self.segments.values() {
            let data = usize::from(segment.descriptor.data);
            if totals.segments_by_data.len() <= data {
                totals.segments_by_data.resize(data + 1, 0);
            }
            totals.segments_by_data[data] += 1;
        }
        totals.zones_used = owners.len() as u64;
        totals.zones_free_by_device = self.table.iter().enumerate().map(free_on).collect();
        totals.zones_free = totals.zones_free_by_device.iter().sum();
        totals.tables = self.manifest.tables().len() as u64;
    }
}
