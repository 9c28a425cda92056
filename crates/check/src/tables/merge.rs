//! Merges all runs and the commit records of the log into one map at its newest version.
//!
//! Versions of a key in the log are the newest, then those in the first run of the manifest, and so on.
//! Within one source they stand newest first.

use std::cmp::Ordering;

use warpfire_format::fs::{FoldBase, FoldOutcome, fold};
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_units::Seq;

use super::commits::CommitVersions;
use super::manifest::Manifest;
use super::run::RunReader;
use super::verify::show;
use crate::code::FindingCode;
use crate::media::SliceReader;
use crate::report::Findings;

/// The newest value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value<'a> {
    /// A value.
    Present(&'a [u8]),
    /// There may be a value, but it cannot be computed. The reason is reported already.
    Unreadable,
}

enum VersionSource<'a> {
    Log(CommitVersions<'a>),
    Run(Box<RunReader<'a>>),
}

impl<'a> VersionSource<'a> {
    fn key(&self) -> Option<&[u8]> {
        match self {
            VersionSource::Log(commits) => commits.key(),
            VersionSource::Run(run) => run.key(),
        }
    }

    fn versions(&self) -> impl Iterator<Item = KeyVersion<'_>> {
        let (log, run) = match self {
            VersionSource::Log(commits) => (Some(commits.versions().iter().copied()), None),
            VersionSource::Run(run) => (None, Some(run.versions())),
        };
        log.into_iter().flatten().chain(run.into_iter().flatten())
    }
}

/// A walk over the merged map.
///
/// Invariant: `order` has the number of each source with a current key once, sorted by that key and then
/// newest first (`insert`).
pub(crate) struct Merge<'a> {
    /// The log's commits, then the runs, newest first.
    sources: Vec<VersionSource<'a>>,
    order: Vec<usize>,
    /// Key versions so far.
    pub(crate) versions_seen: u64,
}

impl<'a> Merge<'a> {
    /// A walk from the first key. With `verify` it checks the tables that it reads.
    pub(crate) fn new(
        manifest: &'a Manifest,
        commits: CommitVersions<'a>,
        verify: bool,
        reader: &mut SliceReader<'_>,
        findings: &Findings,
    ) -> Self {
        let runs = manifest
            .runs()
            .into_iter()
            .map(|tables| VersionSource::Run(Box::new(RunReader::new(tables, verify))));
        let mut merge = Merge {
            sources: std::iter::once(VersionSource::Log(commits)).chain(runs).collect(),
            order: Vec::new(),
            versions_seen: 0,
        };
        for number in 0..merge.sources.len() {
            if let Some(VersionSource::Run(run)) = merge.sources.get_mut(number) {
                run.advance(reader, findings);
            }
            merge.insert(number);
        }
        merge
    }

    /// Whether part of a table could not be read.
    pub(crate) fn has_holes(&self) -> bool {
        self.sources.iter().any(|s| matches!(s, VersionSource::Run(run) if run.has_holes))
    }

    fn key_of(&self, number: usize) -> Option<&[u8]> {
        self.sources.get(number).and_then(VersionSource::key)
    }

    /// Puts a source into its place in `order`. A source without a current key is left out.
    fn insert(&mut self, number: usize) {
        let Some(key) = self.key_of(number) else { return };
        let at = self.order.partition_point(|other| {
            let order = self.key_of(*other).unwrap_or(&[]).cmp(key);
            order.then(other.cmp(&number)) == Ordering::Less
        });
        self.order.insert(at, number);
    }

    /// Calls `each` for every key that has a value, in order, until it returns `false`.
    pub(crate) fn for_each(
        &mut self,
        reader: &mut SliceReader<'_>,
        findings: &Findings,
        mut each: impl FnMut(&[u8], Value<'_>) -> bool,
    ) {
        let mut folded = Vec::new();
        while let Some(first) = self.order.first().copied() {
            let key = self.key_of(first).unwrap_or(&[]);
            let same = self.order.iter().take_while(|n| self.key_of(**n) == Some(key)).count();
            let newest_first = self.order.iter().take(same).filter_map(|n| self.sources.get(*n));
            let (goes_on, seen) = visit(key, newest_first, &mut folded, findings, &mut each);
            self.versions_seen += seen;
            if !goes_on {
                return;
            }
            // Only the sources at this key move on.
            let done: Vec<usize> = self.order.drain(..same).collect();
            for number in done {
                match self.sources.get_mut(number) {
                    Some(VersionSource::Log(commits)) => commits.advance(),
                    Some(VersionSource::Run(run)) => run.advance(reader, findings),
                    None => {}
                }
                self.insert(number);
            }
        }
    }
}

/// Computes the value of one key and calls `each` with it. Returns the answer of `each` and the number of
/// versions.
fn visit<'s, 'a: 's>(
    key: &[u8],
    sources: impl Iterator<Item = &'s VersionSource<'a>>,
    folded: &mut Vec<u8>,
    findings: &Findings,
    each: &mut impl FnMut(&[u8], Value<'_>) -> bool,
) -> (bool, u64) {
    let mut operands: Vec<&[u8]> = Vec::new();
    let mut base = None;
    let (mut seen, mut oldest) = (0, Seq::MAX);
    // All versions are read, also those older than the base, because their order is checked.
    for (place, version) in sources.enumerate().flat_map(|(n, s)| s.versions().map(move |v| (n, v))) {
        seen += 1;
        if place > 0 && version.seq > oldest {
            let message =
                format_args!("an older run holds commit {}, a newer one {}", version.seq.0, oldest.0);
            findings.error(FindingCode::RunOrder, show(key), message);
        }
        if version.seq != Seq(0) {
            oldest = oldest.min(version.seq);
        }
        if base.is_none() {
            match version.kind {
                VersionKind::Put => base = Some(FoldBase::Value(version.value)),
                VersionKind::Delete => base = Some(FoldBase::Absent),
                VersionKind::Merge => operands.push(version.value),
            }
        }
    }
    let base = base.unwrap_or(FoldBase::Absent);
    operands.reverse();
    let goes_on = match (base, operands.is_empty()) {
        (FoldBase::Value(value), true) => each(key, Value::Present(value)),
        (_, true) => true,
        (base, false) => match fold(key, base, &operands, folded) {
            Ok(FoldOutcome::Value) => each(key, Value::Present(folded)),
            Ok(FoldOutcome::Deleted) => true,
            Ok(FoldOutcome::Operand) => each(key, Value::Unreadable),
            Err(e) => {
                findings.error(FindingCode::Value, show(key), e);
                each(key, Value::Unreadable)
            }
        },
    };
    (goes_on, seen)
}
