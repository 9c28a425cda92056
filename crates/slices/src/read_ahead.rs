//! Read-ahead for short reads that follow each other on flash: small files in the order of their directory,
//! blocks of a table in a scan.
//!
//! All readers of one log share one `ReadAhead`. So there is one bound on its memory, and every reader can
//! use a chunk that another has read.
//!
//! # Terms
//! A *chunk* is an aligned range of `CHUNK_BYTES` of a segment, shorter at the end of the segment. A *place*
//! is the last block of a recent short read. A read is *near* a place if it begins or ends at most one block
//! away.
//!
//! ```text
//!   block numbers of one segment      ... 63 | 64 65 66 ..................... 127 | 128 ...
//!   short reads, near each other             |  ^  ^  ^ the third reads the whole chunk
//! ```
//!
//! # Invariants
//! 1. A cached chunk is never stale: the log verified it, each byte of a segment is written once, and segment
//!    ids are not reused. Only its end may lack bytes that were appended later (`copy` treats these as
//!    missing; `tests::a_segment_that_grew_is_read_to_its_new_end`).
//! 2. A read that is near no place reads no more than it would without read-ahead
//!    (`tests::reads_far_apart_are_read_as_they_are`).
//! 3. There are at most `RECENT_MAX` places (assert in `note`), and a chunk is never longer than
//!    `CHUNK_BYTES` (assert in `fetch`).

use std::sync::Arc;

use foldhash::fast::FixedState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use warpfire_env::sync::Mutex;
use warpfire_log::{LogError, LogStore};
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

/// Length and alignment of a chunk: about a partition of a table.
const CHUNK_BYTES: u64 = 256 * 1024;

/// Bounds of the memory for chunks: at most enough for some sixty readers at a time.
const KEPT_BYTES_MAX: u64 = 16 << 20;
const KEPT_BYTES_MIN: u64 = 4 * CHUNK_BYTES;

/// Longer reads use the devices well enough alone.
const SHORT_BYTES_MAX: usize = 16 * 1024;

/// Most places: a scan has two for each run, one in its data and one in its index.
const RECENT_MAX: usize = 32;

/// Number of near reads after which the next one reads its whole chunk.
const NEAR_READS_MIN: u32 = 2;

/// The last block of a recent read.
#[derive(Clone, Copy)]
struct ReadPlace {
    segment: SegmentId,
    block: u64,
    /// Length of the chain of near reads that ends here, the first read not counted.
    near: u32,
}

/// The places, of which a new one replaces the oldest.
#[derive(Default)]
struct Places {
    recent: Vec<ReadPlace>,
    oldest: usize,
}

impl Places {
    /// Records a read of the blocks `first` to `last`. Returns the length of its chain of near reads.
    fn note(&mut self, segment: SegmentId, first: u64, last: u64) -> u32 {
        debug_assert!(first <= last, "a read has its first block before its last");
        // One block to either side: scans run both ways, and entries that straddle blocks read a block twice.
        let near = |r: &&mut ReadPlace| {
            r.segment == segment && r.block + 1 >= first && r.block <= last.saturating_add(1)
        };
        if let Some(recent) = self.recent.iter_mut().find(near) {
            recent.block = last;
            recent.near = recent.near.saturating_add(1);
            return recent.near;
        }
        let new = ReadPlace { segment, block: last, near: 0 };
        if self.recent.len() < RECENT_MAX {
            self.recent.push(new);
        } else {
            self.recent[self.oldest] = new;
            self.oldest = (self.oldest + 1) % RECENT_MAX;
        }
        debug_assert!(self.recent.len() <= RECENT_MAX, "the number of places is bounded");
        0
    }
}

/// A segment and the number of a chunk in it.
type ChunkKey = (SegmentId, u64);

#[derive(Clone)]
struct ChunkWeight;

impl Weighter<ChunkKey, Arc<[u8]>> for ChunkWeight {
    fn weight(&self, _key: &ChunkKey, chunk: &Arc<[u8]>) -> u64 {
        chunk.len() as u64
    }
}

/// The cached chunks of one log, and the places at which to read ahead next.
pub struct ReadAhead {
    chunks: Cache<ChunkKey, Arc<[u8]>, ChunkWeight, FixedState>,
    places: Mutex<Places>,
}

impl ReadAhead {
    /// A read-ahead with a fourth of `cache_bytes` for chunks, at least 1 MiB and at most 16 MiB.
    #[must_use]
    pub fn new(cache_bytes: u64) -> Self {
        let bytes = (cache_bytes / 4).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity((bytes / CHUNK_BYTES) as usize)
            .weight_capacity(bytes)
            .shards(1)
            .build()
            .expect("both capacities are given");
        let hasher = FixedState::with_seed(3);
        let chunks = Cache::with_options(options, ChunkWeight, hasher, DefaultLifecycle::default());
        ReadAhead { chunks, places: Mutex::default() }
    }

    /// Reads a slice as `LogStore::read` does. All calls must name the same log.
    ///
    /// # Errors
    /// The errors of `LogStore::read`.
    pub fn read<L: LogStore>(&self, log: &L, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError> {
        // Also after a failed fetch: damage elsewhere in the chunk must not fail this read.
        if self.read_chunks(log, slice, buf) { Ok(()) } else { log.read(slice, buf) }
    }

    /// Reads a short slice from chunks, which are fetched if the read continues a chain of near ones. `false`
    /// if there are none.
    pub fn read_chunks<L: LogStore>(&self, log: &L, slice: SlicePtr, buf: &mut [u8]) -> bool {
        if buf.is_empty() || buf.len() > SHORT_BYTES_MAX {
            return false;
        }
        // Reads that hit the cache are recorded too: they lead the chain on to the next chunk.
        let is_near = self.is_near(slice, buf.len() as u64);
        self.copy(slice.segment, slice.offset_bytes, buf)
            || (is_near && self.fetch(log, slice) && self.copy(slice.segment, slice.offset_bytes, buf))
    }

    /// Whether the cached chunks have a slice, so that `read` asks no device for it.
    #[must_use]
    pub fn holds(&self, slice: SlicePtr) -> bool {
        let end = slice.offset_bytes + u64::from(slice.len_bytes);
        slice.len_bytes as usize <= SHORT_BYTES_MAX
            && (slice.offset_bytes / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)).all(|number| {
                let used_bytes = (end - number * CHUNK_BYTES).min(CHUNK_BYTES);
                let chunk = self.chunks.peek(&(slice.segment, number));
                chunk.is_some_and(|chunk| chunk.len() as u64 >= used_bytes)
            })
    }

    /// Whether this read continues a chain of near reads. It does not wait for the lock: threads that read at
    /// random would only wait for each other.
    fn is_near(&self, slice: SlicePtr, len_bytes: u64) -> bool {
        let block = BLOCK_BYTES as u64;
        let (first, last) = (slice.offset_bytes / block, (slice.offset_bytes + len_bytes - 1) / block);
        self.places.try_lock().is_some_and(|mut p| p.note(slice.segment, first, last) >= NEAR_READS_MIN)
    }

    /// Fills `buf` from cached chunks; `false` if they lack some of it.
    fn copy(&self, segment: SegmentId, mut at: u64, buf: &mut [u8]) -> bool {
        let mut rest = buf;
        while !rest.is_empty() {
            let Some(chunk) = self.chunks.get(&(segment, at / CHUNK_BYTES)) else { return false };
            let found = chunk.get((at % CHUNK_BYTES) as usize..).unwrap_or_default();
            // A chunk that was read while its segment was shorter lacks the bytes that were appended since.
            let missing_bytes = CHUNK_BYTES - at % CHUNK_BYTES;
            let len = rest.len().min(found.len());
            if len < rest.len() && (found.len() as u64) < missing_bytes {
                return false;
            }
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&found[..len]);
            (at, rest) = (at + len as u64, tail);
        }
        true
    }

    /// Reads the chunks of the slice. `false` if one cannot be read whole: then the caller reads the slice
    /// alone.
    fn fetch<L: LogStore>(&self, log: &L, slice: SlicePtr) -> bool {
        let end = slice.offset_bytes + u64::from(slice.len_bytes);
        let readable_bytes = log.readable_bytes(slice.segment);
        (slice.offset_bytes / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)).all(|number| {
            let start = number * CHUNK_BYTES;
            let stop = readable_bytes.min(start + CHUNK_BYTES);
            // The slice reaches past the readable end: the log's own read returns the error.
            if stop < end.min(start + CHUNK_BYTES) {
                return false;
            }
            assert!(
                start < stop && stop - start <= CHUNK_BYTES,
                "a chunk lies between its start and the next"
            );
            let len_bytes = (stop - start) as u32;
            // A shorter chunk in the cache is from before the segment grew, and is read again.
            if self.chunks.peek(&(slice.segment, number)).is_some_and(|c| c.len() == len_bytes as usize) {
                return true;
            }
            let mut chunk = vec![0; len_bytes as usize];
            let whole = SlicePtr { segment: slice.segment, offset_bytes: start, len_bytes };
            let read = log.read(whole, &mut chunk).is_ok();
            if read {
                self.chunks.insert((slice.segment, number), chunk.into());
            }
            read
        })
    }
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadAhead({} chunks)", self.chunks.len())
    }
}

#[cfg(test)]
mod tests {
    use warpfire_log::{MemLog, Stream};

    use super::*;

    fn filled(len: usize) -> (MemLog, SegmentId, Vec<u8>) {
        let log = MemLog::new();
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        let segments: Vec<SegmentId> =
            bytes.chunks(60_000).map(|part| log.append(Stream::Small, part).unwrap()[0].segment).collect();
        assert!(segments.iter().all(|s| *s == segments[0]), "one segment holds all bytes");
        (log, segments[0], bytes)
    }

    fn check(ahead: &ReadAhead, log: &MemLog, segment: SegmentId, bytes: &[u8], at: usize, len: usize) {
        let slice = SlicePtr { segment, offset_bytes: at as u64, len_bytes: len as u32 };
        let mut buf = vec![0; len];
        ahead.read(log, slice, &mut buf).unwrap();
        assert_eq!(buf, bytes[at..at + len], "{len} bytes at {at}");
    }

    #[test]
    fn reads_in_order_either_way_cost_few_reads_of_the_log() {
        let (log, segment, bytes) = filled(1_000_000);
        for forward in [true, false] {
            let ahead = ReadAhead::new(64 << 20);
            let before = log.counters().reads;
            let mut places: Vec<usize> = (0..bytes.len() / 100).map(|i| i * 100).collect();
            if !forward {
                places.reverse();
            }
            for at in places {
                check(&ahead, &log, segment, &bytes, at, 100);
            }
            let reads = log.counters().reads - before;
            assert!(reads <= 2 + 4, "{reads} reads for four chunks");
        }
    }

    #[test]
    fn reads_far_apart_are_read_as_they_are() {
        let (log, segment, bytes) = filled(1_000_000);
        let ahead = ReadAhead::new(64 << 20);
        let before = log.counters().read_bytes;
        for i in 0..1000 {
            check(&ahead, &log, segment, &bytes, (i * 397_336) % 990_000 / 50_000 * 50_000, 100);
        }
        let read = log.counters().read_bytes - before;
        assert!(read <= 1_000_000 + 100_000, "{read} bytes are more than each chunk once and the reads");
    }

    #[test]
    fn slices_in_cached_chunks_are_held_and_others_are_not() {
        let (log, segment, bytes) = filled(300_000);
        let ahead = ReadAhead::new(64 << 20);
        let holds =
            |offset_bytes: u64, len_bytes: u32| ahead.holds(SlicePtr { segment, offset_bytes, len_bytes });
        assert!(!holds(0, 100), "nothing has been read");
        for at in [0, 100, 200] {
            check(&ahead, &log, segment, &bytes, at, 100);
        }
        assert!(holds(0, 100) && holds(CHUNK_BYTES - 100, 100) && holds(5000, SHORT_BYTES_MAX as u32));
        assert!(!holds(CHUNK_BYTES - 100, 101) && !holds(CHUNK_BYTES, 100), "the next chunk");
        assert!(!holds(5000, SHORT_BYTES_MAX as u32 + 1), "a long read takes no chunk");
        for at in [290_000, 290_100, 290_200] {
            check(&ahead, &log, segment, &bytes, at, 100);
        }
        assert!(holds(CHUNK_BYTES - 100, 101) && holds(299_900, 100));
        let more = log.append(Stream::Small, &[1; 1000]).unwrap();
        assert!(!ahead.holds(more[0]) && !holds(299_900, 101), "appended since");
    }

    #[test]
    fn a_segment_that_grew_is_read_to_its_new_end() {
        let (log, segment, mut bytes) = filled(30_000);
        let ahead = ReadAhead::new(64 << 20);
        for at in (0..29_000).step_by(1000) {
            check(&ahead, &log, segment, &bytes, at, 1000);
        }
        let more: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
        log.append(Stream::Small, &more).unwrap();
        bytes.extend(more);
        for at in (20_000..59_000).step_by(1000) {
            check(&ahead, &log, segment, &bytes, at, 1000);
        }
    }
}
