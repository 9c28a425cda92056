//! Rebuilding blocks of one stripe from its other columns, row by row: each row needs any k sound blocks, and
//! different rows may find them on different columns.

use std::ops::Range;

use warpfire_env::AlignedBuf;
use warpfire_units::BLOCK_BYTES;

use crate::error::PoolError;
use crate::pool::Inner;
use crate::read::read_stripe::Shard;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Rows of the columns that were asked for, whole again.
pub(crate) struct ReconstructedBlocks {
    rows: Range<u16>,
    columns: Vec<(usize, AlignedBuf)>,
}

impl ReconstructedBlocks {
    /// One block.
    pub(crate) fn block(&self, column: usize, row: u16) -> &[u8] {
        let (_, blocks) = self.columns.iter().find(|(c, _)| *c == column).expect("a column asked for");
        let at = usize::from(row - self.rows.start) * BLOCK_BYTES;
        &blocks[at..at + BLOCK_BYTES]
    }
}

impl Inner {
    /// Rebuilds `rows` of the `lost` columns of a bulk stripe. Reads k other columns, and only if they do not suffice
    /// the rest, the lost ones among them: what could not be read or verified before may be sound now or elsewhere.
    /// Without parity that second read is all there is.
    ///
    /// # Errors
    /// `Unreadable` if some row has fewer than k sound blocks.
    pub(crate) fn reconstruct(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        lost: &[usize],
        rows: Range<u16>,
    ) -> Result<ReconstructedBlocks, PoolError> {
        let reachable = |c: &usize| self.devices.state(segment.columns[*c].0).is_readable();
        let (mut first, mut second): (Vec<usize>, Vec<usize>) =
            (0..segment.width()).partition(|c| !lost.contains(c) && reachable(c));
        if segment.parity == 0 {
            first.clear();
            second = lost.to_vec();
        } else {
            second.extend(first.drain(segment.needed().min(first.len())..));
        }
        let mut shards = self.read_columns(segment, place, &first, rows.clone());
        let enough = |shards: &[Shard]| rows.clone().all(|r| sound_count(shards, r) >= segment.needed());
        if !enough(&shards) {
            shards.extend(self.read_columns(segment, place, &second, rows.clone()));
        }
        let blank = |c: &usize| (*c, AlignedBuf::zeroed(rows.len() * BLOCK_BYTES));
        let mut reconstructed =
            ReconstructedBlocks { rows: rows.clone(), columns: lost.iter().map(blank).collect() };
        let mut start = rows.start;
        while start < rows.end {
            let pattern = soundness(&shards, start);
            let same = (start..rows.end).take_while(|r| soundness(&shards, *r) == pattern).count();
            let end = start + u16::try_from(same).expect("fewer rows than a stripe has");
            solve(segment, place, &shards, start..end, &mut reconstructed)?;
            start = end;
        }
        Ok(reconstructed)
    }
}

fn sound_count(shards: &[Shard], row: u16) -> usize {
    shards.iter().filter(|s| s.is_sound(row)).count()
}

fn soundness(shards: &[Shard], row: u16) -> Vec<bool> {
    shards.iter().map(|s| s.is_sound(row)).collect()
}

/// Fills rows in which the same shards are sound.
fn solve(
    segment: &PoolSegment,
    place: &StripePlace,
    shards: &[Shard],
    rows: Range<u16>,
    reconstructed: &mut ReconstructedBlocks,
) -> Result<(), PoolError> {
    let sound: Vec<&Shard> = shards.iter().filter(|s| s.is_sound(rows.start)).collect();
    let at = usize::from(rows.start - reconstructed.rows.start) * BLOCK_BYTES;
    let target = at..at + rows.len() * BLOCK_BYTES;
    let mut wanted: Vec<(usize, &mut [u8])> = Vec::new();
    for (column, blocks) in &mut reconstructed.columns {
        let blocks = &mut blocks[target.clone()];
        match sound.iter().find(|s| s.column == *column) {
            Some(shard) => blocks.copy_from_slice(shard.rows(rows.clone())),
            None => wanted.push((*column, blocks)),
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let present: Vec<(usize, &[u8])> = sound.iter().map(|s| (s.column, s.rows(rows.clone()))).collect();
    segment.code.reconstruct(&present, &mut wanted).map_err(|_| PoolError::Unreadable {
        segment: segment.id,
        stripe: place.stripe,
        readable: present.len(),
        needed: segment.needed(),
    })
}
