//! The ledger: rows of live segments with bad blocks, and whether something needs them.

use std::collections::BTreeMap;

use warpfire_format::segment::SegmentKind;
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::code::FindingCode;
use crate::media::{BadRows, CheckedSegment, StripePosition, StripeVerdict};
use crate::report::{Finding, Findings, LISTED_MAX, Severity, Totals};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a damaged range has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Its bytes.
    Bytes,
    /// Redundancy only.
    Redundancy,
}

/// A stripe with bad blocks.
struct DamagedStripe {
    place: StripePosition,
    kind: SegmentKind,
    parity: usize,
    rows: Vec<BadRows>,
    /// Whether all rows lack a parity column.
    is_narrow: bool,
    bad_headers: u64,
    /// Whether the totals have the bad blocks of its rows.
    counts_rows: bool,
    /// Rows whose damage something needs to be repaired: one bit for each row.
    needed: [u64; 4],
    /// Whether something needs bytes that are lost.
    needs_lost: bool,
    listed: Vec<Finding>,
    counts: Vec<(Severity, FindingCode, u64)>,
}

/// The damaged stripes of live segments.
///
/// Invariant: the stripes of a segment rise by number (assert in `add`), so that they are found by a search.
#[derive(Default)]
pub(crate) struct DamageLedger {
    segments: BTreeMap<SegmentId, Vec<DamagedStripe>>,
    listed: BTreeMap<FindingCode, u64>,
    bytes: u64,
}

impl DamageLedger {
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Memory of the ledger, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the damage of a stripe: whether its rows were read, and of a log stripe whether recovery reads
    /// it.
    pub(crate) fn add(
        &mut self,
        segment: &CheckedSegment,
        place: StripePosition,
        verdict: StripeVerdict,
        (counts_rows, is_needed): (bool, bool),
        findings: Findings,
    ) {
        let (mut listed, counts) = findings.into_parts();
        listed.retain(|f| {
            let of_code = self.listed.entry(f.code).or_default();
            *of_code += 1;
            *of_code <= LISTED_MAX
        });
        let d = &segment.descriptor;
        let needs_all = is_needed && d.kind() == SegmentKind::Mirror;
        let stripe = DamagedStripe {
            place,
            kind: d.kind(),
            parity: usize::from(d.parity),
            needs_lost: needs_all && !verdict.readable,
            rows: verdict.bad_rows,
            is_narrow: verdict.is_narrow,
            bad_headers: verdict.bad_headers,
            counts_rows,
            needed: if needs_all { [u64::MAX; 4] } else { [0; 4] },
            listed,
            counts,
        };
        let columns: usize = stripe.rows.iter().map(|r| 32 + 2 * r.columns.len()).sum();
        self.bytes += (size_of::<DamagedStripe>() + columns + 32 * stripe.counts.len()) as u64;
        self.bytes +=
            stripe.listed.iter().map(|f| 80 + f.message.len() as u64 + f.place.len() as u64).sum::<u64>();
        let stripes = self.segments.entry(d.id).or_default();
        debug_assert!(stripes.last().is_none_or(|s| s.place.stripe < place.stripe), "stripes come in order");
        stripes.push(stripe);
    }

    /// Calls `each` with the parts of a slice that are damaged, in order: first byte and first byte past the
    /// part, counted in the slice. Notes that something needs them.
    pub(crate) fn hits(
        &mut self,
        segments: &BTreeMap<SegmentId, CheckedSegment>,
        slice: SlicePtr,
        each: &mut dyn FnMut(u64, u64, Loss),
    ) {
        let (Some(stripes), Some(segment)) =
            (self.segments.get_mut(&slice.segment), segments.get(&slice.segment))
        else {
            return;
        };
        let row_bytes = u64::from(segment.descriptor.data) * BLOCK;
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        let mut at = slice.offset_bytes;
        while at < end {
            let Some(place) = segment.stripe_of_row(at / row_bytes) else { return };
            let start = place.first_row * row_bytes;
            let past = end.min(start + u64::from(place.rows) * row_bytes);
            if let Ok(found) = stripes.binary_search_by_key(&place.stripe, |s| s.place.stripe)
                && let Some(stripe) = stripes.get_mut(found)
            {
                let base = start.wrapping_sub(slice.offset_bytes);
                stripe.hits(at - start, past - start, &mut |from, to, loss| {
                    each(base.wrapping_add(from), base.wrapping_add(to), loss);
                });
            }
            at = past;
        }
    }

    /// Reports the findings of all stripes, as notes where nothing needs the damaged bytes, and empties the
    /// ledger.
    pub(crate) fn settle(&mut self, totals: &mut Totals, findings: &Findings) {
        for (_, stripe) in std::mem::take(&mut self.segments)
            .into_iter()
            .flat_map(|(id, s)| s.into_iter().map(move |stripe| (id, stripe)))
        {
            stripe.settle(totals, findings);
        }
        self.bytes = 0;
    }

    /// Damaged stripes of the commit log that recovery reads: segment, stripe, whether it is lost.
    pub(crate) fn log_stripes(&self) -> impl Iterator<Item = (SegmentId, u32, bool)> + '_ {
        self.segments.iter().flat_map(|(id, stripes)| {
            let log = stripes.iter().filter(|s| s.kind == SegmentKind::Mirror && s.is_needed());
            log.map(|s| (*id, s.place.stripe, s.needs_lost))
        })
    }
}

impl DamagedStripe {
    fn is_needed(&self) -> bool {
        self.needed != [0; 4]
    }

    /// As [`DamageLedger::hits`], for bytes `from..to` of this stripe.
    fn hits(&mut self, from: u64, to: u64, each: &mut dyn FnMut(u64, u64, Loss)) {
        let column_bytes = u64::from(self.place.rows) * BLOCK;
        let mut at = from;
        while at < to {
            let column = at / column_bytes;
            let start = column * column_bytes;
            let past = to.min(start + column_bytes);
            if self.is_narrow {
                for row in (at - start) / BLOCK..(past - start).div_ceil(BLOCK) {
                    set_bit(&mut self.needed, row);
                }
            }
            let mut sound = at;
            for run in &self.rows {
                let first = start + u64::from(run.first) * BLOCK;
                let (a, b) = (at.max(first), past.min(first + u64::from(run.count) * BLOCK));
                let is_lost = run.columns.len() > self.parity
                    && run.columns.iter().any(|bad| u64::from(*bad) == column);
                if a >= b || !(is_lost || self.parity > 0) {
                    continue;
                }
                for row in (a - start) / BLOCK..(b - start).div_ceil(BLOCK) {
                    set_bit(&mut self.needed, row);
                }
                self.needs_lost |= is_lost;
                if self.is_narrow && sound < a {
                    each(sound, a, Loss::Redundancy);
                }
                each(a, b, if is_lost { Loss::Bytes } else { Loss::Redundancy });
                sound = b;
            }
            if self.is_narrow && sound < past {
                each(sound, past, Loss::Redundancy);
            }
            at = past;
        }
    }

    fn settle(self, totals: &mut Totals, findings: &Findings) {
        let is_needed = self.is_needed();
        for run in self.rows.iter().filter(|_| self.counts_rows) {
            for row in run.first..run.first + run.count {
                if !has_bit(&self.needed, u64::from(row)) {
                    let bad = run.columns.len();
                    totals.take_unneeded(bad as u64, bad > self.parity);
                }
            }
        }
        if !is_needed {
            totals.take_unneeded(self.bad_headers, self.bad_headers > self.parity as u64);
        }
        let severity = |said: Severity| match (is_needed, self.needs_lost) {
            (false, _) => Severity::Note,
            (true, false) => said.min(Severity::Repairable),
            (true, true) => said,
        };
        for (said, code, count) in self.counts {
            findings.count(severity(said), code, count);
        }
        for mut finding in self.listed {
            finding.severity = severity(finding.severity);
            if !is_needed {
                finding.message += "; nothing needs it";
            }
            findings.list(finding);
        }
    }
}

fn set_bit(bits: &mut [u64; 4], row: u64) {
    if let Some(word) = usize::try_from(row / 64).ok().and_then(|at| bits.get_mut(at)) {
        *word |= 1 << (row % 64);
    }
}

fn has_bit(bits: &[u64; 4], row: u64) -> bool {
    let word = usize::try_from(row / 64).ok().and_then(|at| bits.get(at));
    word.is_some_and(|word| word & (1 << (row % 64)) != 0)
}
