//! Reading slices. Each block is verified, and reconstructed from parity if it is bad.

use std::collections::BTreeMap;

use warpfire_env::AlignedBuf;
use warpfire_erasure::scalar;
use warpfire_format::crc32c;
use warpfire_format::stripe::StripeHeader;
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use super::device::Media;
use super::distinct::DistinctBytes;
use super::segment::{CheckedSegment, StripePosition};
use super::stripe::identity_of;

/// Most cached lists of checksums. A list takes 1 KiB at most, so all take 4 MiB.
const TABLES_MAX: usize = 4096;

/// Reads slices. It caches the checksums in the headers of the shards that it reads.
pub(crate) struct SliceReader<'a> {
    media: &'a Media,
    segments: &'a BTreeMap<SegmentId, CheckedSegment>,
    /// Checksums of rows, by segment, stripe and column. `None` if the header does not verify.
    tables: BTreeMap<(SegmentId, u32, u16), Option<Vec<u32>>>,
    /// Bytes that tables and values name, by segment.
    live: BTreeMap<SegmentId, u64>,
    /// The same bytes, each once, if somebody asks for them.
    distinct: Option<DistinctBytes>,
}

impl<'a> SliceReader<'a> {
    pub(crate) fn new(media: &'a Media, segments: &'a BTreeMap<SegmentId, CheckedSegment>) -> Self {
        SliceReader { media, segments, tables: BTreeMap::new(), live: BTreeMap::new(), distinct: None }
    }

    /// The reader, counting also the bytes that are named each once.
    pub(crate) fn counting_distinct(mut self, counts: bool) -> Self {
        self.distinct = counts.then(DistinctBytes::default);
        self
    }

    /// Adds the bytes of one name, for `distinct_bytes`.
    pub(crate) fn count_name(&mut self, slice: SlicePtr) {
        if let Some(distinct) = &mut self.distinct {
            distinct.add(slice);
        }
    }

    /// Whether somebody asks for the bytes that are named, each once.
    pub(crate) fn counts_distinct(&self) -> bool {
        self.distinct.is_some()
    }

    /// All bytes of live segments that are named, each once.
    pub(crate) fn distinct_bytes(&self) -> u64 {
        let bytes = |(id, bytes): (SegmentId, u64)| {
            self.segments.get(&id).map(|segment| bytes.min(segment.descriptor.payload_bytes()))
        };
        self.distinct.iter().flat_map(DistinctBytes::by_segment).filter_map(bytes).sum()
    }

    /// Whether a slice lies in the payload of a live segment.
    pub(crate) fn holds(&self, slice: SlicePtr) -> bool {
        let segment = self.segments.get(&slice.segment);
        segment.is_some_and(|s| s.holds(slice.offset_bytes, u64::from(slice.len_bytes)))
    }

    /// Adds named bytes.
    pub(crate) fn count(&mut self, references: &BTreeMap<SegmentId, u64>) {
        for (segment, bytes) in references {
            *self.live.entry(*segment).or_default() += bytes;
        }
    }

    /// All named bytes, by segment.
    pub(crate) fn live(&self) -> &BTreeMap<SegmentId, u64> {
        &self.live
    }

    /// Appends the bytes of a slice to `out`. The error names the fault in words.
    pub(crate) fn read(&mut self, slice: SlicePtr, out: &mut Vec<u8>) -> Result<(), String> {
        let segments = self.segments;
        let segment = segments.get(&slice.segment).ok_or_else(|| format!("{slice}: no such segment"))?;
        let block = BLOCK_BYTES as u64;
        let mut at = slice.offset_bytes;
        let end = slice
            .offset_bytes
            .checked_add(u64::from(slice.len_bytes))
            .ok_or_else(|| format!("{slice}: its end is past every segment"))?;
        // Each turn reads the part of the slice on one column of one stripe.
        while at < end {
            let row_bytes = u64::from(segment.descriptor.data) * block;
            let place =
                segment.stripe_of_row(at / row_bytes).ok_or_else(|| format!("{slice}: not written"))?;
            let within = at - place.first_row * row_bytes;
            let column_bytes = u64::from(place.rows) * block;
            let (column, from) = (within / column_bytes, within % column_bytes);
            let to = column_bytes.min(from + (end - at));
            let rows = (from / block, to.div_ceil(block));
            let column = u16::try_from(column).map_err(|_| format!("{slice}: not written"))?;
            let bytes = self
                .read_rows(segment, place, column, rows)
                .ok_or_else(|| format!("{slice}: {} stripe {} is lost", slice.segment, place.stripe))?;
            let skip = usize::try_from(from - rows.0 * block).expect("less than a block");
            let len = usize::try_from(to - from).expect("at most a column");
            out.extend_from_slice(bytes.get(skip..skip + len).expect("whole rows were read"));
            at += to - from;
        }
        Ok(())
    }

    /// Rows `rows.0..rows.1` of one column of a stripe.
    fn read_rows(
        &mut self,
        segment: &CheckedSegment,
        place: StripePosition,
        column: u16,
        rows: (u64, u64),
    ) -> Option<AlignedBuf> {
        let len = usize::try_from(rows.1 - rows.0).ok()? * BLOCK_BYTES;
        let mut buf = AlignedBuf::zeroed(len);
        let &(device, zone) = segment.descriptor.columns.get(usize::from(column))?;
        let read = self.media.read_one(device, zone, place.block + 1 + rows.0, &mut buf);
        let crcs = self.crcs(segment, place, column).cloned();
        for (row, bytes) in (rows.0..rows.1).zip(buf.chunks_exact_mut(BLOCK_BYTES)) {
            let row = usize::try_from(row).ok()?;
            let good = read && crcs.as_ref().and_then(|c| c.get(row)) == Some(&crc32c(bytes));
            if !good {
                bytes.copy_from_slice(&self.reconstruct(segment, place, column, row)?);
            }
        }
        Some(buf)
    }

    /// The checksums of one shard's rows. `None` if its header does not verify.
    fn crcs(&mut self, segment: &CheckedSegment, place: StripePosition, column: u16) -> Option<&Vec<u32>> {
        let d = &segment.descriptor;
        let key = (d.id, place.stripe, column);
        if self.tables.len() >= TABLES_MAX && !self.tables.contains_key(&key) {
            self.tables.clear();
        }
        let media = self.media;
        let read = || {
            let &(device, zone) = d.columns.get(usize::from(column))?;
            let mut head = AlignedBuf::zeroed(BLOCK_BYTES);
            if !media.read_one(device, zone, place.block, &mut head) {
                return None;
            }
            let block = StripeHeader::decode(&head).ok()?;
            let expected = identity_of(media, d, place.stripe, column);
            let right = block.header.identity == expected && block.header.rows == place.rows;
            right.then(|| block.crcs().collect())
        };
        self.tables.entry(key).or_insert_with(read).as_ref()
    }

    /// Computes one block from blocks of other columns in the same row. `None` if fewer than k of them are
    /// good.
    fn reconstruct(
        &mut self,
        segment: &CheckedSegment,
        place: StripePosition,
        column: u16,
        row: usize,
    ) -> Option<Vec<u8>> {
        // The plain oracle computes it, not the fast code of the engine: the check must not share its faults.
        let data = usize::from(segment.descriptor.data);
        let mut good: Vec<(usize, AlignedBuf)> = Vec::with_capacity(data);
        for (number, &(device, zone)) in (0u16..).zip(&segment.descriptor.columns) {
            if number == column || good.len() == data {
                continue;
            }
            let crc = self.crcs(segment, place, number).and_then(|c| c.get(row)).copied();
            let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
            let read = self.media.read_one(device, zone, place.block + 1 + row as u64, &mut buf);
            if read && crc == Some(crc32c(&buf)) {
                good.push((usize::from(number), buf));
            }
        }
        let present: Vec<(usize, &[u8])> = good.iter().map(|(n, b)| (*n, &**b)).collect();
        let mut recovered = scalar::recover_data(data, &present)?;
        (usize::from(column) < recovered.len()).then(|| recovered.swap_remove(usize::from(column)))
    }
}
