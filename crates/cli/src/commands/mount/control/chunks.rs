//! Bytes of a stream between a client and the server of a mounted pool, after the answer `streaming`.
//!
//! ```text
//!   chunk   length (u32, little-endian), not zero, and as many bytes
//!   end     length 0
//! ```
//!
//! After the end, the server answers as to any other request. A side that stops before the end has closed its
//! connection.

use std::io::{self, ErrorKind, Read, Write};

/// Most bytes of a chunk.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Writes chunks.
pub struct ChunkWriter<W: Write>(W);

impl<W: Write> ChunkWriter<W> {
    pub fn new(inner: W) -> Self {
        ChunkWriter(inner)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn finish(mut self) -> io::Result<()> {
        self.0.write_all(&0_u32.to_le_bytes())
    }
}

impl<W: Write> Write for ChunkWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let chunk = bytes.get(..CHUNK_BYTES_MAX).unwrap_or(bytes);
        let len = u32::try_from(chunk.len()).expect("a chunk is short");
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(chunk)?;
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Reads chunks, as one run of bytes.
pub struct ChunkReader<R: Read> {
    inner: R,
    /// Bytes that are left of a chunk; `None` after the end.
    left: Option<usize>,
}

impl<R: Read> ChunkReader<R> {
    pub fn new(inner: R) -> Self {
        ChunkReader { inner, left: Some(0) }
    }
}

impl<R: Read> Read for ChunkReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == Some(0) {
            let mut len = [0; 4];
            self.inner.read_exact(&mut len)?;
            self.left = Some(u32::from_le_bytes(len) as usize).filter(|len| *len > 0);
        }
        let Some(left) = self.left else { return Ok(0) };
        let wanted = buffer.len().min(left);
        let place = buffer.get_mut(..wanted).expect("within the buffer");
        match self.inner.read(place)? {
            0 if wanted > 0 => Err(ErrorKind::UnexpectedEof.into()),
            read => {
                self.left = Some(left - read);
                Ok(read)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_comes_back_and_what_follows_it_is_left() {
        let long: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        let mut sent = Vec::new();
        let mut writer = ChunkWriter::new(&mut sent);
        writer.write_all(b"short").expect("written");
        writer.write_all(&long).expect("written");
        writer.finish().expect("written");
        sent.extend_from_slice(b"answer");
        let mut rest = sent.as_slice();
        let mut read = Vec::new();
        ChunkReader::new(&mut rest).read_to_end(&mut read).expect("read");
        assert_eq!(read, [b"short", long.as_slice()].concat());
        assert_eq!(rest, b"answer");
        let cut = ChunkReader::new(sent.get(..100).expect("longer")).read_to_end(&mut Vec::new());
        assert_eq!(cut.expect_err("it has no end").kind(), ErrorKind::UnexpectedEof);
    }
}
