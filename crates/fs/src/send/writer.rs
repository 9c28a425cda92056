//! Writes the frames of a stream.
//!
//! # Invariants
//! 1. A record is written after the data that it names has a position. A frame of data is written before the
//!    next mark, and so is a frame of records (`mark`).
//! 2. Marks lie between records, after as many bytes of data and records as `mark_bytes`. So the place of
//!    each mark depends only on the records and data before it, and a stream that is continued at a mark is
//!    the same as the rest of one that was not cut.
//! 3. Until the mark at which a stream is continued, nothing is read and nothing is written (`skips`).

use std::ops::ControlFlow;

use warpfire_format::fs::{Extent, ExtentSource};
use warpfire_format::stream::{
    FRAME_PAYLOAD_BYTES_MAX, FrameKind, Piece, PieceSource, RECORD_DATA_BYTES_MAX, StreamEnd, StreamHeader,
    StreamMark, StreamRecord, put_frame,
};
use warpfire_meta::{SliceRead, Storage};
use warpfire_units::SlicePtr;

use super::shared::{SharedRanges, SlicePart};
use super::{SendError, SentStream};
use crate::diff::sides::DiffSides;
use crate::transfer::{STREAM_MARK_BYTES, StreamHasher};

/// Bytes of records that are written as one frame. A record is shorter than the rest of a frame.
const RECORDS_BYTES: usize = 256 << 10;

/// Inline bytes up to this length are written in the record.
const RECORD_INLINE_BYTES_MAX: u32 = 256;

/// Takes the bytes of a stream; `Break` stops it.
pub(super) type StreamSink<'s> = &'s mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// Writes the frames of one stream.
pub(super) struct StreamWriter<'s> {
    sink: StreamSink<'s>,
    frame: Vec<u8>,
    hasher: StreamHasher,
    records: Vec<u8>,
    scratch: Vec<u8>,
    data: Vec<u8>,
    /// Slices to be read into `data`, with their places there.
    unread: Vec<(SlicePtr, usize)>,
    record_count: u64,
    position: u64,
    made: u64,
    since_mark: u64,
    mark_bytes: u64,
    /// The mark at which the stream is continued, until it is reached.
    skips: Option<StreamMark>,
    shared: SharedRanges,
    written_bytes: u64,
}

impl<'s> StreamWriter<'s> {
    /// Begins a stream, or continues one at a mark.
    pub(super) fn begin(
        sink: StreamSink<'s>,
        header: &StreamHeader,
        continued_at: Option<StreamMark>,
        mark_bytes: u64,
    ) -> Result<StreamWriter<'s>, SendError> {
        let mut writer = StreamWriter {
            sink,
            frame: Vec::new(),
            hasher: StreamHasher::new(),
            records: Vec::new(),
            scratch: Vec::new(),
            data: Vec::new(),
            unread: Vec::new(),
            record_count: 0,
            position: 0,
            made: 0,
            since_mark: 0,
            mark_bytes: mark_bytes.min(STREAM_MARK_BYTES),
            skips: continued_at,
            shared: SharedRanges::default(),
            written_bytes: 0,
        };
        writer.put(FrameKind::Header, |out| header.encode(out))?;
        if let Some(mark) = continued_at {
            // The receiver has the hash of everything before the mark, the header included.
            writer.hasher = StreamHasher::after(&mark.hash);
            writer.put(FrameKind::Mark, |out| mark.encode(out))?;
        }
        Ok(writer)
    }

    fn put(&mut self, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.frame.clear();
        put_frame(&mut self.frame, kind, fill);
        self.hasher.update(&self.frame);
        self.written_bytes += self.frame.len() as u64;
        match (self.sink)(&self.frame) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SendError::Stopped),
        }
    }

    /// Adds a record.
    pub(super) fn record<E: Storage>(
        &mut self,
        sides: &DiffSides<E>,
        record: &StreamRecord<'_>,
    ) -> Result<(), SendError> {
        self.record_count += 1;
        self.made += u64::from(matches!(record, StreamRecord::Make(_)));
        if let Some(mark) = self.skips {
            if self.record_count == mark.records {
                if self.position != mark.data_bytes {
                    // Bytes have moved in the pool since, and are shared in another way: the data
                    // before the mark is not named any more.
                    self.shared.clear();
                    self.position = mark.data_bytes;
                }
                self.skips = None;
            }
            return Ok(());
        }
        let before = self.records.len();
        record.encode(&mut self.records, &mut self.scratch);
        self.since_mark += (self.records.len() - before) as u64;
        if self.records.len() >= RECORDS_BYTES {
            self.put_records()?;
        }
        if self.since_mark >= self.mark_bytes {
            self.mark(sides)?;
        }
        Ok(())
    }

    fn put_records(&mut self) -> Result<(), SendError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.records);
        self.put(FrameKind::Records, |out| out.extend_from_slice(&records))?;
        self.records = records;
        self.records.clear();
        Ok(())
    }

    fn mark<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), SendError> {
        self.put_all(sides)?;
        let mark =
            StreamMark { records: self.record_count, data_bytes: self.position, hash: self.hasher.hash() };
        self.hasher = StreamHasher::after(&mark.hash);
        self.since_mark = 0;
        self.put(FrameKind::Mark, |out| mark.encode(out))
    }

    /// Writes everything that waits.
    fn put_all<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), SendError> {
        self.settle(sides)?;
        self.put_data(1)?;
        self.put_records()
    }

    /// Reads the slices that wait. The caller has had a pin since it read their pointers.
    pub(super) fn settle<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), SendError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let mut reads: Vec<SliceRead<'_>> = Vec::with_capacity(self.unread.len());
        let (mut rest, mut at) = (self.data.as_mut_slice(), 0);
        for (slice, start) in self.unread.drain(..) {
            let (_, from) = rest.split_at_mut(start - at);
            let (place, behind) = from.split_at_mut(slice.len_bytes as usize);
            reads.push((slice, place));
            (rest, at) = (behind, start + slice.len_bytes as usize);
        }
        Ok(sides.read_slices(&mut reads)?)
    }

    /// Writes data while there are so many bytes of it, all of which are read.
    fn put_data(&mut self, at_least: usize) -> Result<(), SendError> {
        debug_assert!(self.unread.is_empty(), "data is read before it is written");
        let data = std::mem::take(&mut self.data);
        let mut rest = data.as_slice();
        while rest.len() >= at_least {
            let (part, behind) = rest.split_at(rest.len().min(FRAME_PAYLOAD_BYTES_MAX));
            self.put(FrameKind::Data, |out| out.extend_from_slice(part))?;
            rest = behind;
        }
        let left = rest.len();
        self.data = data;
        self.data.drain(..self.data.len() - left);
        Ok(())
    }

    /// Adds the bytes of an extent to the stream, unless it has them, and appends their pieces. The caller
    /// has a pin, and calls `settle` before it drops that.
    pub(super) fn place<'a, E: Storage>(
        &mut self,
        sides: &DiffSides<E>,
        extent: &Extent<'a>,
        pieces: &mut Vec<Piece<'a>>,
    ) -> Result<(), SendError> {
        match extent.source {
            ExtentSource::Hole | ExtentSource::Reserved => {
                push(pieces, Piece { len_bytes: u64::from(extent.len), source: PieceSource::Hole });
            }
            ExtentSource::Bytes(bytes) if extent.len <= RECORD_INLINE_BYTES_MAX => {
                push(pieces, Piece { len_bytes: u64::from(extent.len), source: PieceSource::Bytes(bytes) });
            }
            ExtentSource::Bytes(bytes) => {
                let source = PieceSource::Data(self.position);
                push(pieces, Piece { len_bytes: u64::from(extent.len), source });
                if self.counts(extent.len) {
                    self.data.extend_from_slice(bytes);
                }
            }
            ExtentSource::Slice(segment, offset_bytes) => {
                let mut shared = std::mem::take(&mut self.shared);
                let slice = SlicePtr { segment, offset_bytes, len_bytes: extent.len };
                shared.place(slice, &mut |part| {
                    let (position, len_bytes) = match part {
                        SlicePart::Sent { position, len_bytes } => (position, len_bytes),
                        SlicePart::New(part) => {
                            let position = self.position;
                            if self.counts(part.len_bytes) {
                                let start = self.data.len();
                                self.data.resize(start + part.len_bytes as usize, 0);
                                self.unread.push((part, start));
                            }
                            (position, part.len_bytes)
                        }
                    };
                    let source = PieceSource::Data(position);
                    push(pieces, Piece { len_bytes: u64::from(len_bytes), source });
                    position
                });
                self.shared = shared;
            }
        }
        if self.data.len() >= FRAME_PAYLOAD_BYTES_MAX {
            self.settle(sides)?;
            self.put_data(FRAME_PAYLOAD_BYTES_MAX)?;
        }
        Ok(())
    }

    /// Counts new data. Returns whether it is written.
    fn counts(&mut self, len_bytes: u32) -> bool {
        self.position += u64::from(len_bytes);
        if self.skips.is_some() {
            return false;
        }
        self.since_mark += u64::from(len_bytes);
        true
    }

    /// Ends the stream.
    pub(super) fn end<E: Storage>(mut self, sides: &DiffSides<E>) -> Result<SentStream, SendError> {
        if self.skips.is_some() {
            return Err(SendError::NotThisStream);
        }
        self.put_all(sides)?;
        let hash = self.hasher.hash();
        let end = StreamEnd { records: self.record_count, data_bytes: self.position, made: self.made, hash };
        self.put(FrameKind::End, |out| end.encode(out))?;
        Ok(SentStream { end, written_bytes: self.written_bytes })
    }
}

/// Adds a piece, or makes the last one longer.
fn push<'a>(pieces: &mut Vec<Piece<'a>>, piece: Piece<'a>) {
    if let Some(last) = pieces.last_mut() {
        let len_bytes = last.len_bytes + piece.len_bytes;
        match (last.source, piece.source) {
            (PieceSource::Hole, PieceSource::Hole) => {
                last.len_bytes = len_bytes;
                return;
            }
            (PieceSource::Data(position), PieceSource::Data(next))
                if position + last.len_bytes == next && len_bytes <= RECORD_DATA_BYTES_MAX =>
            {
                last.len_bytes = len_bytes;
                return;
            }
            _ => {}
        }
    }
    pieces.push(piece);
}

/// Appends a hole.
pub(super) fn push_hole(pieces: &mut Vec<Piece<'_>>, len_bytes: u64) {
    if len_bytes > 0 {
        push(pieces, Piece { len_bytes, source: PieceSource::Hole });
    }
}
