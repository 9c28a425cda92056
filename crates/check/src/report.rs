//! What a check found.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::code::FindingCode;

/// Most findings of one kind that a report lists; all are counted. At a few hundred bytes each, 60 kinds
/// take at most some 2 MiB.
pub const LISTED_MAX: u64 = 128;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is wrong; worth knowing.
    Note,
    /// Damage within what parity covers: all data is readable, redundancy is less than it should be.
    Repairable,
    /// Something is lost or contradicts itself.
    Error,
}

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing.
    pub code: FindingCode,
    /// Where.
    pub place: String,
    /// What, in words.
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

/// What was read and counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    /// Devices of the pool that were given.
    pub devices: u64,
    /// Root records that verify.
    pub roots: u64,
    /// Live segments, those of the commit log included.
    pub segments: u64,
    /// Stripes of live segments.
    pub stripes: u64,
    /// Blocks of which the checksum was verified, headers included.
    pub blocks_verified: u64,
    /// Blocks that are damaged or unreadable, those on missing devices included, and that parity gives back.
    pub blocks_repairable: u64,
    /// Damaged or unreadable blocks that parity does not give back.
    pub blocks_lost: u64,
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Zones that belong to live segments.
    pub zones_used: u64,
    /// Zones that belong to no one.
    pub zones_free: u64,
    /// Stripes of the commit log that are replayed.
    pub log_stripes: u64,
    /// Records in them that are replayed.
    pub log_records: u64,
    /// Tables.
    pub tables: u64,
    /// Versions in tables and in the log.
    pub versions: u64,
    /// Keys that have a value.
    pub keys: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special_files: u64,
    /// Names.
    pub names: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Bytes in files, holes not counted.
    pub file_bytes: u64,
    /// Bytes of segments that tables and values name.
    pub live_bytes: u64,
    /// Nanoseconds that the stripes took.
    pub stripe_nanos: u64,
    /// Nanoseconds that tables and names took.
    pub name_nanos: u64,
    /// Nanoseconds in all.
    pub nanos: u64,
    /// Most bytes that the tables of the name check took at once.
    pub ledger_bytes_max: u64,
    /// Times that the map was read: more than one when memory did not hold all facts at once.
    pub passes: u64,
}

impl Totals {
    /// Bytes read from devices in a second, over the whole check.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        rate(self.bytes_read, self.nanos)
    }

    /// Keys checked in a second, tables read and merged.
    #[must_use]
    pub fn keys_per_second(&self) -> u64 {
        rate(self.keys, self.name_nanos)
    }
}

fn rate(count: u64, nanos: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CheckReport {
    /// What was found, worst first; at most [`LISTED_MAX`] of each kind.
    pub findings: Vec<Finding>,
    /// How many notes, listed or not.
    pub notes: u64,
    /// How many repairable findings, listed or not.
    pub repairable: u64,
    /// How many errors, listed or not.
    pub errors: u64,
    /// What was read and counted.
    pub totals: Totals,
}

impl CheckReport {
    /// Whether nothing but notes was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.repairable == 0 && self.errors == 0
    }

    /// The exit code of `fsck(8)`: 0 clean, 4 errors left uncorrected. (8, operational error, is a [`crate::CheckError`].)
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.is_clean() { 0 } else { 4 }
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Findings(RefCell<FindingList>);

#[derive(Debug, Default)]
struct FindingList {
    listed: Vec<Finding>,
    by_code: BTreeMap<FindingCode, u64>,
    by_severity: BTreeMap<Severity, u64>,
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

    fn add(
        &self,
        severity: Severity,
        code: FindingCode,
        place: &dyn fmt::Display,
        message: &dyn fmt::Display,
    ) {
        let mut all = self.0.borrow_mut();
        *all.by_severity.entry(severity).or_default() += 1;
        let of_code = all.by_code.entry(code).or_default();
        *of_code += 1;
        if *of_code <= LISTED_MAX {
            all.listed.push(Finding {
                severity,
                code,
                place: place.to_string(),
                message: message.to_string(),
            });
        }
    }

    /// Takes over what another collector found.
    pub(crate) fn append(&self, other: Findings) {
        let other = other.0.into_inner();
        let mut all = self.0.borrow_mut();
        for (severity, count) in other.by_severity {
            *all.by_severity.entry(severity).or_default() += count;
        }
        let room = |code| LISTED_MAX.saturating_sub(all.by_code.get(&code).copied().unwrap_or(0));
        let mut rooms: BTreeMap<FindingCode, u64> =
            other.by_code.keys().map(|code| (*code, room(*code))).collect();
        for (code, count) in other.by_code {
            *all.by_code.entry(code).or_default() += count;
        }
        for finding in other.listed {
            let room = rooms.entry(finding.code).or_default();
            if *room > 0 {
                *room -= 1;
                all.listed.push(finding);
            }
        }
    }

    pub(crate) fn into_report(self, totals: Totals) -> CheckReport {
        let FindingList { mut listed, by_severity, .. } = self.0.into_inner();
        // Worst first, otherwise in the order in which they were found.
        listed.sort_by_key(|f| std::cmp::Reverse(f.severity));
        let count = |severity| by_severity.get(&severity).copied().unwrap_or(0);
        CheckReport {
            findings: listed,
            notes: count(Severity::Note),
            repairable: count(Severity::Repairable),
            errors: count(Severity::Error),
            totals,
        }
    }
}
