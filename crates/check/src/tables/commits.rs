//! Commit records: commits in the commit log that are in no table yet.

use warpfire_format::commit::CommitRecord;
use warpfire_format::manifest::ManifestEdit;
use warpfire_format::table::KeyVersion;
use warpfire_units::Seq;

use super::manifest::Manifest;
use crate::code::FindingCode;
use crate::report::Findings;

/// Separates the records of the log. Applies manifest edits to the manifest in `state` and returns it with
/// the commit records.
pub(crate) fn split_records(
    state: &[u8],
    records: Vec<(u64, Vec<u8>)>,
    findings: &Findings,
) -> (Manifest, Vec<Vec<u8>>) {
    let mut manifest = Manifest::default();
    let mut commits = Vec::new();
    if !state.is_empty() {
        match ManifestEdit::decode(state) {
            Ok(Some(edit)) => manifest.apply(edit, findings),
            Ok(None) => {
                findings.error(FindingCode::ManifestEdit, "root", "its client state is no manifest edit")
            }
            Err(e) => findings.error(FindingCode::ManifestEdit, "root", e),
        }
    }
    // The edit in the root includes every table; edits in the log with lower numbers have no effect on it.
    for (pos, record) in records {
        let place = format!("log record {pos}");
        match ManifestEdit::decode(&record) {
            Ok(Some(edit)) => manifest.apply(edit, findings),
            Ok(None) => commits.push(record),
            Err(e) => findings.error(FindingCode::ManifestEdit, place, e),
        }
    }
    manifest.check(findings);
    (manifest, commits)
}

/// The changes of commit records in the order of tables: key rising, newest first. It is a cursor over their
/// keys.
#[derive(Debug, Default)]
pub(crate) struct CommitVersions<'a> {
    changes: Vec<KeyVersion<'a>>,
    at: usize,
}

impl<'a> CommitVersions<'a> {
    /// The changes in `records` with a seq above `flushed`.
    pub(crate) fn new(records: &'a [Vec<u8>], flushed: Seq, findings: &Findings) -> Self {
        let mut changes = Vec::new();
        let mut last = Seq(0);
        for (number, bytes) in records.iter().enumerate() {
            let place = format!("commit record {number} of the log");
            let record = match CommitRecord::decode(bytes) {
                Ok(Some(record)) => record,
                Ok(None) => {
                    findings.error(
                        FindingCode::CommitRecord,
                        place,
                        "is neither a commit record nor a manifest edit",
                    );
                    continue;
                }
                Err(e) => {
                    findings.error(FindingCode::CommitRecord, place, e);
                    continue;
                }
            };
            if record.first <= last {
                let message =
                    format_args!("begins at commit {} after one that ends at {}", record.first.0, last.0);
                findings.error(FindingCode::CommitRecord, &place, message);
            }
            last = record.last;
            let keep = |change: KeyVersion<'a>| {
                if change.seq > flushed {
                    changes.push(change);
                }
            };
            if let Err(e) = record.for_each(keep) {
                findings.error(FindingCode::CommitRecord, &place, e);
            }
        }
        // Of two changes to one key with one seq the later one is newer. The sort is stable, so reversing
        // first puts it in front.
        changes.reverse();
        changes.sort_by(|a, b| a.key.cmp(b.key).then(b.seq.cmp(&a.seq)));
        CommitVersions { changes, at: 0 }
    }

    /// As `new` without findings, from a key on.
    pub(crate) fn starting_at(records: &'a [Vec<u8>], flushed: Seq, from: &[u8]) -> Self {
        let mut commits = CommitVersions::new(records, flushed, &Findings::default());
        commits.at = commits.changes.partition_point(|change| change.key < from);
        commits
    }

    /// All changes.
    pub(crate) fn all(&self) -> &[KeyVersion<'a>] {
        &self.changes
    }

    /// The current key; `None` after the last.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.changes.get(self.at).map(|c| c.key)
    }

    /// The versions of the current key, newest first.
    pub(crate) fn versions(&self) -> &[KeyVersion<'a>] {
        let rest = self.changes.get(self.at..).unwrap_or(&[]);
        let same = rest.iter().take_while(|c| Some(c.key) == self.key()).count();
        rest.get(..same).unwrap_or(&[])
    }

    /// Moves to the next key.
    pub(crate) fn advance(&mut self) {
        self.at += self.versions().len();
    }
}
