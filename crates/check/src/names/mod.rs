//! Names, inodes and extents: checks the merged map as a filesystem.
//!
//! A *pass* reads the map in the order of its keys. For each volume these are the volume record, counters,
//! keyed inodes (directories, and files with several names), orphans, names (which hold all other inodes),
//! attributes, and regions. One pass is enough: every directory is known before the first name, and every
//! inode before the first region. The *facts* are the part of each inode that a pass keeps in memory until
//! all references to it have been seen.
//!
//! # Memory
//! The facts take 40 bytes for each keyed inode, 32 for each file in regions, 16 for each inode with access
//! control lists or capabilities, and one bit for each inode number (in pages of 4 KiB for 32,768 numbers).
//! If they outgrow the allowed memory, the check halves the range of inode numbers (the *window*) and reads
//! the map once for each part. 8 million small files take 1 MiB, 100 million 12.5 MiB. 6.7 million
//! directories, or 8.4 million large files, take 256 MiB.

mod acl;
mod facts;
mod inoset;
mod pass;
mod volume;

use std::collections::BTreeMap;

use warpfire_format::fs;
use warpfire_format::table::VersionKind;
use warpfire_units::SegmentId;

use crate::code::FindingCode;
use crate::damage::FileNamer;
use crate::load::LoadedPool;
use crate::media::SliceReader;
use crate::options::{CheckError, CheckOptions, CheckPhase};
use crate::report::{Findings, Totals};
use crate::run::report_progress;
use crate::tables::{CommitVersions, LostKeys, Merge, ShownKeys, Value, show};
pub(crate) use inoset::InoSet;
use pass::{InoRange, NamesPass, PassOutcome};

/// Keys between two calls of the progress callback.
const PROGRESS_EVERY: u64 = 1 << 16;

/// Checks the map, in as many passes as the allowed memory needs. Names the damaged files of `namer` in the
/// first pass, and returns the keys that cannot be read.
pub(crate) fn check_names(
    loaded: &LoadedPool,
    options: &CheckOptions,
    reader: &mut SliceReader<'_>,
    mut namer: Option<&mut FileNamer<'_>>,
    totals: &mut Totals,
    findings: &Findings,
) -> Result<Vec<LostKeys>, CheckError> {
    let mut lost = Vec::new();
    count_commits(loaded, reader, findings);
    // The damage of files has the rest of the memory.
    let facts_bytes_max =
        if namer.is_some() { options.max_memory_bytes / 2 } else { options.max_memory_bytes };
    let mut window = InoRange::ALL;
    // Checks that need no facts, and all counting, happen in the first pass only.
    let mut is_first = true;
    let mut stopped = Ok(());
    loop {
        let quiet = Findings::default();
        // Tables are verified and their damage is reported in the first pass only.
        let table_findings = if is_first { findings } else { &quiet };
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
        let mut merge = Merge::new(&loaded.manifest, commits, &[], is_first, reader, table_findings);
        let mut pass = NamesPass::new(window, is_first, facts_bytes_max, totals, findings);
        let expected = loaded.manifest.tables().fold(0u64, |sum, t| sum.saturating_add(t.entries));
        let mut keys = 0u64;
        merge.for_each(reader, table_findings, |key, value| {
            keys += 1;
            if keys.is_multiple_of(PROGRESS_EVERY) {
                stopped = report_progress(options, CheckPhase::Names, keys.min(expected), expected);
                if stopped.is_err() {
                    return false;
                }
            }
            match value {
                Value::Present(value) => {
                    if let Some(namer) = namer.as_deref_mut() {
                        namer.take(key, value);
                    }
                    pass.take(key, value)
                }
                Value::Unreadable => pass.take_hole(),
                Value::Unfolded(error) => pass.take_unfolded(key, error),
            }
        });
        stopped.clone()?;
        let mut holes = merge.has_holes();
        // Clones, each with what it shows of its origin.
        for (volume, at) in pass.clones() {
            let of = (&loaded.manifest, &loaded.commits);
            let Some(mut shown) = ShownKeys::new(of.0, of.1, pass.volumes(), (volume, at), reader) else {
                pass.refuse_origins(volume);
                continue;
            };
            while let Some(shown) = shown.next(reader, table_findings) {
                keys += 1;
                if keys.is_multiple_of(PROGRESS_EVERY) {
                    report_progress(options, CheckPhase::Names, keys.min(expected), expected)?;
                }
                let goes_on = match &shown.value {
                    Some(value) => pass.take_shown(&shown.key, value, shown.is_own),
                    None => pass.take_hole(),
                };
                if !goes_on {
                    break;
                }
            }
            holes |= shown.has_holes();
        }
        let outcome = pass.finish(holes);
        totals.passes += 1;
        if is_first {
            totals.versions = merge.versions_seen;
            lost = merge.lost().cloned().collect();
            namer = None;
        }
        match outcome {
            PassOutcome::Done { next: Some(next) } => window = next,
            PassOutcome::Done { next: None } => break,
            PassOutcome::TooMuch { past } => {
                let allowed_bytes = options.max_memory_bytes;
                window = window.halve(past).ok_or(CheckError::Memory { allowed_bytes })?;
            }
        }
        is_first = false;
    }
    // A segment holds no more live bytes than bytes, however many values share them.
    let live = reader.live().iter().filter_map(|(id, named)| {
        loaded.segments.get(id).map(|segment| (*named).min(segment.descriptor.payload_bytes()))
    });
    totals.live_bytes = live.sum();
    totals.distinct_bytes = reader.distinct_bytes();
    Ok(lost)
}

/// Checks the commit records in the log, and that tables and their pointers name payload.
fn count_commits(loaded: &LoadedPool, reader: &mut SliceReader<'_>, findings: &Findings) {
    let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, findings);
    let mut references: BTreeMap<SegmentId, u64> = BTreeMap::new();
    for table in loaded.manifest.tables() {
        for slice in &table.slices {
            reader.count_name(*slice);
            *references.entry(slice.segment).or_default() += u64::from(slice.len_bytes);
            if !reader.holds(*slice) {
                let message = format_args!("{slice} is not payload of a live segment");
                findings.error(FindingCode::SliceOutside, format_args!("table {}", table.id), message);
            }
        }
    }
    // Live bytes are those of all versions, not only of the newest: replay keeps the slices of every change
    // alive.
    for change in commits.all().iter().filter(|c| c.kind != VersionKind::Delete) {
        let visited =
            fs::pointers(change.key, change.value, change.kind == VersionKind::Merge, &mut |slice| {
                reader.count_name(slice);
                *references.entry(slice.segment).or_default() += u64::from(slice.len_bytes);
                if !reader.holds(slice) {
                    let place = format_args!("commit log, {}", show(change.key));
                    findings.error(
                        FindingCode::SliceOutside,
                        place,
                        format_args!("{slice} is not payload of a live segment"),
                    );
                }
            });
        if let Err(e) = visited {
            findings.error(FindingCode::Value, format_args!("commit log, {}", show(change.key)), e);
        }
    }
    reader.count(&references);
}
