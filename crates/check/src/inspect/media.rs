//! Dumps of roots, segments and stripes.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device};
use warpfire_format::root::{DeviceUse, RootHeader};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState, SegmentStream};
use warpfire_format::stripe::StripeHeader;
use warpfire_units::{BLOCK_BYTES, SegmentId};

use super::DumpValue;
use crate::damage::DamageReport;
use crate::load::{LoadedPool, load};
use crate::media::{CheckedSegment, StripeVerifier};
use crate::options::CheckError;
use crate::report::{Findings, Totals};

/// The roots on every device, and the content of the newest one.
///
/// # Errors
/// If there is no pool, or its newest root does not decode.
pub fn root(devices: &[Arc<dyn Device>]) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    // The newest root comes first; the list of all roots on all devices is long and comes last.
    let state = &loaded.state;
    let on_devices = loaded.records.iter().map(|(name, records)| {
        let records = records.iter().map(|r| {
            DumpValue::Fields(vec![
                ("zone", r.zone.into()),
                ("block", r.block.into()),
                ("sequence", r.header.sequence.into()),
                ("epoch", r.header.epoch.into()),
                ("body_bytes", r.header.body_bytes.into()),
                ("body", if r.body_good { "good" } else { "damaged" }.into()),
            ])
        });
        DumpValue::Fields(vec![
            ("device", name.as_str().into()),
            ("records", DumpValue::List(records.collect())),
        ])
    });
    let log = DumpValue::Fields(vec![
        ("checkpoint", state.checkpoint.into()),
        ("next_segment", state.next_segment.get().into()),
        ("next_record", state.next_pos.into()),
        ("first_record_needed", state.keep_from.into()),
        ("barrier", state.barrier.into()),
        ("sequence", state.sequence.into()),
        ("first_stripe", state.first_stripe.into()),
        ("log_segments", (state.chain.len() as u64).into()),
        ("state_sequence", state.state_sequence.into()),
        ("state_segments", (state.state_chain.len() as u64).into()),
        ("bulk_segments", (loaded.saved_segments as u64).into()),
    ]);
    Ok(DumpValue::Fields(vec![
        ("newest", header(&loaded.root)),
        ("devices", device_table(&loaded)),
        ("log", log),
        ("roots", DumpValue::List(on_devices.collect())),
    ]))
}

fn header(h: &RootHeader) -> DumpValue {
    DumpValue::Fields(vec![
        ("pool", h.pool.to_string().into()),
        ("data", h.data.into()),
        ("parity", h.parity.into()),
        ("sequence", h.sequence.into()),
        ("epoch", h.epoch.into()),
        ("zone_blocks", h.zone_blocks.into()),
        ("body_bytes", h.body_bytes.into()),
        ("made_seconds", h.made_seconds.into()),
        ("label", h.label.as_str().into()),
        ("config_version", h.config_version.into()),
        ("session", h.session.into()),
        ("inherited", u8::from(h.is_inherited).into()),
        ("narrow", u8::from(h.is_narrow).into()),
        ("earlier_sessions", (h.earlier.len() as u64).into()),
        ("shape_since_segment", h.wishes.shape_since.into()),
        ("older_parity", h.wishes.older_parity.into()),
        ("converts", u8::from(h.wishes.converts).into()),
        ("spare_space", h.wishes.spare_space.into()),
    ])
}

fn device_table(loaded: &LoadedPool) -> DumpValue {
    let entries = (0u16..).zip(&loaded.table).map(|(index, entry)| {
        let here = loaded.media.is_present(warpfire_units::DeviceIndex(index));
        DumpValue::Fields(vec![
            ("index", index.into()),
            ("uuid", entry.uuid.to_string().into()),
            ("zones", entry.zones.into()),
            ("state", if here { "present" } else { "missing" }.into()),
            ("use", use_word(entry.state).into()),
            ("leaving", u8::from(entry.is_leaving).into()),
            ("spare", u8::from(entry.is_spare).into()),
            ("kept_offline", u8::from(entry.is_kept_offline).into()),
            ("joined_epoch", entry.joined.into()),
            ("seen_epoch", entry.seen.epoch.into()),
            ("seen_sequence", entry.seen.sequence.into()),
            ("life_written_bytes", entry.life.written_bytes.into()),
            ("life_resets", entry.life.resets.into()),
        ])
    });
    DumpValue::List(entries.collect())
}

fn use_word(state: DeviceUse) -> &'static str {
    match state {
        DeviceUse::Active => "active",
        DeviceUse::Offline => "offline",
        DeviceUse::Gone => "gone",
    }
}

/// All live segments, those of the commit log first.
///
/// # Errors
/// If there is no pool, or its newest root does not decode.
pub fn segments(devices: &[Arc<dyn Device>]) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let all = loaded.chain.iter().chain(loaded.segments.values());
    Ok(DumpValue::List(all.map(|s| DumpValue::Fields(summary(&s.descriptor))).collect()))
}

fn summary(d: &SegmentDescriptor) -> Vec<(&'static str, DumpValue)> {
    let kind = match d.kind() {
        SegmentKind::Bulk => "bulk",
        SegmentKind::Mirror => "mirror",
    };
    let state = match d.state {
        SegmentState::Open => "open",
        SegmentState::Sealed => "sealed",
    };
    let stream = match d.stream {
        SegmentStream::Small => "small",
        SegmentStream::Large => "large",
        SegmentStream::Table => "table",
        SegmentStream::Cold => "cold",
        SegmentStream::CommitLog => "commit log",
        SegmentStream::StateLog => "state log",
    };
    vec![
        ("segment", d.id.get().into()),
        ("epoch", d.epoch.into()),
        ("kind", kind.into()),
        ("stream", stream.into()),
        ("state", state.into()),
        ("data", d.data.into()),
        ("parity", d.parity.into()),
        ("stripes", d.stripe_count().into()),
        ("payload_bytes", d.payload_bytes().into()),
        ("zone_blocks_used", d.zone_blocks_used().into()),
    ]
}

fn find(loaded: &LoadedPool, id: u64) -> Result<&CheckedSegment, CheckError> {
    let mut all = loaded.chain.iter().chain(loaded.segments.values());
    let wanted = SegmentId::new(id);
    let found = all.find(|s| Some(s.descriptor.id) == wanted);
    found.ok_or_else(|| CheckError::NotFound(format!("live segment {id}")))
}

/// One live segment.
///
/// # Errors
/// If there is no pool, or no such segment.
pub fn segment(devices: &[Arc<dyn Device>], id: u64) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let d = &find(&loaded, id)?.descriptor;
    let columns = d
        .columns
        .iter()
        .map(|(device, zone)| DumpValue::Fields(vec![("device", device.0.into()), ("zone", zone.0.into())]));
    let runs = d
        .stripes
        .iter()
        .map(|run| DumpValue::Fields(vec![("rows", run.rows.into()), ("count", run.count.into())]));
    let mut fields = summary(d);
    fields.push(("columns", DumpValue::List(columns.collect())));
    let lost = d.lost.iter().map(|lost| {
        let from = ("from_stripe", lost.first_stripe.into());
        DumpValue::Fields(vec![("column", lost.column.into()), from])
    });
    fields.push(("lost_columns", DumpValue::List(lost.collect())));
    fields.push(("stripe_runs", DumpValue::List(runs.collect())));
    Ok(DumpValue::Fields(fields))
}

/// One stripe of a live segment: its headers, and the findings of a check of it.
///
/// # Errors
/// If there is no pool, or no such stripe.
pub fn stripe(devices: &[Arc<dyn Device>], id: u64, number: u32) -> Result<DumpValue, CheckError> {
    let loaded = load(devices, &mut Totals::default(), &Findings::default())?;
    let segment = find(&loaded, id)?;
    let d = &segment.descriptor;
    let place = segment
        .stripe(number)
        .ok_or_else(|| CheckError::NotFound(format!("stripe {number} in segment {id}")))?;
    let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
    let mut columns = Vec::new();
    // Every header is shown as it is, also one of another write; the findings below name its fault.
    for &(device, zone) in &d.columns {
        let read = loaded.media.read_one(device, zone, place.block, &mut buf);
        let mut fields = vec![("device", device.0.into()), ("zone", zone.0.into())];
        match StripeHeader::decode(&buf) {
            _ if !read => fields.push(("header", "unreadable".into())),
            Err(e) => fields.push(("header", e.to_string().into())),
            Ok(block) => {
                let h = block.header;
                let crcs = block.crcs().map(|crc| format!("{crc:08x}").into());
                fields.extend([
                    ("column", h.identity.column.into()),
                    ("stripe", h.identity.stripe.into()),
                    ("sequence", h.sequence.into()),
                    ("payload_bytes", h.payload_bytes.into()),
                    ("rows", h.rows.into()),
                    ("crcs", DumpValue::List(crcs.collect())),
                ]);
            }
        }
        columns.push(DumpValue::Fields(fields));
    }
    let findings = Findings::default();
    let totals = &mut Totals::default();
    let verdict = StripeVerifier::default().verify(&loaded.media, d, place, true, totals, &findings);
    let found = findings.into_report(Totals::default(), DamageReport::default()).findings;
    Ok(DumpValue::Fields(vec![
        ("segment", id.into()),
        ("stripe", number.into()),
        ("zone_block", place.block.into()),
        ("first_row", place.first_row.into()),
        ("rows", place.rows.into()),
        ("readable", if verdict.readable { "yes" } else { "no" }.into()),
        ("columns", DumpValue::List(columns)),
        ("findings", DumpValue::List(found.iter().map(|f| f.to_string().into()).collect())),
    ]))
}
