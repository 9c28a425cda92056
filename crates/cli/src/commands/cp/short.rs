//! Short files, which are read before anything is written.

use std::ops::Range;

use warpfire_terminal::Failure;

use super::job::CopyJob;
use super::source::{Attributes, Content, Piece, data_map};

/// A file of up to this size, in bytes, is read whole.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// A short file that has been read: its data, without the holes.
pub struct ShortContent {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Pieces that have been given out.
    given: usize,
    len: u64,
}

impl ShortContent {
    /// Whether a file is short.
    pub fn is_short(attributes: &Attributes) -> bool {
        attributes.len.is_some_and(|len| len <= WHOLE_BYTES_MAX)
    }

    /// Reads a whole file.
    pub fn read(job: &mut CopyJob, content: &mut dyn Content) -> Result<ShortContent, Failure> {
        let mut short = ShortContent { bytes: Vec::new(), pieces: Vec::new(), given: 0, len: 0 };
        job.each_piece(content, |_, bytes, at| {
            let start = short.bytes.len();
            short.bytes.extend_from_slice(bytes);
            short.pieces.push(Piece { at, bytes: start..short.bytes.len() });
            Ok(())
        })?;
        short.len = content.len();
        Ok(short)
    }

    /// The data of all ranges, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it has no holes.
    pub fn is_dense(&self) -> bool {
        self.bytes.len() as u64 == self.len
    }
}

impl Content for ShortContent {
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        let Some(piece) = self.pieces.get(self.given) else { return Ok(None) };
        let len = piece.bytes.len();
        buffer[..len].copy_from_slice(&self.bytes[piece.bytes.clone()]);
        self.given += 1;
        Ok(Some(Piece::at(piece.at, len)))
    }

    fn len(&self) -> u64 {
        self.len
    }
    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
        let mut pieces = self.pieces.iter();
        data_map(self.len, |_| {
            let piece = pieces.next().map(|piece| piece.at..piece.at + piece.bytes.len() as u64);
            Ok(piece.unwrap_or(self.len..self.len))
        })
    }
}
