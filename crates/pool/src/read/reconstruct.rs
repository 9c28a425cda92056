//! Reconstruction: computing the lost blocks of one stripe from its other columns.
//!
//! A block is *sound* if it was read and verified. Each row needs any k sound blocks. Rows are solved
//! independently, because different rows may have their sound blocks on different columns (test
//! `rot_in_different_rows_of_more_columns_than_parity_is_still_reconstructed`). A row that is not wanted may
//! be lost (test `a_row_beyond_parity_between_rows_that_are_read_does_not_fail_the_read`).

use std::ops::Range;

use warpfire_env::AlignedBuf;
use warpfire_units::BLOCK_BYTES;

use crate::error::PoolError;
use crate::pool::Inner;
use crate::read::read_stripe::{ColumnWait, Shard};
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// The reconstructed rows of the lost columns.
pub(crate) struct ReconstructedBlocks {
    /// Ascending. Each column has memory from the first to the last of them.
    rows: Vec<u16>,
    columns: Vec<(usize, AlignedBuf)>,
}

impl ReconstructedBlocks {
    /// The block of a lost column in one row.
    ///
    /// # Panics
    /// If the column or the row was not reconstructed.
    pub(crate) fn block(&self, column: usize, row: u16) -> &[u8] {
        assert!(self.rows.binary_search(&row).is_ok(), "only reconstructed rows are used");
        let (_, blocks) =
            self.columns.iter().find(|(c, _)| *c == column).expect("only reconstructed columns are used");
        let at = usize::from(row - self.rows[0]) * BLOCK_BYTES;
        &blocks[at..at + BLOCK_BYTES]
    }
}

impl Inner {
    /// Reconstructs `rows`, which ascend, of the `lost` columns. Reads k other columns on sound devices
    /// first, from the first to the last of the rows. If some of the rows then has fewer than k sound blocks,
    /// reads all remaining columns too, the lost ones included: a failed read may succeed the second time,
    /// and a lost column is rarely lost in every row. Without parity, the second read of the lost columns is
    /// the only way. Columns on devices that do not answer come last, where nothing else suffices; the call
    /// then waits for them.
    ///
    /// # Errors
    /// `Unreadable` if some of the rows has fewer than k sound blocks.
    ///
    /// # Panics
    /// If `lost` is empty or `rows` do not ascend in the stripe.
    pub(crate) fn reconstruct(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        lost: &[usize],
        rows: Vec<u16>,
    ) -> Result<ReconstructedBlocks, PoolError> {
        assert!(!lost.is_empty() && rows.is_sorted(), "rows of lost columns are reconstructed");
        let span = rows.first().map_or(0..0, |first| *first..rows[rows.len() - 1] + 1);
        assert!(span.end <= place.rows, "lost rows of one stripe are reconstructed");
        let device = |c: &usize| segment.columns[*c].0;
        let sound = |c: &usize| self.devices.writable(device(c)) && self.devices.answers(device(c));
        let late_before: Vec<u64> =
            segment.columns.iter().map(|(device, _)| self.devices.late_count(*device)).collect();
        let (mut first, mut second): (Vec<usize>, Vec<usize>) =
            (0..segment.width()).partition(|c| !lost.contains(c) && sound(c));
        // `first` is cut to k columns: reading more costs device time and helps only if one of these k is
        // damaged too. Without parity no other column can help, so only the lost ones are read again.
        if segment.parity == 0 {
            first.clear();
            second = lost.to_vec();
        } else {
            second.extend(first.drain(segment.needed().min(first.len())..));
        }
        let enough_with = |shards: &[Shard], more: usize| {
            rows.iter().all(|r| sound_count(shards, *r) + more >= segment.needed())
        };
        let wait = if segment.parity == 0 { ColumnWait::Patient } else { ColumnWait::Limited };
        let mut shards = self.read_columns(segment, place, &first, span.clone(), wait);
        if !enough_with(&shards, 0) {
            shards.extend(self.read_columns(segment, place, &second, span.clone(), wait));
        }
        if !enough_with(&shards, 0) && wait == ColumnWait::Limited {
            let mut silent: Vec<usize> = (0..segment.width()).collect();
            silent.retain(|c| {
                let was_late = self.devices.late_count(device(c)) > late_before[*c];
                (was_late || !self.devices.answers(device(c))) && shards.iter().all(|s| s.column != *c)
            });
            // Otherwise the rest is lost, and waiting would not help.
            if !silent.is_empty() && enough_with(&shards, silent.len()) {
                let devices: Vec<u16> = silent.iter().map(|c| device(c).0).collect();
                tracing::warn!(
                    name: "read_waits_for_device",
                    segment = segment.id.get(),
                    devices = ?devices,
                    "too few other columns can be read; a read waits for devices that do not answer"
                );
                shards.extend(self.read_columns(segment, place, &silent, span.clone(), ColumnWait::Patient));
            }
        }
        let blank = |c: &usize| (*c, AlignedBuf::zeroed(span.len() * BLOCK_BYTES));
        let mut reconstructed =
            ReconstructedBlocks { rows: rows.clone(), columns: lost.iter().map(blank).collect() };
        // Consecutive rows with the same sound columns share one solution and one pass of the erasure code.
        let mut rest = &rows[..];
        while let Some(&start) = rest.first() {
            let pattern = soundness(&shards, start);
            let is_same = |(r, wanted): &(u16, &u16)| r == *wanted && soundness(&shards, *r) == pattern;
            let same = (start..).zip(rest).take_while(is_same).count();
            assert!(same > 0, "a row has the same sound columns as itself");
            let end = start + u16::try_from(same).expect("no more rows than a stripe has");
            solve(segment, place, &shards, start..end, &mut reconstructed)?;
            rest = &rest[same..];
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

/// Fills `rows` of the lost columns. The same shards are sound in all of these rows.
fn solve(
    segment: &PoolSegment,
    place: &StripePlace,
    shards: &[Shard],
    rows: Range<u16>,
    reconstructed: &mut ReconstructedBlocks,
) -> Result<(), PoolError> {
    let sound: Vec<&Shard> = shards.iter().filter(|s| s.is_sound(rows.start)).collect();
    let at = usize::from(rows.start - reconstructed.rows[0]) * BLOCK_BYTES;
    let target = at..at + rows.len() * BLOCK_BYTES;
    let mut wanted: Vec<(usize, &mut [u8])> = Vec::new();
    for (column, blocks) in &mut reconstructed.columns {
        let blocks = &mut blocks[target.clone()];
        // The second read may have found the lost column sound in these rows: then a copy is enough.
        match sound.iter().find(|s| s.column == *column) {
            Some(shard) => blocks.copy_from_slice(shard.rows(rows.clone())),
            None => wanted.push((*column, blocks)),
        }
    }
    debug_assert!(wanted.iter().all(|(c, _)| sound.iter().all(|s| s.column != *c)), "wanted is not sound");
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
