//! The buffer of one stripe: its memory has the layout that the stripe has on the devices, so a write copies
//! nothing.
//!
//! A *region* is the memory of one shard: a header block and `full_rows` blocks.
//!
//! # Invariants
//! 1. A bulk buffer has one region for each of the k+m columns. A mirror buffer has one region, from which
//!    all copies are written; the first payload bytes are at the end of its header block.
//! 2. The payload is spread over the first `rows` blocks of each data region. `rows` is `full_rows` while the
//!    payload grows; `close` lowers it if the payload is short (assert in `close`).
//! 3. `len` never exceeds the capacity (assert in `append`).
//! 4. After `close`, all bytes after the payload, up to the last row of the last data region, are zero, so
//!    the parity and the checksums of a stripe depend on its payload alone (`zero_tail`).
//!
//! ```text
//!   empty ──append, pad_to_block──▶ growing ──close──▶ closed ──reshape──▶ empty
//! ```

use warpfire_env::{AlignedBuf, LendableBytes, PlantedBug, is_planted};
use warpfire_erasure::Code;
use warpfire_format::crc32c;
use warpfire_format::segment::SegmentKind;
use warpfire_format::stripe::{StripeHeader, StripeIdentity, inline_start, payload_capacity};
use warpfire_units::BLOCK_BYTES;

use crate::device::geometry::rows_needed;

/// Bytes in one tile of `checksum_and_encode`: few enough to stay in a core's own cache.
const TILE_BYTES: usize = 256 << 10;

/// The payload of one stripe, in memory that devices accept without a copy.
#[derive(Debug)]
pub struct StripeBuf {
    memory: AlignedBuf,
    kind: SegmentKind,
    data: usize,
    parity: usize,
    full_rows: u16,
    rows: u16,
    len: usize,
    closed: bool,
}

impl StripeBuf {
    pub(crate) fn new(kind: SegmentKind, data: u16, parity: u8, full_rows: u16) -> Self {
        let mut buf = StripeBuf {
            memory: AlignedBuf::zeroed(BLOCK_BYTES),
            kind,
            data: usize::from(data),
            parity: usize::from(parity),
            full_rows,
            rows: full_rows,
            len: 0,
            closed: false,
        };
        buf.reshape(kind, data, parity, full_rows);
        buf
    }

    /// A buffer that is laid out for no stripe yet: `SegmentWriter::begin` does that.
    #[must_use]
    pub fn without_stripe() -> Self {
        StripeBuf::new(SegmentKind::Mirror, 1, 0, 0)
    }

    /// Empties the buffer and lays it out for a stripe of up to `full_rows` rows.
    pub(crate) fn reshape(&mut self, kind: SegmentKind, data: u16, parity: u8, full_rows: u16) {
        assert!(kind == SegmentKind::Bulk || data == 1, "a mirror has one data column");
        self.kind = kind;
        self.data = usize::from(data);
        self.parity = usize::from(parity);
        self.full_rows = full_rows;
        self.rows = full_rows;
        self.len = 0;
        self.closed = false;
        let needed = self.stride() * self.regions();
        // Memory is kept between stripes and never shrinks; old bytes stay in it until `zero_tail`. A device
        // that did not answer in time may still take the last stripe from it: it is not changed then.
        if self.memory.len() < needed || self.memory.is_lent() {
            self.memory = AlignedBuf::lasting(needed.max(self.memory.len()));
        }
    }

    fn regions(&self) -> usize {
        match self.kind {
            SegmentKind::Bulk => self.data + self.parity,
            SegmentKind::Mirror => 1,
        }
    }

    /// Bytes from one region to the next.
    fn stride(&self) -> usize {
        (usize::from(self.full_rows) + 1) * BLOCK_BYTES
    }

    /// Payload bytes that were appended, padding included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Payload bytes that still fit; 0 once the stripe is closed.
    #[must_use]
    pub fn remaining(&self) -> usize {
        if self.closed { 0 } else { self.capacity() - self.len }
    }

    fn capacity(&self) -> usize {
        let data = u16::try_from(self.data).expect("k fits its field");
        payload_capacity(self.kind, data, self.full_rows)
    }

    /// Appends as much of `bytes` as fits. Returns the number of bytes that fitted.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.remaining());
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let (start, room) = self.locate(self.len);
            let n = rest.len().min(room);
            let (now, later) = rest.split_at(n);
            self.memory[start..start + n].copy_from_slice(now);
            self.len += n;
            rest = later;
        }
        debug_assert!(self.len <= self.capacity(), "the payload fits the stripe");
        debug_assert!(taken == bytes.len() || self.remaining() == 0, "less is taken only by a full stripe");
        taken
    }

    /// Appends zeroes up to the next block boundary of the payload, or to the end of the stripe.
    pub fn pad_to_block(&mut self) {
        let wanted = self.len.next_multiple_of(BLOCK_BYTES) - self.len;
        let zeroes = [0; BLOCK_BYTES];
        self.append(&zeroes[..wanted]);
    }

    /// Copies payload from byte `at` of the stripe to `out`.
    ///
    /// # Panics
    /// If the bytes were not appended.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len, "only appended bytes are read back");
        let mut done = 0;
        while done < out.len() {
            let (start, room) = self.locate(at + done);
            let n = room.min(out.len() - done);
            out[done..done + n].copy_from_slice(&self.memory[start..start + n]);
            done += n;
        }
    }

    /// The place of payload byte `at` in `memory`, and the number of payload bytes from there to the end of
    /// its column.
    fn locate(&self, at: usize) -> (usize, usize) {
        debug_assert!(at < self.capacity(), "the byte belongs to the stripe");
        match self.kind {
            SegmentKind::Bulk => {
                let column_bytes = usize::from(self.rows) * BLOCK_BYTES;
                let (column, within) = (at / column_bytes, at % column_bytes);
                (column * self.stride() + BLOCK_BYTES + within, column_bytes - within)
            }
            SegmentKind::Mirror => (inline_start(self.rows) + at, self.capacity() - at),
        }
    }

    /// Ends the stripe: spreads a short payload, zeroes the bytes after it, computes checksums and parity,
    /// and encodes the headers. Returns the number of rows, and the CRC table of each data column (of the one
    /// region of a mirror).
    ///
    /// # Panics
    /// If the buffer is empty or closed.
    pub(crate) fn close(
        &mut self,
        identity: StripeIdentity,
        sequence: u64,
        code: &Code,
    ) -> (u16, Vec<Vec<u32>>) {
        assert!(!self.closed && self.len > 0, "a stripe is closed once, with something in it");
        let rows = rows_needed(self.kind, identity.data, self.len);
        assert!(rows <= self.full_rows, "a stripe has no more rows than its buffer");
        // `spread` reads the old layout, so it runs before `rows` changes; `zero_tail` needs the new one.
        self.spread(rows);
        self.rows = rows;
        self.closed = true;
        self.zero_tail();
        let mut crcs = vec![Vec::with_capacity(usize::from(rows)); self.regions()];
        self.checksum_and_encode(code, &mut crcs);
        assert!(
            crcs.iter().all(|t| t.len() == usize::from(rows)),
            "each shard has one checksum for each row"
        );
        let payload_bytes = u32::try_from(self.len).expect("a stripe is far below 4 GiB");
        let stride = self.stride();
        // Headers come last: they contain the checksums of the rows.
        for (column, (region, table)) in (0u16..).zip(self.memory.chunks_mut(stride).zip(&crcs)) {
            let identity = StripeIdentity { column, ..identity };
            let header = StripeHeader { identity, sequence, rows, payload_bytes };
            header.encode(&mut region[..BLOCK_BYTES], table);
            debug_assert!(StripeHeader::decode(&region[..BLOCK_BYTES]).is_ok(), "a written header decodes");
        }
        crcs.truncate(self.data);
        (rows, crcs)
    }

    /// Moves the payload from the first `full_rows` blocks of each data region to the first `rows`.
    fn spread(&mut self, rows: u16) {
        if rows == self.rows {
            return;
        }
        match self.kind {
            SegmentKind::Mirror => {
                // A shorter CRC table leaves more room for payload in the header block: the payload moves
                // forward.
                let from = inline_start(self.rows);
                self.memory.copy_within(from..from + self.len, inline_start(rows));
            }
            SegmentKind::Bulk => {
                // Every block moves to the same or a later place, so the last block moves first. The first
                // `rows` blocks stay.
                for block in (usize::from(rows)..self.len.div_ceil(BLOCK_BYTES)).rev() {
                    let (from, _) = self.locate(block * BLOCK_BYTES);
                    let (column, row) = (block / usize::from(rows), block % usize::from(rows));
                    let to = column * self.stride() + (1 + row) * BLOCK_BYTES;
                    self.memory.copy_within(from..from + BLOCK_BYTES, to);
                }
            }
        }
    }

    /// Zeroes the bytes after the payload. They may come from an earlier stripe of this buffer, or from
    /// `spread`.
    fn zero_tail(&mut self) {
        match self.kind {
            SegmentKind::Mirror => {
                let start = inline_start(self.rows) + self.len;
                let end = (usize::from(self.rows) + 1) * BLOCK_BYTES;
                self.memory[start..end].fill(0);
            }
            SegmentKind::Bulk => {
                let end = self.data * usize::from(self.rows) * BLOCK_BYTES;
                let mut at = self.len;
                while at < end {
                    let (start, room) = self.locate(at);
                    self.memory[start..start + room].fill(0);
                    at += room;
                }
            }
        }
    }

    /// Computes all checksums and parity in one pass over the payload, a *tile* of rows at a time: the
    /// checksums bring the tile into the cache, and the parity reads it from there.
    fn checksum_and_encode(&mut self, code: &Code, crcs: &mut [Vec<u32>]) {
        debug_assert!(self.closed, "the payload has its final place");
        let stride = self.stride();
        let mut regions: Vec<&mut [u8]> = self.memory.chunks_exact_mut(stride).take(crcs.len()).collect();
        let data_columns = if self.kind == SegmentKind::Bulk { self.data } else { 1 };
        let tile_rows = (TILE_BYTES / BLOCK_BYTES / regions.len()).max(1);
        let rows = usize::from(self.rows);
        for first in (0..rows).step_by(tile_rows) {
            let end = (first + tile_rows).min(rows);
            let tile = (1 + first) * BLOCK_BYTES..(1 + end) * BLOCK_BYTES;
            let (data, parity) = regions.split_at_mut(data_columns);
            let (data_crcs, parity_crcs) = crcs.split_at_mut(data_columns);
            for (shard, table) in data.iter().zip(data_crcs) {
                table.extend(shard[tile.clone()].chunks_exact(BLOCK_BYTES).map(crc32c));
            }
            // A mirror has no parity of its own: its copies are one region.
            if parity.is_empty() {
                continue;
            }
            let sources: Vec<&[u8]> = data.iter().map(|shard| &shard[tile.clone()]).collect();
            let mut outputs: Vec<&mut [u8]> =
                parity.iter_mut().map(|shard| &mut shard[tile.clone()]).collect();
            if first == 0 || !is_planted(PlantedBug::ParityOfFirstTile) {
                code.encode(&sources, &mut outputs);
            }
            for (shard, table) in outputs.iter().zip(parity_crcs) {
                table.extend(shard.chunks_exact(BLOCK_BYTES).map(crc32c));
            }
        }
    }

    /// The bytes to write on one column, header and rows.
    ///
    /// # Panics
    /// If the stripe is not closed.
    pub(crate) fn shard(&self, column: usize) -> LendableBytes<'_> {
        assert!(self.closed, "only a closed stripe is written");
        assert!(column < self.data + self.parity, "a shard lies on a column of the stripe");
        let start = match self.kind {
            SegmentKind::Bulk => column * self.stride(),
            SegmentKind::Mirror => 0,
        };
        self.memory.lendable(start..start + (usize::from(self.rows) + 1) * BLOCK_BYTES)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn rows(&self) -> u16 {
        self.rows
    }
}
