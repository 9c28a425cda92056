//! Writes the parts of a stream.
//!
//! # Invariants
//! 1. A record is written after the data that it names has a position. A part with data is written before the
//!    next mark, and so is a part with records (`mark`).
//! 2. Marks lie between records, after as many bytes of data and records as `mark_bytes`. So the place of
//!    each mark depends only on the records and data before it, and a stream that is continued at a mark is
//!    the same as the rest of one that was not cut.
//! 3. Until the mark at which a stream is continued, nothing is read and nothing is written (`skips`).
//! 4. Each part with slices to read holds them. It takes the hold under a pin from before the pointers were
//!    read, and cleaning moves held bytes (`put_data`).
//! 5. The sink takes a part only while no visit has a pin: it may block for as long as somebody reads the
//!    stream slowly, and a pin keeps the log from freeing segments. Parts that are made in a visit wait for
//!    its end, and a visit ends soon after it has made one (`has_waiting`, `drop_pins`).

use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_format::fs::{Extent, ExtentSource};
use warpfire_format::stream::{
    Piece, PieceSource, RECORD_DATA_BYTES_MAX, StreamHeader, StreamMark, StreamRecord,
};
use warpfire_meta::{Pin, Storage};
use warpfire_slices::{SliceHold, SliceHolder};
use warpfire_units::SlicePtr;

use super::SendError;
use super::framer::{StreamData, StreamPart};
use super::shared::{SharedRanges, SlicePart};
use crate::diff::sides::DiffSides;
use crate::transfer::STREAM_MARK_BYTES;

/// Bytes of records that are written as one part. A record is shorter than the rest of a frame.
const RECORDS_BYTES: usize = 256 << 10;

/// Bytes of data that are read together: most small files of a directory lie side by side, in another order
/// than that of their names.
const READ_TOGETHER_BYTES: usize = STREAM_MARK_BYTES as usize;

/// Inline bytes up to this length are written in the record.
const RECORD_INLINE_BYTES_MAX: u32 = 256;

/// Takes the parts of a stream; `Break` stops it.
pub(super) type StreamSink<'s> = &'s mut dyn FnMut(StreamPart) -> ControlFlow<()>;

/// Writes the parts of one stream.
pub(super) struct StreamWriter<'s> {
    sink: StreamSink<'s>,
    holder: Arc<dyn SliceHolder>,
    /// Parts for the sink, until no visit has a pin.
    waiting: Vec<StreamPart>,
    records: Vec<u8>,
    scratch: Vec<u8>,
    data: Vec<u8>,
    /// Slices to be read into `data`, with their places there, and their holds: all but those that were
    /// placed since `held`.
    unread: Vec<(SlicePtr, usize)>,
    holds: Vec<Arc<SliceHold>>,
    /// How many of `unread` have a hold.
    held: usize,
    /// The pins of visits that go on, the innermost last; `None` for one that has dropped its own.
    pins: Vec<Option<Pin>>,
    record_count: u64,
    position: u64,
    made: u64,
    since_mark: u64,
    mark_bytes: u64,
    /// The mark at which the stream is continued, until it is reached.
    skips: Option<StreamMark>,
    shared: SharedRanges,
}

impl<'s> StreamWriter<'s> {
    /// Begins a stream, or continues one at a mark.
    pub(super) fn begin(
        sink: StreamSink<'s>,
        holder: Arc<dyn SliceHolder>,
        header: StreamHeader,
        continued_at: Option<StreamMark>,
        mark_bytes: u64,
    ) -> Result<StreamWriter<'s>, SendError> {
        let mut writer = StreamWriter {
            sink,
            holder,
            waiting: Vec::new(),
            records: Vec::new(),
            scratch: Vec::new(),
            data: Vec::new(),
            unread: Vec::new(),
            holds: Vec::new(),
            held: 0,
            pins: Vec::new(),
            record_count: 0,
            position: 0,
            made: 0,
            since_mark: 0,
            mark_bytes: mark_bytes.min(STREAM_MARK_BYTES),
            skips: continued_at,
            shared: SharedRanges::default(),
        };
        writer.put(StreamPart::Header(header))?;
        if let Some(mark) = continued_at {
            writer.put(StreamPart::Continued(mark))?;
        }
        Ok(writer)
    }

    fn put(&mut self, part: StreamPart) -> Result<(), SendError> {
        self.waiting.push(part);
        self.pass_on()
    }

    fn has_pin(&self) -> bool {
        self.pins.iter().any(Option::is_some)
    }

    /// Passes on what waits, if no visit has a pin.
    fn pass_on(&mut self) -> Result<(), SendError> {
        if self.has_pin() {
            return Ok(());
        }
        match self.waiting.drain(..).try_for_each(&mut *self.sink) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SendError::Stopped),
        }
    }

    /// Whether parts wait for the end of the visit.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a record.
    pub(super) fn record(&mut self, record: &StreamRecord<'_>) -> Result<(), SendError> {
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
            self.mark()?;
        }
        Ok(())
    }

    fn put_records(&mut self) -> Result<(), SendError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = std::mem::replace(&mut self.records, Vec::with_capacity(RECORDS_BYTES + 4096));
        self.put(StreamPart::Records(records))
    }

    fn mark(&mut self) -> Result<(), SendError> {
        self.put_all()?;
        self.since_mark = 0;
        self.put(StreamPart::Mark { records: self.record_count, data_bytes: self.position })
    }

    /// Writes everything that waits.
    fn put_all(&mut self) -> Result<(), SendError> {
        self.put_data()?;
        self.put_records()
    }

    /// Begins a visit: pointers that are read from now on may be placed until `unpin` ends it.
    pub(super) fn pin<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), SendError> {
        self.pins.push(Some(sides.pin()?));
        Ok(())
    }

    /// Ends the innermost visit.
    pub(super) fn unpin(&mut self) -> Result<(), SendError> {
        self.hold()?;
        let ended = self.pins.pop();
        debug_assert!(ended.is_some(), "a visit that ends has begun");
        drop(ended);
        self.pass_on()
    }

    /// Ends the pins of all visits that go on: they place nothing more that they have read.
    pub(super) fn drop_pins(&mut self) -> Result<(), SendError> {
        self.hold()?;
        self.pins.iter_mut().for_each(|pin| drop(pin.take()));
        self.pass_on()
    }

    /// Holds the slices that were placed since the last call.
    fn hold(&mut self) -> Result<(), SendError> {
        let placed: Vec<SlicePtr> = self.unread.iter().skip(self.held).map(|(slice, _)| *slice).collect();
        if placed.is_empty() {
            return Ok(());
        }
        debug_assert!(self.has_pin(), "slices are placed under a pin");
        self.holds.push(SliceHold::take(&self.holder, placed)?);
        self.held = self.unread.len();
        Ok(())
    }

    fn put_data(&mut self) -> Result<(), SendError> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.hold()?;
        self.held = 0;
        let bytes = std::mem::replace(&mut self.data, Vec::with_capacity(READ_TOGETHER_BYTES));
        let (unread, holds) = (std::mem::take(&mut self.unread), std::mem::take(&mut self.holds));
        self.put(StreamPart::Data(StreamData { bytes, unread, holds }))
    }

    /// Adds the bytes of an extent to the stream, unless it has them, and appends their pieces. Its record
    /// was read in this visit.
    pub(super) fn place<'a>(
        &mut self,
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
        if self.data.len() >= READ_TOGETHER_BYTES {
            self.put_data()?;
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
    pub(super) fn end(mut self) -> Result<(), SendError> {
        if self.skips.is_some() {
            return Err(SendError::NotThisStream);
        }
        self.put_all()?;
        let (records, data_bytes) = (self.record_count, self.position);
        self.put(StreamPart::End { records, data_bytes, made: self.made })
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
