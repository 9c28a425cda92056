//! Every limit of the log, with its arithmetic.

/// Record bytes that wait for a sync before `log` syncs by itself: what a caller that never syncs may cost
/// in memory, twice while a cut is written.
pub(crate) const PENDING_MAX_BYTES: usize = 16 << 20;

/// Mirror segments that bulk streams leave to the commit log: the one that is written, the one announced after
/// it, and two for a group that is longer than what is left of those.
pub(crate) const LOG_RESERVE_SEGMENTS: u64 = 4;

/// The same for the stream that cleaning writes: one victim, of a half and more of a segment, empties itself into it.
pub(crate) const LOG_RESERVE_COLD_SEGMENTS: u64 = 3;

/// The same for tables, whose writing is what turns deletions into garbage, and garbage into free segments: the one log segment
/// that a sync may need for its edit.
pub(crate) const LOG_RESERVE_TABLE_SEGMENTS: u64 = 1;

/// Bulk segments kept from users: two that deletions may fill, two for merging, two that are left to cleaning.
pub(crate) const RESERVE_SEGMENTS_MIN: u64 = 6;

/// Part of the pool kept for deletion, merging and cleaning when that is more: 2 %.
pub(crate) const RESERVE_PART: u64 = 50;

/// Bytes of a reserve that are kept for upkeep, which asks nobody: of six segments four, in which memtables of two 32nds of
/// the pool (of 256 segments: 16; of a pool of 64 or fewer: 4) are written as tables, tables merged, and victims emptied.
pub(crate) fn upkeep_bytes(reserve_bytes: u64) -> u64 {
    reserve_bytes / 3 * 2
}

/// A segment with this share of live bytes or more is not worth cleaning: moving 85 bytes to gain 15 writes
/// more than five bytes for each that is freed.
pub(crate) const VICTIM_LIVE_MAX_PERCENT: u64 = 85;

/// Stripe runs of one segment after which it is sealed, so that the segment table stays small beside what it
/// describes: 1024 × 8 bytes = 8 KiB of table for at least 2048 blocks of 4 KiB.
pub(crate) const SEGMENT_RUNS_MAX: usize = 1024;

/// Bytes that one segment edit may take in a group: the largest descriptor is 24 + 250 × 6 bytes, the longest growth
/// frame 2072, and a segment that is opened, grown, sealed and freed at once has one of each.
pub(crate) const EDIT_MAX_BYTES: usize = 4096;

/// Payload bytes of full stripes that may wait for the devices while the next ones fill: at most 16 MiB of memory, as a buffer
/// takes whole huge pages of 2 MiB, which one stripe of 1 MiB of a single device fills by half. And ...
pub(crate) const WRITE_QUEUE_BYTES_MAX: usize = 8 << 20;

/// ... stripes that may in any case, so that one is written while another fills: of the longest, of 4 MiB and as much
/// parity at most, these two take 16 MiB.
pub(crate) const WRITE_QUEUE_STRIPES_MIN: usize = 2;

/// Payload bytes submitted to the devices at once: half of those that may wait, so that the other half fills meanwhile.
pub(crate) const SUBMIT_MAX_BYTES: usize = WRITE_QUEUE_BYTES_MAX / 2;
