//! The health record: errors and damage of a pool that outlast a session.
//!
//! ```text
//!  0   1  tag, 3
//!  1   *  blocks that were rebuilt from parity (varint)
//!  *   *  number of devices (varint, at most 512), then for each its errors and its bad blocks (varints)
//!  *   1  1 if there was a scrub, else 0
//!  *   *  of a scrub: its end in seconds since 1970 (zigzag varint), damaged segments, segments that are not
//!         repaired, missing devices, bad blocks at its end (varints)
//!  *   *  number of damaged files with a path here (varint, at most 16), of further ones (varint), then each
//!         path: its length (varint, 1 to 4096) and its bytes
//! ```

use super::{BAD_CONTENT, BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

/// Most devices of a health record: those of a pool.
const DEVICES_MAX: usize = 512;

/// Most damaged files that the record names.
pub const DAMAGED_FILES_MAX: usize = 16;

/// Longest path of a damaged file, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Errors and damage since the pool was made, and the last scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HealthRecord {
    /// Blocks that were reconstructed from parity.
    pub rebuilt_blocks: u64,
    /// By index of the device. Devices at the end without errors may be absent.
    pub devices: Vec<DeviceErrors>,
    /// The last scrub that ended.
    pub scrub: Option<LastScrub>,
    /// Paths of files that have lost bytes, at most [`DAMAGED_FILES_MAX`].
    pub damaged_files: Vec<Vec<u8>>,
    /// Number of further damaged files.
    pub more_damaged_files: u64,
}

/// Errors of one device since the pool was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceErrors {
    /// Operations that failed or had no answer in time.
    pub errors: u64,
    /// Blocks that did not match their checksum.
    pub bad_blocks: u64,
}

/// The outcome of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastScrub {
    /// Its end, in seconds since 1970.
    pub ended_seconds: i64,
    /// Segments in which something did not verify, or with less redundancy than the devices allowed.
    pub damaged_segments: u64,
    /// Segments among them that could not be repaired.
    pub unrepaired_segments: u64,
    /// Devices that were missing or had failed.
    pub lost_devices: u64,
    /// Sum of the bad blocks of all devices at its end.
    pub bad_blocks: u64,
}

impl HealthRecord {
    /// Sum of the bad blocks of all devices.
    #[must_use]
    pub fn bad_blocks(&self) -> u64 {
        self.devices.iter().fold(0, |sum, device| sum.saturating_add(device.bad_blocks))
    }

    /// Appends the record. Files beyond the limit, and paths that are too long, count as further ones.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(3);
        varint::put(out, self.rebuilt_blocks);
        let devices = self.devices.get(..DEVICES_MAX).unwrap_or(&self.devices);
        varint::put(out, devices.len() as u64);
        for device in devices {
            varint::put(out, device.errors);
            varint::put(out, device.bad_blocks);
        }
        out.push(u8::from(self.scrub.is_some()));
        if let Some(scrub) = &self.scrub {
            varint::put_signed(out, scrub.ended_seconds);
            for number in
                [scrub.damaged_segments, scrub.unrepaired_segments, scrub.lost_devices, scrub.bad_blocks]
            {
                varint::put(out, number);
            }
        }
        let fits = |path: &&Vec<u8>| (1..=PATH_BYTES_MAX).contains(&path.len());
        let listed: Vec<&Vec<u8>> = self.damaged_files.iter().filter(fits).take(DAMAGED_FILES_MAX).collect();
        varint::put(out, listed.len() as u64);
        let unlisted = (self.damaged_files.len() - listed.len()) as u64;
        varint::put(out, self.more_damaged_files.saturating_add(unlisted));
        for path in listed {
            varint::put(out, path.len() as u64);
            out.extend_from_slice(path);
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403, 412 and 414.
    pub fn decode(bytes: &[u8]) -> Result<HealthRecord, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 3 {
            return Err(BAD_TAG);
        }
        let mut record = HealthRecord { rebuilt_blocks: reader.varint()?, ..HealthRecord::default() };
        for _ in 0..count(reader.varint()?, DEVICES_MAX)? {
            record.devices.push(DeviceErrors { errors: reader.varint()?, bad_blocks: reader.varint()? });
        }
        record.scrub = match reader.u8()? {
            0 => None,
            1 => Some(LastScrub {
                ended_seconds: reader.signed()?,
                damaged_segments: reader.varint()?,
                unrepaired_segments: reader.varint()?,
                lost_devices: reader.varint()?,
                bad_blocks: reader.varint()?,
            }),
            _ => return Err(BAD_CONTENT),
        };
        let files = count(reader.varint()?, DAMAGED_FILES_MAX)?;
        record.more_damaged_files = reader.varint()?;
        for _ in 0..files {
            let len = count(reader.varint()?, PATH_BYTES_MAX)?;
            if len == 0 {
                return Err(BAD_CONTENT);
            }
            record.damaged_files.push(reader.bytes(len)?.to_vec());
        }
        reader.end()?;
        Ok(record)
    }
}

fn count(number: u64, max: usize) -> Result<usize, Corrupt> {
    usize::try_from(number).ok().filter(|number| *number <= max).ok_or(BAD_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let record = HealthRecord {
            rebuilt_blocks: 1,
            devices: vec![DeviceErrors { errors: 2, bad_blocks: 300 }],
            scrub: Some(LastScrub { ended_seconds: 5, damaged_segments: 3, ..LastScrub::default() }),
            damaged_files: vec![b"/a".to_vec()],
            more_damaged_files: 4,
        };
        let mut out = Vec::new();
        record.encode(&mut out);
        assert_eq!(out, [3, 1, 1, 2, 0xac, 2, 1, 10, 3, 0, 0, 0, 1, 4, 2, b'/', b'a']);
        assert_eq!(HealthRecord::decode(&out), Ok(record));
    }

    #[test]
    fn impossible_records_are_refused() {
        for bytes in [
            &[][..],
            &[2],
            &[3, 0, 0, 2],
            &[3, 0, 0, 0, 17, 0],
            &[3, 0, 0, 0, 1, 0, 0],
            &[3, 0, 0, 0, 0, 0, 9],
        ] {
            assert!(HealthRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let tagged = [&[3], &bytes[..]].concat();
            if let Ok(record) = HealthRecord::decode(&tagged) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(&out, &tagged);
            }
        }
    }
}
