//! Every limit of the log, with its arithmetic.

use crate::store::Admit;

/// Bytes of pending records at which `log` syncs by itself. This bounds the memory of a caller that never
/// syncs, at twice as much: one buffer fills while the other is written.
pub(crate) const PENDING_MAX_BYTES: usize = 16 << 20;

/// Payload bytes on each data column after which an append writes a group by itself. Recovery verifies each
/// stripe that the last group lists, so this bounds the bytes that it reads. At 200 MB/s a column takes less
/// than a second; a flush after so many bytes costs a few percent of the time that they take.
pub(crate) const GROUP_BYTES_PER_COLUMN: u64 = 128 << 20;

/// Free mirror segments that only a recovery takes, which begins its log in a new one. The log leaves it
/// free, also counting the loss of as many devices as parity covers (`Pool::leaves_a_mirror`). Streams leave
/// it free because no bulk segment takes the last free zone of a device.
pub(crate) const RECOVERY_RESERVE: u64 = 1;

/// Segments that the commit log always takes: the one being written, and the one announced after it.
pub(crate) const LOG_SEGMENTS_MIN: u64 = 2;

/// Free mirror segments that the streams of user data leave to the commit log: the one being written, the one
/// announced after it, and two for a group longer than the rest of those.
pub(crate) const LOG_RESERVE_SEGMENTS: u64 = 4;

/// The same for the cold stream. It may take one more: a new segment holds all live bytes of at least one
/// victim, and that victim is free afterwards.
pub(crate) const LOG_RESERVE_COLD_SEGMENTS: u64 = 3;

/// The same for the table stream: the one log segment that a sync may need for its edits, and the one of a
/// recovery. Writing tables turns deletions into garbage, and cleaning turns garbage into free segments, so
/// tables get nearly the last one.
pub(crate) const LOG_RESERVE_TABLE_SEGMENTS: u64 = 1 + RECOVERY_RESERVE;

/// Bulk segments that `Admit::User` leaves free: two for deletions to fill, two for compaction, two for
/// cleaning.
pub(crate) const RESERVE_SEGMENTS_MIN: u64 = 6;

/// The reserve is at least this part of the pool: one 50th, 2 %.
pub(crate) const RESERVE_PART: u64 = 50;

/// Bytes of a reserve that `Admit::Reserve` leaves to upkeep: four segments of six. Upkeep writes memtables
/// as tables, compacts tables and empties victims, and asks for no admission. Two memtables of a 32nd of the
/// pool each take 16 segments of 256, or 4 of a pool of 64 and fewer.
fn upkeep_bytes(reserve_bytes: u64) -> u64 {
    reserve_bytes / 3 * 2
}

/// Bytes of a reserve that stay free after a write that is admitted.
pub(crate) fn kept_bytes(reserve_bytes: u64, caller: Admit) -> u64 {
    let upkeep_bytes = upkeep_bytes(reserve_bytes);
    match caller {
        Admit::User => reserve_bytes,
        Admit::Reserve | Admit::Reserved(_) => upkeep_bytes,
        Admit::Settling => upkeep_bytes + (reserve_bytes - upkeep_bytes) / 2,
    }
}

/// A segment with this share of live bytes or more is not worth cleaning: to free 15 bytes, cleaning would
/// write 85, more than five for each.
pub(crate) const VICTIM_LIVE_MAX_PERCENT: u64 = 85;

/// Stripe runs after which a segment is sealed, so that the segment table stays small beside the segments
/// that it describes: 1024 × 8 bytes = 8 KiB of table for at least 2048 blocks of 4 KiB.
pub(crate) const SEGMENT_RUNS_MAX: usize = 1024;

/// Most bytes of one segment's edits in a group. The largest descriptor takes 24 + 250 × 6 bytes and the
/// longest growth frame 2072. A segment that is opened, grown, sealed and freed in one group has one of each.
pub(crate) const EDIT_MAX_BYTES: usize = 4096;

/// Bytes of frames in a root, at most, while the state log takes more. A root with them is a few blocks, and
/// a small pool needs no state log.
pub(crate) const STATE_TAIL_MAX_BYTES: usize = 16 << 10;

/// Bytes that the state log may take beyond twice the state before it is written anew; in small zones one
/// segment. So a change is written twice on average. A descriptor takes a thousandth of its segment at most,
/// so a chain and the base that replaces it take 1/250 of the pool and four segments. The reserve is 1/50,
/// and the segments of the state log come on top.
pub(crate) const STATE_CHAIN_SLACK_BYTES: u64 = 1 << 20;

/// Bytes of the frame of a column that moved or is lost.
pub(crate) const COLUMN_EDIT_BYTES: usize = 24;

/// Payload bytes of full stripes that may wait in the write queue. They take at most 16 MiB of memory: a
/// buffer takes whole huge pages of 2 MiB, and a stripe of a single device, 1 MiB, fills half of one.
pub(crate) const WRITE_QUEUE_BYTES_MAX: usize = 8 << 20;

/// Stripes that may wait whatever their size, so that one is written while another fills. Two of the longest,
/// 4 MiB and at most as much parity each, take 16 MiB.
pub(crate) const WRITE_QUEUE_STRIPES_MIN: usize = 2;

/// Payload bytes submitted to the devices at once: half the queue, so that the other half fills in that time.
pub(crate) const SUBMIT_MAX_BYTES: usize = WRITE_QUEUE_BYTES_MAX / 2;
