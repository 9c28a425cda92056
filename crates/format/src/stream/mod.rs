//! A snapshot, or the changes between two, as a stream of bytes: see `docs/STREAM.md`.
//!
//! ```text
//!   header  data* records*  mark  data* records*  mark  ...  end
//! ```
//!
//! A stream is *frames* (`frame`). Data frames hold the bytes of files, one after the other; a position among
//! these bytes is a *data position*. Records frames hold *records* (`record`), the steps by which the
//! receiver makes the tree; a record names bytes of files by their data positions.

mod frame;
mod header;
mod received;
mod record;

pub use frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, FrameKind, put_frame};
pub use header::{STREAM_HASH_BYTES, STREAM_VERSION, StreamEnd, StreamHeader, StreamMark, StreamSnapshot};
pub use received::{ReceiveState, Received};
pub use record::{
    FileAttributes, MadeFile, Piece, PieceSource, RECORD_DATA_BYTES_MAX, StreamRecord, StreamRecords,
};

use crate::{Corrupt, FieldErrors};

const BAD_CHECKSUM: Corrupt = Corrupt::new(440, "frame of a stream: checksum");
const BAD_FRAME: Corrupt = Corrupt::new(441, "frame of a stream: structure");
const BAD_HEADER: Corrupt = Corrupt::new(442, "header, mark or end of a stream: structure");
const BAD_STREAM_VERSION: Corrupt = Corrupt::new(443, "stream of an unknown version");
const BAD_RECORD: Corrupt = Corrupt::new(444, "record of a stream: structure");

const BAD_RECEIVED: Corrupt = Corrupt::new(445, "state of a stream that is received");

static HEADER_FIELDS: FieldErrors = FieldErrors::all(BAD_HEADER);
static RECEIVED_FIELDS: FieldErrors = FieldErrors::all(BAD_RECEIVED);
static RECORD_FIELDS: FieldErrors = FieldErrors::all(BAD_RECORD);
