//! Rollbacks: what their records hide from readers of a volume.

use std::collections::BTreeMap;

use warpfire_format::fs::{Key, KeyKind, RolledBack, VolumeId, rollback_range};
use warpfire_units::Seq;

use super::commits::CommitVersions;
use super::merge::{Merge, Value};
use crate::load::LoadedPool;
use crate::media::SliceReader;
use crate::report::Findings;

/// The seqs that a reader sees, from the newest to the oldest: after the first of each pair, if there is one,
/// and up to the second.
pub(crate) type SeenSeqs = Vec<(Option<Seq>, Seq)>;

/// The rollbacks of each volume, by rising seq.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollbacks(BTreeMap<VolumeId, Vec<(Seq, RolledBack)>>);

impl Rollbacks {
    /// Reads the records. Those that cannot be read are findings of the check of names.
    pub(crate) fn read(loaded: &LoadedPool) -> Rollbacks {
        let (mut rollbacks, quiet) = (Rollbacks::default(), Findings::default());
        let mut reader = SliceReader::new(&loaded.media, &loaded.segments);
        let (from, end) = rollback_range();
        let commits = CommitVersions::new(&loaded.commits, loaded.manifest.flushed, &quiet);
        let mut merge = Merge::new(&loaded.manifest, commits, &from, false, &mut reader, &quiet);
        merge.for_each(&mut reader, &quiet, |key, value| {
            if let (Ok(Key::Rollback(at, volume)), Value::Present(value)) = (Key::decode(key), value)
                && let Ok(record) = RolledBack::decode(at, value)
            {
                rollbacks.0.entry(volume).or_default().push((at, record));
            }
            key < &end[..]
        });
        rollbacks
    }

    /// The seqs that are held for rollbacks.
    pub(crate) fn held(&self) -> impl Iterator<Item = Seq> + '_ {
        self.0.values().flatten().map(|(_, record)| record.to)
    }

    /// What a reader of a key at a seq sees; `None`: everything up to that seq.
    pub(crate) fn seen(&self, key: &[u8], mut at: Seq) -> Option<SeenSeqs> {
        let (volume, rest) = key.split_first_chunk::<4>()?;
        let of_tree = KeyKind::Counter as u8..=KeyKind::Region as u8;
        rest.first().filter(|kind| of_tree.contains(kind))?;
        let of_volume = self.0.get(&VolumeId(u32::from_be_bytes(*volume)))?;
        let mut seen = SeenSeqs::new();
        for (made_at, record) in of_volume.iter().rev() {
            if *made_at < at && record.ended_at.is_none_or(|ended| at < ended) {
                seen.push((Some(*made_at), at));
                at = record.to;
            }
        }
        seen.push((None, at));
        (seen.len() > 1).then_some(seen)
    }
}
