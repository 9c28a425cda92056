//! Commits that are in no table yet: they are in the commit log.

use warpfire_format::commit::CommitRecord;
use warpfire_format::manifest::ManifestEdit;
use warpfire_format::table::KeyVersion;
use warpfire_units::Seq;

use super::manifest::Manifest;
use crate::code::FindingCode;
use crate::report::Findings;

/// Applies the manifest edits among the log's records and keeps the commit records.
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
            Ok(None) => findings.error(FindingCode::ManifestEdit, "root", "its state is no manifest"),
            Err(e) => findings.error(FindingCode::ManifestEdit, "root", e),
        }
    }
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

/// The changes of commit records, in the order of tables: key rising, newest first.
#[derive(Debug, Default)]
pub(crate) struct CommitVersions<'a> {
    changes: Vec<KeyVersion<'a>>,
    at: usize,
}

impl<'a> CommitVersions<'a> {
    /// What `records` change after `flushed`.
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
                        "is neither commits nor a manifest edit",
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
        // Of changes of one key in one commit the later is the newer one.
        changes.reverse();
        changes.sort_by(|a, b| a.key.cmp(b.key).then(b.seq.cmp(&a.seq)));
        CommitVersions { changes, at: 0 }
    }

    /// All changes.
    pub(crate) fn all(&self) -> &[KeyVersion<'a>] {
        &self.changes
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.changes.get(self.at).map(|c| c.key)
    }

    /// The versions of the key it is at, newest first.
    pub(crate) fn versions(&self) -> &[KeyVersion<'a>] {
        let rest = self.changes.get(self.at..).unwrap_or(&[]);
        let same = rest.iter().take_while(|c| Some(c.key) == self.key()).count();
        rest.get(..same).unwrap_or(&[])
    }

    pub(crate) fn advance(&mut self) {
        self.at += self.versions().len();
    }
}
