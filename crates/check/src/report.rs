//! Findings and the report of a check.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::code::FindingCode;
use crate::damage::DamageReport;

/// Most findings of one kind in a report. Further ones are only counted. At a few hundred bytes each, 60
/// kinds take about 2 MiB at most.
pub const LISTED_MAX: u64 = 128;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Not a fault, but worth knowing.
    Note,
    /// Damage that parity covers: all data is readable, but redundancy is missing.
    Repairable,
    /// Lost data, or data that contradicts itself.
    Error,
}

/// One finding of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Its kind.
    pub code: FindingCode,
    /// The structure that it is about, such as a device, a stripe, a table or an inode.
    pub place: String,
    /// The fault, in words that continue `place`.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Repairable => "repairable",
            Severity::Error => "error",
        };
        write!(f, "{severity} {}: {}: {}", self.code.number(), self.place, self.message)
    }
}

/// Counts and rates of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    /// Present devices of the pool.
    pub devices: u64,
    /// Roots that verify.
    pub roots: u64,
    /// Live segments, those of the commit log included.
    pub segments: u64,
    /// Live segments of the commit log.
    pub log_segments: u64,
    /// How many of the other live segments have 0, 1, 2 and so on data columns.
    pub segments_by_data: Vec<u64>,
    /// Stripes of live segments.
    pub stripes: u64,
    /// Blocks with a verified checksum, headers included.
    pub blocks_verified: u64,
    /// Bad blocks that parity can reconstruct. Bad blocks are damaged, unreadable or on a missing device.
    pub blocks_repairable: u64,
    /// Bad blocks that parity cannot reconstruct.
    pub blocks_lost: u64,
    /// Bad blocks in rows that nothing needs. They count in neither of the two numbers above.
    pub blocks_unneeded: u64,
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Zones that belong to live segments.
    pub zones_used: u64,
    /// Zones outside of root zones that belong to no live segment.
    pub zones_free: u64,
    /// The free zones of each device, in the order of the pool's table of devices.
    pub zones_free_by_device: Vec<u64>,
    /// Replayed stripes of the commit log.
    pub log_stripes: u64,
    /// Replayed records of the commit log.
    pub log_records: u64,
    /// Tables.
    pub tables: u64,
    /// Key versions in tables and in the commit log.
    pub versions: u64,
    /// Keys with a value.
    pub keys: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Device files, pipes and sockets.
    pub special_files: u64,
    /// Names in directories.
    pub names: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Allocated bytes of all files: holes are not counted.
    pub file_bytes: u64,
    /// Bytes of segments that tables and values name. Bytes that several values share count once for each, up
    /// to the bytes of their segment.
    pub live_bytes: u64,
    /// The same bytes, each once however many values share it; 0 if they were not counted.
    #[serde(skip)]
    pub distinct_bytes: u64,
    /// Time for the stripes, in nanoseconds.
    pub stripe_nanos: u64,
    /// Time for tables and names, in nanoseconds.
    pub name_nanos: u64,
    /// Time for the whole check, in nanoseconds.
    pub nanos: u64,
    /// Most memory that the facts about names and inodes took, in bytes.
    pub ledger_bytes_max: u64,
    /// Number of passes over the map. More than one if the facts did not fit the memory at once.
    pub passes: u64,
}

impl Totals {
    /// Bytes read from devices per second, over the whole check.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        rate(self.bytes_read, self.nanos)
    }

    /// Keys checked per second of the stage of tables and names.
    #[must_use]
    pub fn keys_per_second(&self) -> u64 {
        rate(self.keys, self.name_nanos)
    }
}

impl Totals {
    /// Counts bad blocks as unneeded that were counted as lost or repairable before.
    pub(crate) fn take_unneeded(&mut self, blocks: u64, is_lost: bool) {
        let counted = if is_lost { &mut self.blocks_lost } else { &mut self.blocks_repairable };
        debug_assert!(*counted >= blocks, "bad blocks are counted when they are found");
        *counted = counted.saturating_sub(blocks);
        self.blocks_unneeded += blocks;
    }
}

fn rate(count: u64, nanos: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Findings, worst first, at most [`LISTED_MAX`] of each kind.
    pub findings: Vec<Finding>,
    /// Number of notes, listed or not.
    pub notes: u64,
    /// Number of repairable findings, listed or not.
    pub repairable: u64,
    /// Number of errors, listed or not.
    pub errors: u64,
    /// The damage that something needs, by file.
    pub damage: DamageReport,
    /// Counts and rates.
    pub totals: Totals,
}

impl CheckReport {
    /// Whether all findings are notes.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.repairable == 0 && self.errors == 0
    }

    /// The exit code as in `fsck(8)`: 0 clean, 4 errors left uncorrected. (8, operational error, is a
    /// [`crate::CheckError`].)
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.is_clean() { 0 } else { 4 }
    }
}

/// Collects findings. All are counted; at most [`LISTED_MAX`] of each kind are listed (`add`, `append`).
#[derive(Debug, Default)]
pub(crate) struct Findings(RefCell<FindingList>);

#[derive(Debug, Default)]
struct FindingList {
    listed: Vec<Finding>,
    by_kind: BTreeMap<(Severity, FindingCode), u64>,
}

impl FindingList {
    fn of_code(&self, code: FindingCode) -> u64 {
        self.by_kind.iter().filter(|((_, of), _)| *of == code).map(|(_, count)| count).sum()
    }
}

impl Findings {
    pub(crate) fn note(&self, code: FindingCode, place: impl fmt::Display, message: impl fmt::Display) {
        self.add(Severity::Note, code, &place, &message);
    }

    pub(crate) fn repairable(&self, code: FindingCode, place: impl fmt::Display, message: impl fmt::Display) {
        self.add(Severity::Repairable, code, &place, &message);
    }

    pub(crate) fn error(&self, code: FindingCode, place: impl fmt::Display, message: impl fmt::Display) {
        self.add(Severity::Error, code, &place, &message);
    }

    pub(crate) fn add(
        &self,
        severity: Severity,
        code: FindingCode,
        place: &dyn fmt::Display,
        message: &dyn fmt::Display,
    ) {
        let mut all = self.0.borrow_mut();
        // A destroyed device makes millions of equal findings: counting goes on, listing stops.
        *all.by_kind.entry((severity, code)).or_default() += 1;
        if all.of_code(code) <= LISTED_MAX {
            all.listed.push(Finding {
                severity,
                code,
                place: place.to_string(),
                message: message.to_string(),
            });
        }
    }

    /// The listed findings, and the number of those that are not listed by severity and code.
    pub(crate) fn into_parts(self) -> (Vec<Finding>, Vec<(Severity, FindingCode, u64)>) {
        let all = self.0.into_inner();
        (
            all.listed,
            all.by_kind.into_iter().map(|((severity, code), count)| (severity, code, count)).collect(),
        )
    }

    /// Counts findings without listing them.
    pub(crate) fn count(&self, severity: Severity, code: FindingCode, count: u64) {
        *self.0.borrow_mut().by_kind.entry((severity, code)).or_default() += count;
    }

    /// Lists a finding that is counted already.
    pub(crate) fn list(&self, finding: Finding) {
        self.0.borrow_mut().listed.push(finding);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().by_kind.is_empty()
    }

    /// Adds the findings of another collector.
    pub(crate) fn append(&self, other: Findings) {
        let other = other.0.into_inner();
        let mut all = self.0.borrow_mut();
        let mut rooms: BTreeMap<FindingCode, u64> = BTreeMap::new();
        for (_, code) in other.by_kind.keys() {
            rooms.insert(*code, LISTED_MAX.saturating_sub(all.of_code(*code)));
        }
        for (kind, count) in other.by_kind {
            *all.by_kind.entry(kind).or_default() += count;
        }
        for finding in other.listed {
            let room = rooms.entry(finding.code).or_default();
            if *room > 0 {
                *room -= 1;
                all.listed.push(finding);
            }
        }
    }

    pub(crate) fn into_report(self, totals: Totals, damage: DamageReport) -> CheckReport {
        let FindingList { mut listed, by_kind } = self.0.into_inner();
        debug_assert!(
            listed.len() as u64 <= by_kind.values().sum::<u64>(),
            "every listed finding is counted"
        );
        // The sort is stable: findings of one severity stay in the order of the check, bottom up.
        listed.sort_by_key(|f| std::cmp::Reverse(f.severity));
        let count = |severity| by_kind.iter().filter(|((of, _), _)| *of == severity).map(|(_, n)| n).sum();
        CheckReport {
            findings: listed,
            notes: count(Severity::Note),
            repairable: count(Severity::Repairable),
            errors: count(Severity::Error),
            damage,
            totals,
        }
    }
}
