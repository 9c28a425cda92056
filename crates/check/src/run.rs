//! The whole check, bottom up.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_format::segment::SegmentKind;

use crate::load::{LoadedPool, load};
use crate::media::{CheckedSegment, StripeVerifier};
use crate::names;
use crate::options::{CheckError, CheckOptions, CheckPhase, CheckProgress};
use crate::report::{CheckReport, Findings, Totals};

/// Stripes or versions between two calls of the progress callback.
const PROGRESS_EVERY: u64 = 64;

/// Checks a pool. Devices may come in any order. Up to m of them may be missing without loss.
///
/// # Errors
/// [`CheckError`], if there is no pool to check or the allowed memory is too small. Damage inside a pool is a
/// finding and not an error.
pub fn check(devices: &[Arc<dyn Device>], options: &CheckOptions) -> Result<CheckReport, CheckError> {
    let findings = Findings::default();
    let mut totals = Totals::default();
    let began = options.clock.monotonic_nanos();
    report_progress(options, CheckPhase::Log, 0, 1);
    let mut loaded = load(devices, &mut totals, &findings)?;
    report_progress(options, CheckPhase::Log, 1, 1);
    // Stripes come before names: they say which bytes of each segment are payload, and pointers must name
    // payload.
    let log_read = options.clock.monotonic_nanos();
    check_stripes(&mut loaded, options, &mut totals, &findings);
    let stripes_read = options.clock.monotonic_nanos();
    names::check_names(&loaded, options, &mut totals, &findings)?;
    let ended = options.clock.monotonic_nanos();
    totals.stripe_nanos = stripes_read - log_read;
    totals.name_nanos = ended - stripes_read;
    totals.nanos = ended - began;
    totals.bytes_read = loaded.media.bytes_read();
    Ok(findings.into_report(totals))
}

pub(crate) fn report_progress(options: &CheckOptions, phase: CheckPhase, done: u64, total: u64) {
    if let Some(progress) = &options.progress {
        progress(CheckProgress { phase, done, total });
    }
}

/// Verifies every stripe of every live segment and notes the length of each stripe's payload.
fn check_stripes(loaded: &mut LoadedPool, options: &CheckOptions, totals: &mut Totals, findings: &Findings) {
    let mut shards = StripeVerifier::default();
    let stripes = |s: &CheckedSegment| u64::from(s.stripe_count());
    let total: u64 = loaded.chain.iter().chain(loaded.segments.values()).map(stripes).sum();
    for segment in loaded.chain.iter_mut().chain(loaded.segments.values_mut()) {
        let places: Vec<_> = segment.stripes().collect();
        for place in places {
            let verdict =
                shards.verify(&loaded.media, &segment.descriptor, place, options.data, totals, findings);
            if let Some(header) = verdict.header.filter(|_| segment.descriptor.kind == SegmentKind::Bulk) {
                segment.note_payload(place, header.payload_bytes);
            }
            totals.stripes += 1;
            if totals.stripes.is_multiple_of(PROGRESS_EVERY) {
                report_progress(options, CheckPhase::Stripes, totals.stripes, total);
            }
        }
    }
    report_progress(options, CheckPhase::Stripes, total, total);
}
