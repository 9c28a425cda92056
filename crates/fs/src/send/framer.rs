//! The parts of a stream, and the frames that are made of them.
//!
//! A part goes through three hands, each of which may be a thread of its own: the walk makes it, `Fs::fill`
//! reads the bytes of files into it, and the framer hashes it.

use std::sync::Arc;

use warpfire_format::stream::{
    FRAME_PAYLOAD_BYTES_MAX, FrameKind, StreamEnd, StreamHeader, StreamMark, put_frame,
};
use warpfire_meta::{SliceRead, Storage};
use warpfire_slices::SliceHold;
use warpfire_units::SlicePtr;

use super::SentStream;
use crate::error::FsError;
use crate::fs::Fs;
use crate::transfer::StreamHasher;

/// Bytes that are read at once. With more, what others read and write on the devices would wait longer: the
/// receiver may be one of them.
const READ_AT_ONCE_BYTES: usize = 4 << 20;

/// Bytes of files, some of which are still to be read.
#[derive(Debug)]
pub struct StreamData {
    pub(super) bytes: Vec<u8>,
    /// Slices, with their places in `bytes`, rising.
    pub(super) unread: Vec<(SlicePtr, usize)>,
    /// Keep the bytes of the slices until they are read.
    pub(super) holds: Vec<Arc<SliceHold>>,
}

/// A part of a stream.
#[derive(Debug)]
pub enum StreamPart {
    /// The beginning.
    Header(StreamHeader),
    /// The mark at which the stream is continued: the receiver has everything before it.
    Continued(StreamMark),
    /// Bytes of files: up to some MiB.
    Data(StreamData),
    /// Records, one after the other.
    Records(Vec<u8>),
    /// A mark.
    Mark {
        /// Records before it.
        records: u64,
        /// The data position.
        data_bytes: u64,
    },
    /// The end.
    End {
        /// Records in all.
        records: u64,
        /// Bytes of files in all.
        data_bytes: u64,
        /// Files and directories that the stream makes.
        made: u64,
    },
}

/// Makes the frames of one stream.
pub struct StreamFramer {
    frame: Vec<u8>,
    hasher: StreamHasher,
    written_bytes: u64,
    end: Option<StreamEnd>,
}

impl Default for StreamFramer {
    fn default() -> Self {
        StreamFramer { frame: Vec::new(), hasher: StreamHasher::new(), written_bytes: 0, end: None }
    }
}

impl StreamFramer {
    /// Gives the frames of the next part to `out`: of data one for each MiB, and of anything else one.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn frame<F>(
        &mut self,
        part: &StreamPart,
        mut out: impl FnMut(&[u8]) -> Result<(), F>,
    ) -> Result<(), F> {
        debug_assert!(self.end.is_none(), "nothing follows the end");
        match part {
            StreamPart::Header(header) => self.put(FrameKind::Header, |out| header.encode(out)),
            // The receiver has the hash of everything before the mark, the header included.
            StreamPart::Continued(mark) => self.mark(mark),
            StreamPart::Data(data) => {
                debug_assert!(data.unread.is_empty(), "data is read before it is written");
                for payload in data.bytes.chunks(FRAME_PAYLOAD_BYTES_MAX) {
                    self.put(FrameKind::Data, |out| out.extend_from_slice(payload));
                    out(&self.frame)?;
                }
                return Ok(());
            }
            StreamPart::Records(bytes) => self.put(FrameKind::Records, |out| out.extend_from_slice(bytes)),
            StreamPart::Mark { records, data_bytes } => {
                let hash = self.hasher.hash();
                self.mark(&StreamMark { records: *records, data_bytes: *data_bytes, hash });
            }
            StreamPart::End { records, data_bytes, made } => {
                let hash = self.hasher.hash();
                let end = StreamEnd { records: *records, data_bytes: *data_bytes, made: *made, hash };
                self.put(FrameKind::End, |out| end.encode(out));
                self.end = Some(end);
            }
        }
        out(&self.frame)
    }

    /// The stream that was sent; `None` before its end.
    pub fn sent(&self) -> Option<SentStream> {
        self.end.map(|end| SentStream { end, written_bytes: self.written_bytes })
    }

    /// A mark begins a new hash with that of everything before it.
    fn mark(&mut self, mark: &StreamMark) {
        self.hasher = StreamHasher::after(&mark.hash);
        self.put(FrameKind::Mark, |out| mark.encode(out));
    }

    fn put(&mut self, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) {
        self.frame.clear();
        put_frame(&mut self.frame, kind, fill);
        self.hasher.update(&self.frame);
        self.written_bytes += self.frame.len() as u64;
    }
}

impl<E: Storage> Fs<E> {
    /// Reads the bytes of files that a part of a stream still lacks.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn fill(&self, part: &mut StreamPart) -> Result<(), FsError> {
        let StreamPart::Data(data) = part else { return Ok(()) };
        let mut reads: Vec<SliceRead<'_>> = Vec::with_capacity(data.unread.len());
        let (mut rest, mut at) = (data.bytes.as_mut_slice(), 0);
        for (slice, start) in data.unread.drain(..) {
            debug_assert!(at <= start, "the places of slices rise");
            let (_, from) = rest.split_at_mut(start - at);
            let (place, behind) = from.split_at_mut(slice.len_bytes as usize);
            reads.push((slice, place));
            (rest, at) = (behind, start + slice.len_bytes as usize);
        }
        // Slices that lie side by side are read together.
        reads.sort_unstable_by_key(|(slice, _)| (slice.segment, slice.offset_bytes));
        let mut rest = reads.as_mut_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take_while(|(slice, _)| {
                bytes += slice.len_bytes as usize;
                bytes <= READ_AT_ONCE_BYTES
            });
            let fits = fitting.count().max(1);
            let (now, later) = std::mem::take(&mut rest).split_at_mut(fits);
            // Held bytes may have moved: they are found and read under one pin.
            let _pin = self.engine.pin()?;
            self.engine.read(now)?;
            rest = later;
        }
        data.holds.clear();
        Ok(())
    }
}
