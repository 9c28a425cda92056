//! Merges all runs and the commit records of the log into one map at its newest version.
//!
//! Versions of a key in the log are the newest, then those in the first run of the manifest, and so on.
//! Within one source they stand newest first. The runs of the past come last, in no order: what one of them
//! has of a key is complete for the seqs from its oldest version to the delete above them. A rollback hides
//! versions between those that a reader sees.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use warpfire_format::Corrupt;
use warpfire_format::fs::{FoldBase, FoldOutcome, fold};
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_units::Seq;

use super::commits::CommitVersions;
use super::manifest::Manifest;
use super::rollbacks::Rollbacks;
use super::run::{LostKeys, RunReader};
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
    /// Its versions do not fold onto each other. That is not reported yet.
    Unfolded(Corrupt),
}

/// What the versions of a key say, without those of an origin.
pub(crate) enum KeyPart {
    /// It has this value.
    Value(Vec<u8>),
    /// It has none.
    Deleted,
    /// This operand folds onto the value of the origin.
    Operand(Vec<u8>),
    /// It cannot be computed. The reason is reported already.
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

    /// The keys of its unreadable blocks so far.
    fn lost(&self) -> &[LostKeys] {
        match self {
            VersionSource::Log(_) => &[],
            VersionSource::Run(run) => run.lost(),
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
    /// The log's commits, then the runs of the present, newest first, then those of the past.
    sources: Vec<VersionSource<'a>>,
    /// The number of the first source that is a run of the past.
    first_past: usize,
    rollbacks: &'a Rollbacks,
    order: Vec<usize>,
    /// Key versions so far.
    pub(crate) versions_seen: u64,
    /// Keys with a value that an unreadable block may also hold a version of, but an older one.
    pub(crate) survivors: BTreeSet<Vec<u8>>,
}

impl<'a> Merge<'a> {
    /// A walk from key `from` on. With `verify` it checks the tables that it reads.
    pub(crate) fn new(
        manifest: &'a Manifest,
        commits: CommitVersions<'a>,
        from: &[u8],
        verify: bool,
        reader: &mut SliceReader<'_>,
        findings: &Findings,
    ) -> Self {
        let (present, past) = (manifest.runs(), manifest.past());
        let first_past = 1 + present.len();
        let runs = (present.into_iter().chain(past))
            .map(|tables| VersionSource::Run(Box::new(RunReader::new(tables, from, verify))));
        let mut merge = Merge {
            sources: std::iter::once(VersionSource::Log(commits)).chain(runs).collect(),
            first_past,
            rollbacks: &manifest.rollbacks,
            order: Vec::new(),
            versions_seen: 0,
            survivors: BTreeSet::new(),
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

    /// The keys of unreadable blocks so far.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &LostKeys> {
        self.sources.iter().flat_map(|source| source.lost())
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
            let key = self.sources.get(first).and_then(VersionSource::key).unwrap_or(&[]);
            let same = self.order.iter().take_while(|n| self.key_of(**n) == Some(key)).count();
            let newest_first = self.order.iter().take(same).filter_map(|n| Some((*n, self.sources.get(*n)?)));
            let (mut merged, seen) = visit(key, newest_first, self.first_past, &mut folded, findings);
            self.versions_seen += seen;
            if let Some(seen) = self.rollbacks.seen(key, Seq::MAX) {
                let of_key = self.order.iter().take(same).filter_map(|n| Some((*n, self.sources.get(*n)?)));
                merged = shown_again(part(key, of_key, (self.first_past, &seen), findings), key, &mut folded);
            }
            // An unreadable block that may hold a version between the base and now makes the value unknown.
            // Every source has been read up to this key, so all of them that may hold it are known. The
            // newest value is in the present.
            let hides =
                |(_, source): &(usize, &VersionSource<'_>)| source.lost().iter().any(|l| l.may_hold(key));
            let present = self.sources.iter().take(self.first_past);
            let hidden_by = present.enumerate().find(hides).map(|(number, _)| number);
            let value = match (merged, hidden_by) {
                (Merged::Absent, _) => None,
                (Merged::Unreadable, _) => Some(Value::Unreadable),
                (Merged::Value { base }, Some(hider)) if hider <= base => Some(Value::Unreadable),
                (Merged::Unfolded(error), _) => Some(Value::Unfolded(error)),
                (Merged::Value { .. }, hidden_by) => {
                    if hidden_by.is_some() {
                        self.survivors.insert(key.to_vec());
                    }
                    Some(Value::Present(&folded))
                }
            };
            if value.is_some_and(|value| !each(key, value)) {
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

impl Merge<'_> {
    /// The next key, and what its versions up to a seq say; `None` if there are no such versions.
    pub(crate) fn next_part(
        &mut self,
        upto: Seq,
        reader: &mut SliceReader<'_>,
        findings: &Findings,
    ) -> Option<(Vec<u8>, Option<KeyPart>)> {
        let first = self.order.first().copied()?;
        let key = self.sources.get(first).and_then(VersionSource::key).unwrap_or(&[]).to_vec();
        let same = self.order.iter().take_while(|n| self.key_of(**n) == Some(&key)).count();
        let newest_first = self.order.iter().take(same).filter_map(|n| Some((*n, self.sources.get(*n)?)));
        let seen = self.rollbacks.seen(&key, upto).unwrap_or_else(|| vec![(None, upto)]);
        let (part, base) = part(&key, newest_first, (self.first_past, &seen), findings);
        // As in `for_each`.
        let hides =
            |(_, source): &(usize, &VersionSource<'_>)| source.lost().iter().any(|l| l.may_hold(&key));
        let hidden_by = self.sources.iter().enumerate().find(hides).map(|(number, _)| number);
        let part = match hidden_by {
            Some(hider) if hider <= base => Some(KeyPart::Unreadable),
            _ => part,
        };
        let done: Vec<usize> = self.order.drain(..same).collect();
        for number in done {
            match self.sources.get_mut(number) {
                Some(VersionSource::Log(commits)) => commits.advance(),
                Some(VersionSource::Run(run)) => run.advance(reader, findings),
                None => {}
            }
            self.insert(number);
        }
        Some((key, part))
    }

    /// Calls `each` with every older version that one of these snapshots shows; the seqs rise. The newest
    /// version of a key is left out, unless it is an operand.
    pub(crate) fn for_each_held(
        &mut self,
        snapshots: &[Seq],
        reader: &mut SliceReader<'_>,
        findings: &Findings,
        mut each: impl FnMut(KeyVersion<'_>),
    ) {
        while let Some(first) = self.order.first().copied() {
            let key = self.sources.get(first).and_then(VersionSource::key).unwrap_or(&[]);
            let same = self.order.iter().take_while(|n| self.key_of(**n) == Some(key)).count();
            let sources = self.order.iter().take(same).filter_map(|n| Some((*n, self.sources.get(*n)?)));
            let versions =
                sources.flat_map(|(source, versions)| versions.versions().map(move |v| (source, v)));
            // A put or delete hides the versions below it, from its own seq on. A run of the past stands
            // alone.
            let (mut hidden_from, mut last) = (Seq::MAX, 0);
            for (number, (source, version)) in versions.enumerate() {
                if source >= self.first_past && source != last {
                    hidden_from = Seq::MAX;
                }
                last = source;
                let at = snapshots.partition_point(|seq| *seq < version.seq);
                let is_shown = snapshots.get(at).is_some_and(|seq| *seq < hidden_from);
                if is_shown && (number > 0 || version.kind == VersionKind::Merge) {
                    each(version);
                }
                if version.kind != VersionKind::Merge {
                    hidden_from = hidden_from.min(version.seq);
                }
            }
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

/// What the versions of one key that a reader sees say, and the source of the oldest that this depends on.
fn part<'s, 'a: 's>(
    key: &[u8],
    sources: impl Iterator<Item = (usize, &'s VersionSource<'a>)>,
    (first_past, seen): (usize, &[(Option<Seq>, Seq)]),
    findings: &Findings,
) -> (Option<KeyPart>, usize) {
    let sources: Vec<(usize, &VersionSource<'_>)> = sources.collect();
    let of_past = sources.partition_point(|(number, _)| *number < first_past);
    let (present, past) = sources.split_at(of_past);
    let in_range = |version: &KeyVersion<'_>, (after, upto): (Option<Seq>, Seq)| {
        version.seq <= upto && after.is_none_or(|after| version.seq > after)
    };
    let mut operands: Vec<&[u8]> = Vec::new();
    let mut base = None;
    let mut take = |version: KeyVersion<'s>, number: usize| {
        match version.kind {
            VersionKind::Put => base = Some((FoldBase::Value(version.value), number)),
            VersionKind::Delete => base = Some((FoldBase::Absent, number)),
            VersionKind::Merge => operands.push(version.value),
        }
        base.is_some()
    };
    let mut has_base = present.iter().any(|(number, source)| {
        let mut shown =
            source.versions().filter(|version| seen.iter().any(|range| in_range(version, *range)));
        shown.any(|version| take(version, *number))
    });
    let mut ended_at = None;
    for range in seen {
        if has_base {
            break;
        }
        let (mut ended, mut in_past) = (None, false);
        for (number, source) in past {
            let mut shown = source.versions().filter(|version| in_range(version, *range)).peekable();
            if shown.peek().is_some_and(|version| version.kind == VersionKind::Delete) {
                // The run has nothing for these seqs. Another one may have the version of that time.
                ended = Some(*number);
                continue;
            }
            in_past |= shown.peek().is_some();
            has_base = has_base || shown.any(|version| take(version, *number));
        }
        if !has_base && !in_past && ended.is_some() {
            (has_base, ended_at) = (true, ended);
        }
    }
    base = base.or(ended_at.map(|number| (FoldBase::Absent, number)));
    let (base, number) = base.unwrap_or((FoldBase::Unknown, usize::MAX));
    operands.reverse();
    let mut out = Vec::new();
    let part = match (base, operands.as_slice()) {
        (FoldBase::Value(value), []) => Some(KeyPart::Value(value.to_vec())),
        (FoldBase::Absent, []) => Some(KeyPart::Deleted),
        (FoldBase::Unknown, []) => None,
        (FoldBase::Unknown, [only]) => Some(KeyPart::Operand(only.to_vec())),
        (base, operands) => match fold(key, base, operands, &mut out) {
            Ok(FoldOutcome::Value) => Some(KeyPart::Value(out)),
            Ok(FoldOutcome::Deleted) => Some(KeyPart::Deleted),
            Ok(FoldOutcome::Operand) => Some(KeyPart::Operand(out)),
            Err(e) => {
                findings.error(FindingCode::Value, show(key), e);
                Some(KeyPart::Unreadable)
            }
        },
    };
    (part, number)
}

/// What a rollback shows of a key of the first volume, which has no origin. A value is in `out`.
fn shown_again((part, number): (Option<KeyPart>, usize), key: &[u8], out: &mut Vec<u8>) -> Merged {
    match part {
        None | Some(KeyPart::Deleted) => Merged::Absent,
        Some(KeyPart::Unreadable) => Merged::Unreadable,
        Some(KeyPart::Value(value)) => {
            *out = value;
            Merged::Value { base: number }
        }
        Some(KeyPart::Operand(operand)) => match fold(key, FoldBase::Absent, &[&operand], out) {
            Ok(FoldOutcome::Value) => Merged::Value { base: usize::MAX },
            Ok(FoldOutcome::Deleted | FoldOutcome::Operand) => Merged::Absent,
            Err(error) => Merged::Unfolded(error),
        },
    }
}

/// The value of one key.
enum Merged {
    /// It has none.
    Absent,
    /// Its value is in the buffer. The oldest version that it depends on is in source `base`.
    Value { base: usize },
    /// It cannot be computed, because its versions do not fold.
    Unfolded(Corrupt),
    /// It cannot be computed. The reason is reported already.
    Unreadable,
}

/// Computes the value of one key into `out`. Returns the number of versions too.
fn visit<'s, 'a: 's>(
    key: &[u8],
    sources: impl Iterator<Item = (usize, &'s VersionSource<'a>)>,
    first_past: usize,
    out: &mut Vec<u8>,
    findings: &Findings,
) -> (Merged, u64) {
    let mut operands: Vec<&[u8]> = Vec::new();
    let mut base = None;
    let (mut seen, mut oldest, mut last) = (0, Seq::MAX, 0);
    // All versions are read, also those older than the base, because their order is checked.
    let versions = sources
        .enumerate()
        .flat_map(|(place, (number, source))| source.versions().map(move |version| (place, number, version)));
    for (place, number, version) in versions {
        seen += 1;
        if place > 0 && version.seq > oldest {
            let message =
                format_args!("an older run holds commit {}, a newer one {}", version.seq.0, oldest.0);
            findings.error(FindingCode::RunOrder, show(key), message);
        }
        if number >= first_past {
            // The newest value does not depend on it.
            if number != last && version.kind != VersionKind::Delete {
                let message = "its newest version in a run of the past is no delete";
                findings.error(FindingCode::PastSpan, show(key), message);
            }
            last = number;
            continue;
        }
        if version.seq != Seq(0) {
            oldest = oldest.min(version.seq);
        }
        if base.is_none() {
            match version.kind {
                VersionKind::Put => base = Some((FoldBase::Value(version.value), number)),
                VersionKind::Delete => base = Some((FoldBase::Absent, number)),
                VersionKind::Merge => operands.push(version.value),
            }
        }
    }
    // Without a base the value depends on every source.
    let (base, number) = base.unwrap_or((FoldBase::Absent, usize::MAX));
    operands.reverse();
    let merged = match (base, operands.is_empty()) {
        (FoldBase::Value(value), true) => {
            out.clear();
            out.extend_from_slice(value);
            Merged::Value { base: number }
        }
        (_, true) => Merged::Absent,
        (base, false) => match fold(key, base, &operands, out) {
            Ok(FoldOutcome::Value) => Merged::Value { base: number },
            // Only an unknown base leaves an operand.
            Ok(FoldOutcome::Deleted | FoldOutcome::Operand) => Merged::Absent,
            Err(e) => Merged::Unfolded(e),
        },
    };
    (merged, seen)
}
