//! Appending: bytes go to the open segment of their stream, and full stripes to the write queue.

use std::cmp::Reverse;

use warpfire_env::sync::atomic::Ordering;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_pool::PoolError;
use warpfire_units::{SegmentId, SlicePtr};

use super::Log;
use crate::store::{LogError, LogStore, Slices, Stream};
use crate::stream::{
    BulkStream, OpenSegment, STREAMS, allocate_bulk, room_wanted_bytes, slot, starts_on_block,
};

/// Buffers of streams that a group writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Buffers {
    /// All of them.
    All,
    /// Those that hold bytes that a record needs.
    Needed,
}

impl Log {
    /// Pushes the stream's buffer. Seals the segment if it takes no more appends.
    pub(super) fn write_out(
        &self,
        stream: &BulkStream,
        open: &mut Option<OpenSegment>,
    ) -> Result<(), PoolError> {
        let Some(segment) = open.as_mut() else { return Ok(()) };
        let pushed = segment.push(&self.write_queue);
        // After a failure too: the stripe is in the queue, where readers find it.
        stream.publish_pushed(segment);
        pushed?;
        if segment.is_done() {
            self.seal(open);
        }
        Ok(())
    }

    /// Writes the buffers to the devices, all or only those that hold bytes that records need. Waits for all
    /// stripes pushed before.
    pub(super) fn write_all_out(&self, which: Buffers) -> Result<(), PoolError> {
        for stream in &self.streams {
            let is_needed = || stream.holds_needed() && !is_planted(PlantedBug::NeededNotWritten);
            if which == Buffers::All || is_needed() {
                self.write_out(stream, &mut stream.open.lock())?;
            }
        }
        self.write_queue.drain()
    }

    /// Seals the stream's open segment, if there is one.
    pub(super) fn seal(&self, open: &mut Option<OpenSegment>) {
        if let Some(segment) = open.take() {
            assert!(segment.is_pushed(), "a segment is sealed when all of it was pushed");
            segment.end();
            self.write_queue.seal(segment.id());
        }
    }

    /// Seals the wanted ones of the open segments. A segment may have got bytes since the caller chose it.
    pub(crate) fn seal_open(&self, wanted: impl Fn(SegmentId) -> bool) -> Result<(), LogError> {
        let mut any = false;
        for stream in &self.streams {
            let mut open = stream.open.lock();
            if open.as_ref().is_some_and(|o| wanted(o.id())) {
                self.latch.check()?;
                self.write_out(stream, &mut open).map_err(|e| self.latch.on_write(e))?;
                self.seal(&mut open);
                any = true;
            }
        }
        // Sealing waits for the last stripe, and the caller needs the segments sealed on return.
        if any { self.write_queue.drain().map_err(|e| self.latch.on_write(e)) } else { Ok(()) }
    }

    /// Returns where in the stream's open segment `wanted` bytes fit. Opens a new segment if they do not.
    pub(super) fn place(
        &self,
        kind: Stream,
        open: &mut Option<OpenSegment>,
        on_block: bool,
        wanted: usize,
    ) -> Result<u64, PoolError> {
        if let Some(at) = open.as_ref().and_then(|o| o.place(on_block, wanted)) {
            return Ok(at);
        }
        // A new segment would be sealed empty, and the next one too.
        if wanted as u64 > self.segment_bytes() {
            return Err(PoolError::NoSpace);
        }
        // The new segment first: when there is none, the rest of this one still takes shorter appends.
        let stream = &self.streams[slot(kind)];
        let writer = allocate_bulk(&self.pool, self.next_id(), kind)?;
        self.write_out(stream, open)?;
        self.seal(open);
        assert!(open.is_none(), "a stream has one open segment");
        // In the table before any stripe of it can complete, which looks it up there.
        self.segment_table.lock().add_open(writer.descriptor(), writer.remaining_bytes());
        stream.publish_open(writer.id());
        *open = Some(OpenSegment::new(writer, kind));
        self.note_room();
        open.as_ref().and_then(|o| o.place(on_block, wanted)).ok_or(PoolError::NoSpace)
    }

    /// Appends bytes, in as many slices as segments take them. Leaves no reference behind if it fails.
    pub(super) fn try_append(
        &self,
        kind: Stream,
        bytes: &[u8],
        unsplit_max_bytes: usize,
    ) -> Result<Slices, LogError> {
        self.latch.check()?;
        let stream = &self.streams[slot(kind)];
        let on_block = starts_on_block(kind, bytes.len());
        let mut open = stream.open.lock();
        let mut slices = Slices::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let wanted = room_wanted_bytes(bytes.len(), rest.len(), unsplit_max_bytes);
            let mut part = self.append_part(kind, &mut open, on_block, wanted, rest);
            if matches!(part, Err(PoolError::NoSpace)) {
                // The lock of one stream at a time: two appends that search each other's streams would
                // otherwise wait for each other.
                drop(open);
                part = self.append_to_any_stream(on_block, wanted, rest);
                open = stream.open.lock();
            }
            match part {
                Ok((slice, unlogged_bytes)) => {
                    rest = &rest[slice.len_bytes as usize..];
                    slices.push(slice);
                    if unlogged_bytes < self.group_due_bytes.load(Ordering::Relaxed) {
                        continue;
                    }
                    drop(open);
                    if let Err(e) = self.write_due_group() {
                        self.release_all(slices);
                        return Err(e);
                    }
                    open = stream.open.lock();
                }
                Err(e) => {
                    drop(open);
                    // The parts before the failure are garbage: no caller has a pointer to them.
                    self.release_all(slices);
                    return Err(self.latch.on_write(e));
                }
            }
        }
        debug_assert_eq!(
            slices.iter().map(|slice| slice.len_bytes as usize).sum::<usize>(),
            bytes.len(),
            "the slices hold the whole append"
        );
        Ok(slices)
    }

    pub(super) fn release_all(&self, slices: Slices) {
        for slice in slices {
            self.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    /// Appends as many bytes as the open segment takes, at least `wanted`. Returns them, and the bytes of
    /// unlogged stripes.
    pub(super) fn append_part(
        &self,
        kind: Stream,
        open: &mut Option<OpenSegment>,
        on_block: bool,
        wanted: usize,
        bytes: &[u8],
    ) -> Result<(SlicePtr, u64), PoolError> {
        let stream = &self.streams[slot(kind)];
        let offset_bytes = self.place(kind, open, on_block, wanted)?;
        let segment = open.as_mut().expect("a place lies in the open segment");
        let len_bytes = segment.takes(offset_bytes, bytes.len());
        let taken = len_bytes as usize;
        debug_assert!(taken >= wanted.min(bytes.len()), "a place has the wanted room");
        let id = segment.id();
        let appended = segment.append(offset_bytes, &bytes[..taken], &self.write_queue);
        stream.publish_pushed(segment);
        appended?;
        // Counted before the stream's lock is dropped, so that no sync finds the segment dead and seals it.
        let unlogged_bytes = self.segment_table.lock().note_append(id, taken as u64, segment.len_bytes());
        if segment.is_done() {
            self.write_out(stream, open)?;
        }
        Ok((SlicePtr { segment: id, offset_bytes, len_bytes }, unlogged_bytes))
    }

    /// Appends to the first stream with room in its open segment. Without a free segment, to use all space
    /// that counts as free matters more than to keep lifetimes apart.
    pub(super) fn append_to_any_stream(
        &self,
        on_block: bool,
        wanted: usize,
        bytes: &[u8],
    ) -> Result<(SlicePtr, u64), PoolError> {
        for kind in STREAMS {
            let mut open = self.streams[slot(kind)].open.lock();
            if open.as_ref().is_some_and(|o| o.place(on_block, wanted).is_some()) {
                return self.append_part(kind, &mut open, on_block, wanted, bytes);
            }
        }
        Err(PoolError::NoSpace)
    }

    /// Seals the open segments without references, so that they can be freed.
    pub(super) fn seal_dead(&self) -> Result<(), LogError> {
        let dead = self.segment_table.lock().open_and_dead();
        if dead.is_empty() { Ok(()) } else { self.seal_open(|id| dead.contains(&id)) }
    }

    /// Seals the open segment with the most bytes without a reference, if that is worth it.
    pub(super) fn seal_worth_cleaning(&self) -> Result<bool, LogError> {
        let most = {
            let segment_table = self.segment_table.lock();
            let garbage = segment_table.open().filter_map(|(id, e)| Some((e.garbage_worth_sealing()?, id)));
            garbage.max_by_key(|(bytes, id)| (*bytes, Reverse(*id)))
        };
        let Some((_, segment)) = most else { return Ok(false) };
        self.seal_open(|id| id == segment)?;
        // Its stream may have ended it already, and it waits for its last stripe.
        self.write_queue.drain().map_err(|e| self.latch.on_write(e))?;
        Ok(true)
    }
}
