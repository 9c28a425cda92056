//! The keys that a clone shows: its own, and those of its origin at a seq where it has no put or delete.
//!
//! Own versions and those of the origin are merged key by key, both in order. The origin may be a clone too.
//! A reader at or after the release of an origin sees nothing of it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use warpfire_format::fs::{DoorVolume, FoldBase, FoldOutcome, KeyKind, VolumeId, fold};
use warpfire_units::Seq;

use super::commits::CommitVersions;
use super::manifest::Manifest;
use super::merge::{KeyPart, Merge};
use super::verify::show;
use crate::code::FindingCode;
use crate::media::SliceReader;
use crate::report::Findings;

/// Bytes of the volume in front of a key.
const VOLUME_BYTES: usize = 4;

/// Most origins below a clone.
const ORIGINS_MAX: usize = 8;

/// The volumes behind doors, by number.
pub(crate) type DoorVolumes = BTreeMap<VolumeId, DoorVolume>;

/// A key that a volume shows.
pub(crate) struct ShownKey {
    /// The key in the volume.
    pub(crate) key: Vec<u8>,
    /// `None` if it cannot be computed.
    pub(crate) value: Option<Vec<u8>>,
    /// Whether the volume itself has a version of it.
    pub(crate) is_own: bool,
}

/// A key without its volume, with what the volume's own versions say.
type Front = Option<(Vec<u8>, KeyPart)>;

/// A walk over the keys that a volume shows.
pub(crate) struct ShownKeys<'a> {
    own: Merge<'a>,
    volume: VolumeId,
    at: Seq,
    front: Front,
    below: Option<Box<ShownKeys<'a>>>,
    below_front: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Whether a read of this key goes on in the origin.
fn reads_on(rest: &[u8]) -> bool {
    let own = [KeyKind::Pool, KeyKind::Counter, KeyKind::Orphan];
    rest.first().is_some_and(|kind| own.iter().all(|of| *of as u8 != *kind))
}

impl<'a> ShownKeys<'a> {
    /// A walk over the keys of a volume at a seq. `None` if its origins are too deep.
    pub(crate) fn new(
        manifest: &'a Manifest,
        commits: &'a [Vec<u8>],
        volumes: &DoorVolumes,
        (volume, at): (VolumeId, Seq),
        reader: &mut SliceReader<'_>,
    ) -> Option<ShownKeys<'a>> {
        Self::at_depth(manifest, commits, volumes, (volume, at), 0, reader)
    }

    fn at_depth(
        manifest: &'a Manifest,
        commits: &'a [Vec<u8>],
        volumes: &DoorVolumes,
        (volume, at): (VolumeId, Seq),
        depth: usize,
        reader: &mut SliceReader<'_>,
    ) -> Option<ShownKeys<'a>> {
        if depth > ORIGINS_MAX {
            return None;
        }
        let quiet = Findings::default();
        let versions = CommitVersions::starting_at(commits, manifest.flushed, &volume.0.to_be_bytes());
        let own = Merge::new(manifest, versions, &volume.0.to_be_bytes(), false, reader, &quiet);
        let origin = volumes.get(&volume).and_then(|record| record.origin);
        let below = match origin.filter(|origin| origin.is_read_at(at)) {
            Some(origin) => {
                let origin_at = (origin.volume, origin.seq.min(at));
                let view = Self::at_depth(manifest, commits, volumes, origin_at, depth + 1, reader)?;
                Some(Box::new(view))
            }
            None => None,
        };
        let mut shown = ShownKeys { own, volume, at, front: None, below, below_front: None };
        shown.advance_own(reader, &quiet);
        shown.advance_below(reader, &quiet);
        Some(shown)
    }

    /// Whether part of a table could not be read.
    pub(crate) fn has_holes(&self) -> bool {
        self.own.has_holes() || self.below.as_ref().is_some_and(|below| below.has_holes())
    }

    fn advance_own(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) {
        let domain = self.volume.0.to_be_bytes();
        self.front = loop {
            match self.own.next_part(self.at, reader, findings) {
                // A walk begins with the block that has its first key.
                Some((key, _)) if key[..] < domain[..] => {}
                Some((key, part)) if key.starts_with(&domain) => {
                    if let Some(part) = part {
                        break Some((key.get(VOLUME_BYTES..).unwrap_or_default().to_vec(), part));
                    }
                }
                _ => break None,
            }
        };
    }

    fn advance_below(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) {
        self.below_front = loop {
            let Some(shown) = self.below.as_mut().and_then(|below| below.next(reader, findings)) else {
                break None;
            };
            let rest = shown.key.get(VOLUME_BYTES..).unwrap_or_default().to_vec();
            if reads_on(&rest) {
                break Some((rest, shown.value));
            }
        };
    }

    /// The next key with a value.
    pub(crate) fn next(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) -> Option<ShownKey> {
        loop {
            let order = match (&self.front, &self.below_front) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((own, _)), Some((below, _))) => own.cmp(below),
            };
            let mut base = None;
            if order != Ordering::Less {
                base = self.below_front.take();
                self.advance_below(reader, findings);
            }
            if order == Ordering::Greater {
                let (rest, value) = base?;
                return Some(ShownKey { key: self.key(&rest), value, is_own: false });
            }
            let (rest, part) = self.front.take()?;
            self.advance_own(reader, findings);
            let key = self.key(&rest);
            let value = match part {
                KeyPart::Deleted => continue,
                KeyPart::Unreadable => None,
                KeyPart::Value(value) => Some(value),
                KeyPart::Operand(operand) => match base {
                    Some((_, None)) => None,
                    base => {
                        let base = base.and_then(|(_, value)| value);
                        let base = base.as_deref().map_or(FoldBase::Absent, FoldBase::Value);
                        let mut folded = Vec::new();
                        match fold(&key, base, &[&operand], &mut folded) {
                            Ok(FoldOutcome::Value) => Some(folded),
                            Ok(FoldOutcome::Deleted) => continue,
                            Ok(FoldOutcome::Operand) => None,
                            Err(e) => {
                                findings.error(FindingCode::Value, show(&key), e);
                                None
                            }
                        }
                    }
                },
            };
            return Some(ShownKey { key, value, is_own: true });
        }
    }

    fn key(&self, rest: &[u8]) -> Vec<u8> {
        [&self.volume.0.to_be_bytes(), rest].concat()
    }
}
