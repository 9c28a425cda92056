//! The bytes that snapshots alone need, by the plainest means: each key is read at each seq at which anybody
//! reads it.

use warpfire_units::{Seq, SlicePtr};

use super::{DomainReaders, NeededPiece, SnapshotBytes, merged};
use crate::domain::OriginTable;
use crate::schema::Schema;
use crate::store::{MetaError, Store};

/// As `SnapshotStore::snapshot_bytes`, of a store with these keys. `visible` has the seqs of its readers.
pub(crate) fn naive_bytes<S: Schema>(
    store: &impl Store,
    schema: &S,
    keys: Vec<Vec<u8>>,
    snapshots: &[Seq],
    domains: &OriginTable,
    visible: &[Seq],
) -> Result<SnapshotBytes, MetaError> {
    let mut readers = DomainReaders::new(snapshots, visible);
    let (mut pieces, mut value) = (Vec::new(), Vec::new());
    for key in keys {
        readers.change_to(&key, domains, visible);
        let removed_at = domains.removed_at(&key).unwrap_or(Seq::MAX);
        for (place, at) in readers.seqs.iter().enumerate().filter(|(_, at)| **at <= removed_at) {
            if store.get(&key, *at, &mut value)? {
                let needers = readers.needers(place..place + 1);
                let mut add = |slice: SlicePtr| pieces.push(NeededPiece::new(slice, needers));
                schema.pointers(&key, &value, false, &mut add)?;
            }
        }
    }
    let mut bytes = SnapshotBytes::default();
    bytes.add(&merged(pieces));
    Ok(bytes)
}
