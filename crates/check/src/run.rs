//! The whole check, bottom up.

use std::fmt;
use std::sync::Arc;

use warpfire_env::Device;
use warpfire_format::segment::SegmentKind;
use warpfire_units::BLOCK_BYTES;

use crate::code::FindingCode;
use crate::damage::{DamageLedger, DamagedFiles, FileNamer};
use crate::load::{LoadedPool, check_newer_sessions, load};
use crate::media::{CheckedSegment, Media, SliceReader, StripeVerifier};
use crate::names;
use crate::options::{CheckError, CheckOptions, CheckPhase, CheckProgress};
use crate::report::{CheckReport, Findings, Totals};
use crate::tables::{CommitVersions, Merge, Value};

/// Bytes of stripes between two calls of the progress callback.
const PROGRESS_EVERY_BYTES: u64 = 16 << 20;

/// Checks a pool. Devices may come in any order. Up to m of them may be missing without loss.
///
/// # Errors
/// [`CheckError`], if there is no pool to check, the allowed memory is too small, or the progress function
/// ends the check. Damage inside a pool is a finding and not an error.
pub fn check(devices: &[Arc<dyn Device>], options: &CheckOptions) -> Result<CheckReport, CheckError> {
    report_progress(options, CheckPhase::Log, 0, 1)?;
    LoadedCheck::load(devices, options)?.run(options)
}

/// A check that has read the roots and the commit log of a pool. So it knows which bytes it reads later. A
/// program that writes the pool may go on then, if it leaves these bytes as they are.
#[must_use = "it has checked nothing yet"]
pub struct LoadedCheck {
    loaded: LoadedPool,
    findings: Findings,
    totals: Totals,
    /// Time that the load took.
    load_nanos: u64,
}

impl fmt::Debug for LoadedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedCheck").field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl LoadedCheck {
    /// Reads roots and commit log.
    ///
    /// # Errors
    /// As [`check`].
    pub fn load(devices: &[Arc<dyn Device>], options: &CheckOptions) -> Result<LoadedCheck, CheckError> {
        let began = options.clock.monotonic_nanos();
        let (mut totals, findings) = (Totals::default(), Findings::default());
        let loaded = load(devices, &mut totals, &findings)?;
        Ok(LoadedCheck { loaded, findings, totals, load_nanos: options.clock.monotonic_nanos() - began })
    }

    /// Checks all the rest.
    ///
    /// # Errors
    /// As [`check`].
    pub fn run(self, options: &CheckOptions) -> Result<CheckReport, CheckError> {
        let LoadedCheck { mut loaded, findings, mut totals, load_nanos } = self;
        let began = options.clock.monotonic_nanos();
        check_newer_sessions(&loaded, &findings);
        report_progress(options, CheckPhase::Log, 1, 1)?;
        // Stripes come before names: they say which bytes of each segment are payload, and pointers must name
        // payload.
        let log_read = options.clock.monotonic_nanos();
        let mut stripes = StripesStage::new(&loaded, options);
        let mut files = DamagedFiles::new(options.max_memory_bytes);
        let mut ledger = DamageLedger::default();
        while !stripes.check(&mut loaded, options, &mut ledger, &mut totals, &findings)? {
            name_part(&loaded, &mut ledger, &mut files);
            ledger.settle(&mut totals, &findings);
        }
        let stripes_read = options.clock.monotonic_nanos();
        let reader = SliceReader::new(&loaded.media, &loaded.segments);
        let mut reader = reader.counting_distinct(options.counts_distinct);
        let has_damage = !ledger.is_empty();
        let mut namer = FileNamer::new(&loaded, &mut ledger, &mut files, true, &mut reader);
        let naming = has_damage.then_some(&mut namer);
        let lost = names::check_names(&loaded, options, &mut reader, naming, &mut totals, &findings)?;
        namer.take_snapshots(&loaded, &mut reader);
        namer.take_metadata(&loaded, &lost, &mut reader);
        let damage = files.finish(&loaded, &mut reader);
        ledger.settle(&mut totals, &findings);
        drop(reader);
        let ended = options.clock.monotonic_nanos();
        totals.stripe_nanos = stripes_read - log_read;
        totals.name_nanos = ended - stripes_read;
        totals.nanos = load_nanos + (ended - began);
        totals.bytes_read = loaded.media.bytes_read();
        Ok(findings.into_report(totals, damage))
    }
}

/// Calls the progress function.
///
/// # Errors
/// `Stopped` if it says so.
pub(crate) fn report_progress(
    options: &CheckOptions,
    phase: CheckPhase,
    done: u64,
    total: u64,
) -> Result<(), CheckError> {
    let flow = options.progress.as_ref().map(|progress| progress(CheckProgress { phase, done, total }));
    if flow.is_some_and(|flow| flow.is_break()) { Err(CheckError::Stopped) } else { Ok(()) }
}

/// Names the files of a ledger that has grown to its share of the memory, so that it can be emptied.
fn name_part(loaded: &LoadedPool, ledger: &mut DamageLedger, files: &mut DamagedFiles) {
    let mut reader = SliceReader::new(&loaded.media, &loaded.segments);
    let mut namer = FileNamer::new(loaded, ledger, files, false, &mut reader);
    let quiet = Findings::default();
    let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
    let mut merge = Merge::new(&loaded.manifest, commits, &[], false, &mut reader, &quiet);
    merge.for_each(&mut reader, &quiet, |key, value| {
        if let Value::Present(value) = value {
            namer.take(key, value);
        }
        true
    });
    namer.take_snapshots(loaded, &mut reader);
    namer.take_metadata(loaded, &[], &mut reader);
}

/// The stage that verifies every stripe of every live segment, notes the length of each stripe's payload and
/// lists the stripes with bad blocks.
struct StripesStage {
    verifier: StripeVerifier,
    /// Segments that are done: first those of the log, then the others.
    segments_done: usize,
    bytes_done: u64,
    bytes: u64,
}

/// Whether the blocks of a segment are read, and not only its headers.
fn reads_blocks(segment: &CheckedSegment, options: &CheckOptions) -> bool {
    let id = segment.descriptor.id.get();
    options.data && options.only.as_ref().is_none_or(|only| only.contains(&id))
}

/// Bytes of so many blocks on each column that is there.
fn bytes_of(media: &Media, segment: &CheckedSegment, blocks: u64) -> u64 {
    let columns = segment.descriptor.columns.iter().filter(|(device, _)| media.is_present(*device));
    (columns.count() as u64).saturating_mul(blocks).saturating_mul(BLOCK_BYTES as u64)
}

impl StripesStage {
    fn new(loaded: &LoadedPool, options: &CheckOptions) -> Self {
        let bytes = |s: &CheckedSegment| {
            let (blocks, headers) = (s.descriptor.zone_blocks_used(), u64::from(s.stripe_count()));
            bytes_of(&loaded.media, s, if reads_blocks(s, options) { blocks } else { headers })
        };
        let bytes: u64 = loaded.chain.iter().chain(loaded.segments.values()).map(bytes).sum();
        StripesStage { verifier: StripeVerifier::default(), segments_done: 0, bytes_done: 0, bytes }
    }

    /// Goes on until the last segment, or until the ledger has a quarter of the allowed memory. Returns
    /// whether the last segment is done.
    ///
    /// # Errors
    /// `Stopped`.
    fn check(
        &mut self,
        loaded: &mut LoadedPool,
        options: &CheckOptions,
        ledger: &mut DamageLedger,
        totals: &mut Totals,
        findings: &Findings,
    ) -> Result<bool, CheckError> {
        let done = self.segments_done;
        let (parity_of_new, wishes) = (loaded.parity_of_new(), loaded.root.wishes);
        for segment in loaded.chain.iter_mut().chain(loaded.segments.values_mut()).skip(done) {
            if ledger.bytes() > options.max_memory_bytes / 4 {
                return Ok(false);
            }
            let is_log = segment.descriptor.kind() == SegmentKind::Mirror;
            // Recovery reads the first segment of the log from this stripe on, and the others whole.
            let unread = if self.segments_done == 0 { loaded.state.first_stripe } else { 0 };
            self.segments_done += 1;
            let data = reads_blocks(segment, options);
            let places: Vec<_> = segment.stripes().collect();
            let parity_wanted = LoadedPool::parity_wanted(&wishes, segment.descriptor.id, parity_of_new);
            let is_narrow = data && !is_log && segment.descriptor.parity < parity_wanted;
            for place in places {
                let found = Findings::default();
                let d = &segment.descriptor;
                let mut verdict = self.verifier.verify(&loaded.media, d, place, data, totals, &found);
                if let Some(header) = verdict.header.take_if(|_| !is_log) {
                    segment.note_payload(place, header.payload_bytes);
                }
                verdict.is_narrow = is_narrow;
                if is_narrow {
                    let at = format!("{} stripe {}", segment.descriptor.id, place.stripe);
                    let columns = segment.descriptor.parity;
                    let message = format_args!("has parity {columns}, and the devices allow {parity_wanted}");
                    found.repairable(FindingCode::StripeNarrow, at, message);
                }
                if verdict.bad_headers > 0 || !verdict.bad_rows.is_empty() || is_narrow {
                    let is_needed = is_log && (unread..segment.needed_stripes).contains(&place.stripe);
                    ledger.add(segment, place, verdict, (data, is_needed), found);
                } else if !found.is_empty() {
                    findings.append(found);
                }
                totals.stripes += 1;
                let blocks = if data { 1 + u64::from(place.rows) } else { 1 };
                let bytes_before = self.bytes_done;
                self.bytes_done += bytes_of(&loaded.media, segment, blocks);
                if bytes_before / PROGRESS_EVERY_BYTES < self.bytes_done / PROGRESS_EVERY_BYTES {
                    report_progress(options, CheckPhase::Stripes, self.bytes_done, self.bytes)?;
                }
            }
        }
        debug_assert_eq!(self.bytes_done, self.bytes, "the bytes of a stage are those of its stripes");
        report_progress(options, CheckPhase::Stripes, self.bytes, self.bytes)?;
        Ok(true)
    }
}
