//! Where a stripe grows before it is written: laid out as it will lie on the devices.
//!
//! Invariants
//! 1. Bulk: one region for each of the k+m columns, each a header block and then `full_rows` blocks, so that a full
//!    stripe's shards are written from where the payload was appended. Mirror: one region, whose header block
//!    ends with the payload's first bytes; all copies are written from it.
//! 2. `rows` is how many blocks of each region the payload is spread over: `full_rows` while it grows; fewer after
//!    `close`, when the payload was short.
//! 3. Everything after the payload, up to the last of `rows` on the last data column, is zero after `close`.

use warpfire_env::AlignedBuf;
use warpfire_erasure::Code;
use warpfire_format::crc32c;
use warpfire_format::segment::SegmentKind;
use warpfire_format::stripe::{StripeHeader, StripeIdentity, inline_start, payload_capacity};
use warpfire_units::BLOCK_BYTES;

use crate::device::geometry::rows_needed;

/// Bytes worked on at once when checksums and parity are computed: stays in a core's own cache.
const TILE_BYTES: usize = 256 << 10;

/// The payload of one stripe, aligned and laid out so that writing it copies nothing.
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

    /// Empties the buffer and lays it out for a stripe of up to `full_rows` rows.
    pub(crate) fn reshape(&mut self, kind: SegmentKind, data: u16, parity: u8, full_rows: u16) {
        self.kind = kind;
        self.data = usize::from(data);
        self.parity = usize::from(parity);
        self.full_rows = full_rows;
        self.rows = full_rows;
        self.len = 0;
        self.closed = false;
        let needed = self.stride() * self.regions();
        if self.memory.len() < needed {
            self.memory = AlignedBuf::lasting(needed);
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

    /// Payload bytes appended.
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

    /// Appends as much of `bytes` as fits and says how much that was.
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
        taken
    }

    /// Appends zeroes up to the next block of payload, or to the end of the stripe.
    pub fn pad_to_block(&mut self) {
        let wanted = self.len.next_multiple_of(BLOCK_BYTES) - self.len;
        let zeroes = [0; BLOCK_BYTES];
        self.append(&zeroes[..wanted]);
    }

    /// Copies payload out, from byte `at` of the stripe on.
    ///
    /// # Panics
    /// If the bytes were never appended: callers read what they know to be there.
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

    /// Where payload byte `at` lies in memory, and how many follow it without a gap.
    fn locate(&self, at: usize) -> (usize, usize) {
        match self.kind {
            SegmentKind::Bulk => {
                let column_bytes = usize::from(self.rows) * BLOCK_BYTES;
                let (column, within) = (at / column_bytes, at % column_bytes);
                (column * self.stride() + BLOCK_BYTES + within, column_bytes - within)
            }
            SegmentKind::Mirror => (inline_start(self.rows) + at, self.capacity() - at),
        }
    }

    /// Ends the stripe: spreads a short payload, zeroes what follows it, computes parity and checksums and
    /// writes the headers. Returns the rows, and the CRC table of each data column (bulk).
    pub(crate) fn close(
        &mut self,
        identity: StripeIdentity,
        sequence: u64,
        code: &Code,
    ) -> (u16, Vec<Vec<u32>>) {
        assert!(!self.closed && self.len > 0, "a stripe is closed once, with something in it");
        let rows = rows_needed(self.kind, identity.data, self.len);
        self.spread(rows);
        self.rows = rows;
        self.closed = true;
        self.zero_tail();
        let mut crcs = vec![Vec::with_capacity(usize::from(rows)); self.regions()];
        self.checksum_and_encode(code, &mut crcs);
        let payload_bytes = u32::try_from(self.len).expect("a stripe is far below 4 GiB");
        let stride = self.stride();
        for (column, (region, table)) in (0u16..).zip(self.memory.chunks_mut(stride).zip(&crcs)) {
            let identity = StripeIdentity { column, ..identity };
            let header = StripeHeader { identity, sequence, rows, payload_bytes };
            header.encode(&mut region[..BLOCK_BYTES], table);
        }
        crcs.truncate(self.data);
        (rows, crcs)
    }

    /// Moves the payload from `full_rows` on each column to `rows` on each. Every block moves to the same or a
    /// later place, so the last one moves first.
    fn spread(&mut self, rows: u16) {
        if rows == self.rows {
            return;
        }
        match self.kind {
            SegmentKind::Mirror => {
                let from = inline_start(self.rows);
                self.memory.copy_within(from..from + self.len, inline_start(rows));
            }
            SegmentKind::Bulk => {
                for block in (usize::from(rows)..self.len.div_ceil(BLOCK_BYTES)).rev() {
                    let (from, _) = self.locate(block * BLOCK_BYTES);
                    let (column, row) = (block / usize::from(rows), block % usize::from(rows));
                    let to = column * self.stride() + (1 + row) * BLOCK_BYTES;
                    self.memory.copy_within(from..from + BLOCK_BYTES, to);
                }
            }
        }
    }

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

    /// One pass over the payload, a tile of rows at a time: the checksums bring the tile into the cache and
    /// the parity finds it there.
    fn checksum_and_encode(&mut self, code: &Code, crcs: &mut [Vec<u32>]) {
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
            if parity.is_empty() {
                continue;
            }
            let sources: Vec<&[u8]> = data.iter().map(|shard| &shard[tile.clone()]).collect();
            let mut outputs: Vec<&mut [u8]> =
                parity.iter_mut().map(|shard| &mut shard[tile.clone()]).collect();
            code.encode(&sources, &mut outputs);
            for (shard, table) in outputs.iter().zip(parity_crcs) {
                table.extend(shard.chunks_exact(BLOCK_BYTES).map(crc32c));
            }
        }
    }

    /// What is written for one column, once closed: the header and the rows.
    pub(crate) fn shard(&self, column: usize) -> &[u8] {
        assert!(self.closed, "only a closed stripe is written");
        let start = match self.kind {
            SegmentKind::Bulk => column * self.stride(),
            SegmentKind::Mirror => 0,
        };
        &self.memory[start..start + (usize::from(self.rows) + 1) * BLOCK_BYTES]
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn rows(&self) -> u16 {
        self.rows
    }
}
