//! The contents of the files: records that identify their writer, their file and their position.
//!
//! ```text
//!   0    4 writer   which writer's file
//!   4    4 index    which record of the file
//!   8    8 file     the stamp of the operation that made the file
//!  16    8 stamp    the stamp of the operation that wrote the record
//!  24 1000 filler   drawn from the four above
//! ```
//! All little-endian. A record that is torn, moved, mixed with another or truncated does not parse.

use std::collections::BTreeMap;

/// Bytes of a record. It divides a page: through a mount, the kernel may split a write at page boundaries,
/// and so an unfinished write still consists of whole records.
pub const RECORD_BYTES: usize = 1024;

/// Where a record came from: the operations that made its file and that wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordStamp {
    pub file: u64,
    pub written: u64,
}

/// All files of one writer, by name.
pub type WriterTree = BTreeMap<String, Vec<RecordStamp>>;

/// A good mix of 64 bits (splitmix64).
pub fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn record(writer: u32, index: u32, stamp: RecordStamp) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.extend(writer.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    bytes.extend(stamp.file.to_le_bytes());
    bytes.extend(stamp.written.to_le_bytes());
    let mut word = mix(stamp.file ^ mix(stamp.written)) ^ mix(u64::from(writer) << 32 | u64::from(index));
    while bytes.len() < RECORD_BYTES {
        word = mix(word);
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// The bytes of `count` records from `index` on.
pub fn records(writer: u32, index: usize, count: usize, stamp: RecordStamp) -> Vec<u8> {
    (index..index + count)
        .flat_map(|index| record(writer, u32::try_from(index).expect("a file has few records"), stamp))
        .collect()
}

/// The stamps of a file's records.
///
/// # Errors
/// The first record that does not parse, and its position.
pub fn parse(writer: u32, bytes: &[u8]) -> Result<Vec<RecordStamp>, String> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut stamps = Vec::new();
    for (index, found) in bytes.chunks(RECORD_BYTES).enumerate() {
        if found.len() < RECORD_BYTES {
            return Err(format!("record {index} ends after {} bytes", found.len()));
        }
        let stamp = RecordStamp { file: word(&found[8..16]), written: word(&found[16..24]) };
        if found != records(writer, index, 1, stamp) {
            return Err(format!("record {index} is not whole: it begins with {:02x?}", &found[..24]));
        }
        stamps.push(stamp);
    }
    Ok(stamps)
}
