//! Verifying one stripe: headers, checksums of rows, parity, copies and padding.

use std::collections::BTreeMap;

use warpfire_env::AlignedBuf;
use warpfire_erasure::{Code as Parity, scalar};
use warpfire_format::crc32c;
use warpfire_format::segment::{SegmentDescriptor, SegmentKind};
use warpfire_format::stripe::{StripeHeader, StripeIdentity, inline_start};
use warpfire_units::BLOCK_BYTES;

use super::device::{BlockRead, Media};
use super::segment::StripePosition;
use crate::code::FindingCode;
use crate::report::{Findings, Severity, Totals};

/// Rows of one parity computation: 64 KiB of each column.
const TILE_ROWS: usize = 16;

/// Bytes of each parity column that are computed a second time by the plain oracle. They check the fast
/// kernel.
const SPOT_BYTES: usize = 64;

/// The result of the verification of a stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StripeVerdict {
    /// The header that most columns agree on. `None` if no column has a good one.
    pub(crate) header: Option<StripeHeader>,
    /// Whether all payload can be read, if need be from parity. If only headers were verified, whether enough
    /// of them are good.
    pub(crate) readable: bool,
    /// The rows with bad blocks, rising. All rows of a column with a bad header count as bad.
    pub(crate) bad_rows: Vec<BadRows>,
    /// Whether the segment has fewer parity columns than it could have. All its rows lack redundancy then.
    pub(crate) is_narrow: bool,
    /// Number of bad headers.
    pub(crate) bad_headers: u64,
}

/// Neighbouring rows of a stripe with bad blocks on the same columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadRows {
    pub(crate) first: u16,
    pub(crate) count: u16,
    /// The columns, rising.
    pub(crate) columns: Box<[u16]>,
}

/// Verifies stripes. The buffers are reused from stripe to stripe.
#[derive(Default)]
pub(crate) struct StripeVerifier {
    buffers: Vec<AlignedBuf>,
    codes: BTreeMap<(u16, u8), Option<Parity>>,
}

/// One column after reading.
struct StripeColumn<'a> {
    header: Option<StripeHeader>,
    crcs: Vec<u32>,
    bytes: &'a [u8],
    /// Whether each row is bad. Row 0 follows the header.
    bad: Vec<bool>,
    /// Rows that were read and do not match their checksums.
    mismatched: Vec<usize>,
}

/// Faults of whole columns of a stripe. Their severity is known when all columns are read: faults that parity
/// covers are repairable.
type ColumnFaults = Vec<(FindingCode, String, String)>;

/// The identity that the header of a shard must have.
pub(crate) fn identity_of(media: &Media, d: &SegmentDescriptor, stripe: u32, column: u16) -> StripeIdentity {
    StripeIdentity {
        pool: media.pool,
        segment: d.id,
        epoch: d.epoch,
        stripe,
        column: if d.kind() == SegmentKind::Mirror { 0 } else { column },
        kind: d.kind(),
        data: d.data,
        parity: d.parity,
    }
}

impl StripeVerifier {
    /// Reads and verifies a stripe: with `data` all of it, otherwise only the headers.
    pub(crate) fn verify(
        &mut self,
        media: &Media,
        d: &SegmentDescriptor,
        place: StripePosition,
        data: bool,
        totals: &mut Totals,
        findings: &Findings,
    ) -> StripeVerdict {
        let rows = if data { usize::from(place.rows) } else { 0 };
        let len = (1 + rows) * BLOCK_BYTES;
        if self.buffers.len() < d.columns.len() || self.buffers.first().is_some_and(|b| b.len() < len) {
            self.buffers = d.columns.iter().map(|_| AlignedBuf::zeroed(len.max(64 * BLOCK_BYTES))).collect();
        }
        let mut faults = ColumnFaults::new();
        let unread = read_columns(media, d, place, len, &mut self.buffers, &mut faults);
        let mut columns = Vec::with_capacity(d.columns.len());
        for ((number, buffer), unread) in (0u16..).zip(&self.buffers).zip(&unread) {
            let bytes = buffer.get(..len).expect("buffers are made long enough");
            columns.push(read_header(media, d, place, number, bytes, unread, &mut faults));
        }
        let header = agree(d, place, &mut columns, &mut faults);
        check_blocks(&mut columns, totals);
        let bad_rows = bad_rows(place, &columns);
        let bad_headers = columns.iter().filter(|c| c.header.is_none()).count() as u64;
        let readable = check_losses(media, d, place, &columns, rows, totals, findings);
        report_columns(media, d, place, &columns, faults, readable, findings);
        // Parity and copies are compared only when every block is good: otherwise the damage would be
        // reported twice.
        let whole = columns.iter().all(|c| c.header.is_some() && !c.bad.iter().any(|bad| *bad));
        if let (Some(header), true, true) = (header, data, readable) {
            if whole {
                self.check_parity(d, place, rows, findings);
                self.check_copies(d, place, findings);
            }
            check_padding(d, place, rows, &header, &self.buffers, &unread, findings);
        }
        StripeVerdict { header, readable, bad_rows, is_narrow: false, bad_headers }
    }

    /// Computes the parity again and compares. Every block of the stripe matches its checksum.
    fn check_parity(
        &mut self,
        d: &SegmentDescriptor,
        place: StripePosition,
        rows: usize,
        findings: &Findings,
    ) {
        let (k, m) = (usize::from(d.data), usize::from(d.parity));
        let code = self.codes.entry((d.data, d.parity)).or_insert_with(|| Parity::new(k, m).ok());
        let Some(code) = code.as_ref().filter(|_| m > 0) else { return };
        // Tiles keep the scratch memory small: m × 64 KiB instead of m × 1 MiB.
        let mut scratch = vec![vec![0; TILE_ROWS * BLOCK_BYTES]; m];
        for first in (0..rows).step_by(TILE_ROWS) {
            let range = (1 + first) * BLOCK_BYTES..(1 + rows.min(first + TILE_ROWS)) * BLOCK_BYTES;
            let columns: Vec<&[u8]> = self.buffers.iter().map(|b| tile_of(b, range.clone())).collect();
            let (data, stored) = columns.split_at(k.min(columns.len()));
            let mut computed: Vec<&mut [u8]> =
                scratch.iter_mut().map(|s| s.get_mut(..range.len()).expect("a tile fits")).collect();
            code.encode(data, &mut computed);
            let differs = stored.iter().zip(&computed).position(|(stored, computed)| *stored != &**computed);
            let spot_differs = || {
                let spot: Vec<&[u8]> = data.iter().map(|d| tile_of(d, 0..SPOT_BYTES)).collect();
                (0..m)
                    .zip(stored)
                    .position(|(row, s)| scalar::parity(&spot, row) != tile_of(s, 0..SPOT_BYTES))
            };
            if let Some(row) = differs.or_else(|| if first == 0 { spot_differs() } else { None }) {
                let message = format_args!("parity column {row} is not the parity of its data");
                findings.error(FindingCode::ParityDisagrees, at_stripe(d, place), message);
                return;
            }
        }
    }

    /// Compares the header blocks of a mirror, which hold payload and must be equal.
    fn check_copies(&self, d: &SegmentDescriptor, place: StripePosition, findings: &Findings) {
        let mut heads = self.buffers.iter().take(d.columns.len()).map(|b| tile_of(b, 0..BLOCK_BYTES));
        let first = heads.next();
        if d.kind() == SegmentKind::Mirror && heads.any(|other| Some(other) != first) {
            findings.error(FindingCode::ParityDisagrees, at_stripe(d, place), "its copies differ");
        }
    }
}

fn tile_of(bytes: &[u8], range: std::ops::Range<usize>) -> &[u8] {
    bytes.get(range).expect("a tile lies inside its shard")
}

fn at_stripe(d: &SegmentDescriptor, place: StripePosition) -> String {
    format!("{} stripe {}", d.id, place.stripe)
}

/// Describes a block of a column by its byte on the device.
fn at_block(
    media: &Media,
    d: &SegmentDescriptor,
    place: StripePosition,
    column: u16,
    block: usize,
) -> String {
    let Some((device, zone)) = d.columns.get(usize::from(column)) else { return at_stripe(d, place) };
    let number = u64::from(zone.0) * u64::from(media.zone_blocks) + place.block + block as u64;
    format!("{} column {column}, {device} byte {}", at_stripe(d, place), number * BLOCK_BYTES as u64)
}

/// Reads the columns. Returns for each column which blocks, header first, could not be read.
fn read_columns(
    media: &Media,
    d: &SegmentDescriptor,
    place: StripePosition,
    len: usize,
    buffers: &mut [AlignedBuf],
    faults: &mut ColumnFaults,
) -> Vec<Vec<bool>> {
    let mut reads: Vec<BlockRead<'_>> = d
        .columns
        .iter()
        .zip(buffers.iter_mut())
        .map(|(&(device, zone), buffer)| {
            let buf = buffer.get_mut(..len).expect("buffers are made long enough");
            BlockRead { device, zone, block: place.block, buf }
        })
        .collect();
    let outcomes = media.read(&mut reads);
    let mut unread = Vec::with_capacity(outcomes.len());
    for (((column, outcome), &(device, zone)), buffer) in (0u16..).zip(outcomes).zip(&d.columns).zip(buffers)
    {
        unread.push(match outcome {
            Some(Ok(())) => vec![false; len / BLOCK_BYTES],
            None => vec![true; len / BLOCK_BYTES],
            // The device failed the whole run. Block by block, only its bad blocks fail.
            Some(Err(reason)) => {
                let at = at_block(media, d, place, column, 0);
                faults.push((FindingCode::ReadFailed, at, reason.to_string()));
                let blocks = buffer.get_mut(..len).expect("as above").chunks_exact_mut(BLOCK_BYTES);
                (place.block..).zip(blocks).map(|(b, buf)| !media.read_one(device, zone, b, buf)).collect()
            }
        });
    }
    unread
}

fn read_header<'a>(
    media: &Media,
    d: &SegmentDescriptor,
    place: StripePosition,
    number: u16,
    bytes: &'a [u8],
    unread: &[bool],
    faults: &mut ColumnFaults,
) -> StripeColumn<'a> {
    let (head, body) = bytes.split_at(BLOCK_BYTES);
    let bad: Vec<bool> = unread.iter().skip(1).copied().collect();
    let nothing = StripeColumn {
        header: None,
        crcs: Vec::new(),
        bytes: body,
        bad: vec![true; bad.len()],
        mismatched: Vec::new(),
    };
    if unread.first() != Some(&false) {
        return nothing;
    }
    let at = || at_block(media, d, place, number, 0);
    match StripeHeader::decode(head) {
        Err(e) => {
            faults.push((FindingCode::HeaderDamaged, at(), e.to_string()));
            nothing
        }
        Ok(block) if block.header.identity != identity_of(media, d, place.stripe, number) => {
            // The shard counts as lost: its bytes are of another write and must not enter the parity
            // calculation.
            let found = block.header.identity;
            let message = format!("holds {} stripe {} of epoch {}", found.segment, found.stripe, found.epoch);
            faults.push((FindingCode::HeaderForeign, at(), message));
            nothing
        }
        Ok(block) => {
            let crcs = block.crcs().collect();
            StripeColumn { header: Some(block.header), crcs, bytes: body, bad, mismatched: Vec::new() }
        }
    }
}

/// The header that most columns agree on. Columns with another one count as lost.
fn agree(
    d: &SegmentDescriptor,
    place: StripePosition,
    columns: &mut [StripeColumn<'_>],
    faults: &mut ColumnFaults,
) -> Option<StripeHeader> {
    let said: Vec<StripeHeader> = columns.iter().filter_map(|c| c.header).collect();
    let fits = |h: &StripeHeader| h.rows == place.rows;
    let same = |a: &StripeHeader, b: &StripeHeader| {
        (a.sequence, a.rows, a.payload_bytes) == (b.sequence, b.rows, b.payload_bytes)
    };
    // The number of rows is known from the segment. Only the other fields need a vote.
    let votes = |h: &StripeHeader| said.iter().filter(|other| same(h, other)).count();
    let agreed = said.iter().filter(|h| fits(h)).max_by_key(|h| votes(h)).copied();
    for (number, column) in columns.iter_mut().enumerate() {
        let Some(header) = column.header else { continue };
        if agreed.is_none_or(|a| !same(&a, &header)) {
            let message = format!(
                "column {number} says sequence {}, {} rows, {} payload bytes; expected are {} rows",
                header.sequence, header.rows, header.payload_bytes, place.rows
            );
            faults.push((FindingCode::HeadersDisagree, at_stripe(d, place), message));
            column.header = None;
            column.bad.fill(true);
        }
    }
    agreed
}

/// Compares the blocks that were read with their checksums.
fn check_blocks(columns: &mut [StripeColumn<'_>], totals: &mut Totals) {
    for column in columns {
        totals.blocks_verified += u64::from(column.header.is_some());
        let blocks = column.bytes.chunks_exact(BLOCK_BYTES).zip(&column.crcs);
        for (row, ((block, crc), bad)) in blocks.zip(&mut column.bad).enumerate() {
            if *bad {
                continue;
            }
            totals.blocks_verified += 1;
            if crc32c(block) != *crc {
                *bad = true;
                column.mismatched.push(row);
            }
        }
    }
}

/// Reports the faults of columns, and the blocks that do not match their checksums: as errors where parity
/// does not cover them.
fn report_columns(
    media: &Media,
    d: &SegmentDescriptor,
    place: StripePosition,
    columns: &[StripeColumn<'_>],
    faults: ColumnFaults,
    readable: bool,
    findings: &Findings,
) {
    let severity = |is_covered| if is_covered { Severity::Repairable } else { Severity::Error };
    for (code, at, message) in faults {
        findings.add(severity(readable), code, &at, &message);
    }
    for (number, column) in (0u16..).zip(columns) {
        for &row in &column.mismatched {
            let is_covered = readable || bad_in_row(columns, row) <= usize::from(d.parity);
            let at = at_block(media, d, place, number, 1 + row);
            findings.add(
                severity(is_covered),
                FindingCode::BlockDamaged,
                &at,
                &"does not match its checksum",
            );
        }
    }
}

/// Number of bad blocks in a row, which is a codeword of its own: other rows may lose other columns.
fn bad_in_row(columns: &[StripeColumn<'_>], row: usize) -> usize {
    columns.iter().filter(|column| column.bad.get(row) == Some(&true)).count()
}

/// The rows of a stripe that have bad blocks.
fn bad_rows(place: StripePosition, columns: &[StripeColumn<'_>]) -> Vec<BadRows> {
    let mut runs: Vec<BadRows> = Vec::new();
    if columns.iter().all(|c| c.header.is_some() && !c.bad.contains(&true)) {
        return runs;
    }
    for row in 0..place.rows {
        let is_bad = |c: &StripeColumn<'_>| c.header.is_none() || c.bad.get(usize::from(row)) == Some(&true);
        let bad: Vec<u16> = (0u16..).zip(columns).filter(|(_, c)| is_bad(c)).map(|(n, _)| n).collect();
        match runs.last_mut() {
            Some(run) if run.first + run.count == row && *run.columns == *bad => run.count += 1,
            _ if bad.is_empty() => {}
            _ => runs.push(BadRows { first: row, count: 1, columns: bad.into() }),
        }
    }
    runs
}

/// Counts bad blocks and returns whether parity covers them.
fn check_losses(
    media: &Media,
    d: &SegmentDescriptor,
    place: StripePosition,
    columns: &[StripeColumn<'_>],
    rows: usize,
    totals: &mut Totals,
    findings: &Findings,
) -> bool {
    let parity = usize::from(d.parity);
    let headers_bad = columns.iter().filter(|c| c.header.is_none()).count();
    let mut rows_lost = 0;
    let mut blocks_lost = 0;
    for row in 0..rows {
        let bad = bad_in_row(columns, row);
        if bad > parity {
            rows_lost += 1;
            blocks_lost += bad as u64;
        } else {
            totals.blocks_repairable += bad as u64;
        }
    }
    totals.blocks_lost += blocks_lost;
    let headers_lost = headers_bad > parity;
    if headers_lost {
        totals.blocks_lost += headers_bad as u64;
    } else {
        totals.blocks_repairable += headers_bad as u64;
    }
    if rows_lost > 0 || headers_lost {
        debug_assert!(totals.blocks_lost > 0, "a lost row or header is a lost block");
        let present = d.columns.iter().filter(|(device, _)| media.is_present(*device)).count();
        let message = format_args!(
            "beyond parity: {rows_lost} of {} rows cannot be reconstructed ({blocks_lost} bad blocks, \
             {headers_bad} of {} bad headers, {present} of {} devices present)",
            place.rows,
            columns.len(),
            columns.len()
        );
        findings.error(FindingCode::RowsLost, at_stripe(d, place), message);
    }
    rows_lost == 0 && !headers_lost
}

/// Checks that bytes after the payload are zero, in every column that was read.
fn check_padding(
    d: &SegmentDescriptor,
    place: StripePosition,
    rows: usize,
    header: &StripeHeader,
    buffers: &[AlignedBuf],
    unread: &[Vec<bool>],
    findings: &Findings,
) {
    let column_bytes = rows * BLOCK_BYTES;
    let inline = match d.kind() {
        SegmentKind::Bulk => 0,
        SegmentKind::Mirror => BLOCK_BYTES - inline_start(header.rows),
    };
    let payload = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX).saturating_sub(inline);
    for (column, (buffer, unread)) in buffers.iter().zip(unread).take(usize::from(d.data)).enumerate() {
        let written = payload.saturating_sub(column * column_bytes).min(column_bytes);
        let padding = buffer.get(BLOCK_BYTES + written..BLOCK_BYTES + column_bytes).unwrap_or(&[]);
        if !unread.contains(&true) && padding.iter().any(|b| *b != 0) {
            let message = format_args!("column {column} is not zero after its {written} payload bytes");
            findings.repairable(FindingCode::PaddingNotZero, at_stripe(d, place), message);
        }
    }
}
