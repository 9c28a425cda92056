//! A root: the pool's label, the device table and a payload for the client. Roots are appended in zones 0 and
//! 1 of each device.
//!
//! A root is one header block and then its body, padded with zeroes to whole blocks.
//!
//! ```text
//! header                                          body
//! offset  bytes                                   offset  bytes
//!      0      4  CRC32C of bytes 4 to 4095             0    24n  device table, in index order
//!      4      4  magic "WfRt"                        24n      …  payload
//!      8      1  version: 1
//!      9      1  m, parity columns                device table entry
//!     10      2  k, data columns, not zero        offset  bytes
//!     12      2  index of this device                  0     16  device uuid
//!     14      2  n, devices in the table              16      4  zones on the device
//!     16     16  pool uuid                            20      4  zero
//!     32     16  uuid of this device
//!     48      8  sequence, not zero
//!     56      4  epoch, not zero
//!     60      4  zone_blocks: blocks per zone
//!     64      4  body bytes
//!     68      4  CRC32C of the body
//!     72      8  time the pool was made, seconds since 1970 (i64)
//!     80   4016  zero
//! ```
//! Little-endian.

use warpfire_units::{BLOCK_BYTES, DeviceIndex, PARITY_MAX};

use crate::decode::only_zeroes;
use crate::{Corrupt, FieldErrors, Reader, Uuid, crc32c};

const MAGIC: [u8; 4] = *b"WfRt";
const VERSION: u8 = 1;
const ENTRY_BYTES: usize = 24;

/// Fewest blocks in a zone.
pub const ZONE_BLOCKS_MIN: u32 = 16;

/// Most devices in a pool. A segment uses at most 250 of them.
pub const DEVICES_MAX: usize = 512;

const CHECKSUM: Corrupt = Corrupt::new(100, "root header does not match its checksum");
const MAGIC_BAD: Corrupt = Corrupt::new(101, "not a root header");
const VERSION_BAD: Corrupt = Corrupt::new(102, "root of an unknown version");
const FIELD: Corrupt = Corrupt::new(103, "root header with an impossible field");
const PADDING: Corrupt = Corrupt::new(104, "root padding is not zero");
const BODY: Corrupt = Corrupt::new(105, "root body does not match its checksum");
const TABLE: Corrupt = Corrupt::new(106, "root with an impossible device table");

static HEADER_FIELDS: FieldErrors = FieldErrors::all(MAGIC_BAD);
static TABLE_FIELDS: FieldErrors = FieldErrors::all(TABLE);

/// One entry of the device table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceEntry {
    /// The device's permanent name.
    pub uuid: Uuid,
    /// Zones on the device, the two root zones included.
    pub zones: u32,
}

/// The decoded header block of a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootHeader {
    /// Data columns of new bulk segments.
    pub data: u16,
    /// Parity columns of new segments.
    pub parity: u8,
    /// The device that this copy lies on.
    pub device: DeviceIndex,
    /// That device's uuid.
    pub device_uuid: Uuid,
    /// Devices in the table.
    pub device_count: u16,
    /// The pool.
    pub pool: Uuid,
    /// The root's number. Numbers rise but may skip: the number of a root that could not be written is not
    /// used again.
    pub sequence: u64,
    /// The number of the session that wrote the root. A session is one opening of the pool for writing.
    pub epoch: u32,
    /// Blocks in a zone.
    pub zone_blocks: u32,
    /// Bytes of body, padding not counted.
    pub body_bytes: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
    /// When the pool was made, seconds since 1970.
    pub made_seconds: i64,
}

/// The body of a root: the device table, then the payload.
#[must_use]
pub fn encode_body(devices: &[DeviceEntry], payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(table_bytes(devices.len()) + payload.len());
    for d in devices {
        body.extend_from_slice(&d.uuid.get().to_le_bytes());
        body.extend_from_slice(&d.zones.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
    }
    body.extend_from_slice(payload);
    body
}

/// Bytes of a table of `devices` devices.
#[must_use]
pub const fn table_bytes(devices: usize) -> usize {
    ENTRY_BYTES * devices
}

impl RootHeader {
    /// Blocks of the whole root: the header and the padded body.
    #[must_use]
    pub fn record_blocks(&self) -> u64 {
        1 + u64::from(self.body_bytes).div_ceil(BLOCK_BYTES as u64)
    }

    /// Writes the header into `block`, which is one block long.
    ///
    /// # Panics
    /// If [`RootHeader::decode`] would refuse the header.
    pub fn encode(&self, block: &mut [u8]) {
        assert_eq!(block.len(), BLOCK_BYTES, "a header is one block");
        assert!(self.verify_fields().is_ok(), "only a root that decodes is written");
        block.fill(0);
        block[4..8].copy_from_slice(&MAGIC);
        block[8] = VERSION;
        block[9] = self.parity;
        block[10..12].copy_from_slice(&self.data.to_le_bytes());
        block[12..14].copy_from_slice(&self.device.0.to_le_bytes());
        block[14..16].copy_from_slice(&self.device_count.to_le_bytes());
        block[16..32].copy_from_slice(&self.pool.get().to_le_bytes());
        block[32..48].copy_from_slice(&self.device_uuid.get().to_le_bytes());
        block[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        block[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        block[60..64].copy_from_slice(&self.zone_blocks.to_le_bytes());
        block[64..68].copy_from_slice(&self.body_bytes.to_le_bytes());
        block[68..72].copy_from_slice(&self.body_crc.to_le_bytes());
        block[72..80].copy_from_slice(&self.made_seconds.to_le_bytes());
        // The checksum covers everything after itself, so it is computed last.
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Verifies and reads a header block. The body is verified by [`RootHeader::decode_body`].
    ///
    /// # Errors
    /// Codes 100 to 104.
    pub fn decode(block: &[u8]) -> Result<RootHeader, Corrupt> {
        let mut c = Reader::new(block, &HEADER_FIELDS);
        let stored = c.u32()?;
        // The magic is compared before the checksum: a block of another kind is "not a root", not a damaged
        // one.
        if c.clone().array()? != MAGIC || block.len() != BLOCK_BYTES {
            return Err(MAGIC_BAD);
        }
        if crc32c(c.rest()) != stored {
            return Err(CHECKSUM);
        }
        c.u32()?;
        if c.u8()? != VERSION {
            return Err(VERSION_BAD);
        }
        let parity = c.u8()?;
        let data = c.u16()?;
        let device = DeviceIndex(c.u16()?);
        let device_count = c.u16()?;
        let pool = Uuid::new(c.u128()?).ok_or(FIELD)?;
        let device_uuid = Uuid::new(c.u128()?).ok_or(FIELD)?;
        let header = RootHeader {
            data,
            parity,
            device,
            device_uuid,
            device_count,
            pool,
            sequence: c.u64()?,
            epoch: c.u32()?,
            zone_blocks: c.u32()?,
            body_bytes: c.u32()?,
            body_crc: c.u32()?,
            made_seconds: i64::from_le_bytes(c.array()?),
        };
        header.verify_fields()?;
        only_zeroes(c.rest(), PADDING)?;
        Ok(header)
    }

    fn verify_fields(&self) -> Result<(), Corrupt> {
        let shape = self.data > 0
            && usize::from(self.data) + usize::from(self.parity) <= warpfire_units::COLUMNS_MAX
            && usize::from(self.parity) <= PARITY_MAX
            && self.device.0 < self.device_count
            && usize::from(self.device_count) <= DEVICES_MAX;
        let place = self.zone_blocks >= ZONE_BLOCKS_MIN
            && self.record_blocks() <= u64::from(self.zone_blocks)
            && table_bytes(usize::from(self.device_count)) as u64 <= u64::from(self.body_bytes);
        let counted = self.sequence > 0 && self.epoch > 0;
        if shape && place && counted { Ok(()) } else { Err(FIELD) }
    }

    /// Verifies a body with its padding and splits it into the device table and the payload.
    ///
    /// # Errors
    /// Codes 104 to 106.
    pub fn decode_body<'a>(&self, padded: &'a [u8]) -> Result<(Vec<DeviceEntry>, &'a [u8]), Corrupt> {
        let len = usize::try_from(self.body_bytes).map_err(|_| BODY)?;
        let (body, padding) = padded.split_at_checked(len).ok_or(BODY)?;
        if crc32c(body) != self.body_crc {
            return Err(BODY);
        }
        only_zeroes(padding, PADDING)?;
        let mut c = Reader::new(body, &TABLE_FIELDS);
        let mut devices = Vec::with_capacity(usize::from(self.device_count));
        for _ in 0..self.device_count {
            let uuid = Uuid::new(c.u128()?).ok_or(TABLE)?;
            let zones = c.u32()?;
            if c.u32()? != 0 {
                return Err(TABLE);
            }
            devices.push(DeviceEntry { uuid, zones });
        }
        // Each device stands in the table once, and the header names the device at its own index.
        let mut uuids: Vec<Uuid> = devices.iter().map(|d| d.uuid).collect();
        uuids.sort_unstable();
        uuids.dedup();
        let own = devices.get(usize::from(self.device.0)).map(|d| d.uuid);
        if uuids.len() != devices.len() || own != Some(self.device_uuid) {
            return Err(TABLE);
        }
        Ok((devices, c.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<DeviceEntry> {
        (1..=3).map(|n| DeviceEntry { uuid: Uuid::new(n).unwrap(), zones: 16 }).collect()
    }

    fn sample(body: &[u8]) -> RootHeader {
        RootHeader {
            data: 2,
            parity: 1,
            device: DeviceIndex(1),
            device_uuid: Uuid::new(2).unwrap(),
            device_count: 3,
            pool: Uuid::new(0x99).unwrap(),
            sequence: 5,
            epoch: 4,
            zone_blocks: 256,
            body_bytes: u32::try_from(body.len()).unwrap(),
            body_crc: crc32c(body),
            made_seconds: -1,
        }
    }

    #[test]
    fn golden_bytes() {
        let body = encode_body(&table(), b"state");
        assert_eq!(body.len(), 77);
        assert_eq!(body[24..48], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
        let mut block = vec![0xEE; BLOCK_BYTES];
        sample(&body).encode(&mut block);
        let golden = [
            b'W', b'f', b'R', b't', 1, 1, 2, 0, 1, 0, 3, 0, // magic to number of devices
            0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // pool
            2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // device
            5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 77, 0, 0, 0, // sequence to body bytes
        ];
        assert_eq!(block[4..68], golden);
        assert_eq!(block[72..80], [255; 8]);
        assert_eq!(RootHeader::decode(&block), Ok(sample(&body)));
    }

    #[test]
    fn a_body_decodes_only_with_its_own_bytes_and_zero_padding() {
        let mut padded = encode_body(&table(), b"state");
        let header = sample(&padded);
        padded.resize(BLOCK_BYTES, 0);
        assert_eq!(header.decode_body(&padded), Ok((table(), &b"state"[..])));
        for at in 0..BLOCK_BYTES {
            padded[at] ^= 1;
            let wanted = if at < 77 { BODY } else { PADDING };
            assert_eq!(header.decode_body(&padded), Err(wanted), "byte {at}");
            padded[at] ^= 1;
        }
        assert_eq!(header.decode_body(&padded[..76]), Err(BODY));
    }

    #[test]
    fn a_table_names_each_device_once_and_this_one_in_its_place() {
        let mut twice = table();
        twice[2] = twice[0];
        let mut moved = table();
        moved.swap(0, 1);
        for bad in [twice, moved] {
            let body = encode_body(&bad, b"");
            assert_eq!(sample(&body).decode_body(&body), Err(TABLE));
        }
    }

    fn resealed(block: &[u8], at: usize, value: u8) -> Vec<u8> {
        let mut bad = block.to_vec();
        bad[at] = value;
        let crc = crc32c(&bad[4..]);
        bad[..4].copy_from_slice(&crc.to_le_bytes());
        bad
    }

    #[test]
    fn each_field_is_held_to_its_range() {
        let mut block = vec![0; BLOCK_BYTES];
        sample(&encode_body(&table(), b"")).encode(&mut block);
        assert_eq!(RootHeader::decode(&vec![0; BLOCK_BYTES]), Err(MAGIC_BAD));
        assert_eq!(RootHeader::decode(&block[..80]), Err(MAGIC_BAD));
        let mut torn = block.clone();
        torn[600] = 1;
        assert_eq!(RootHeader::decode(&torn), Err(CHECKSUM));
        let cases = [
            (8, 2, VERSION_BAD),
            (9, 9, FIELD),
            (10, 0, FIELD),
            (12, 3, FIELD),
            (15, 2, FIELD),
            (16, 0, FIELD),
            (32, 0, FIELD),
            (48, 0, FIELD),
            (56, 0, FIELD),
            (61, 0, FIELD),
            (64, 71, FIELD),
            (66, 16, FIELD),
            (80, 1, PADDING),
        ];
        for (at, value, error) in cases {
            assert_eq!(RootHeader::decode(&resealed(&block, at, value)), Err(error), "byte {at} is {value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            edits in proptest::collection::vec((8usize..88, 0u8..=255), 0..12),
            body in proptest::collection::vec(0u8..=2, 0..200),
        ) {
            let mut block = vec![0; BLOCK_BYTES];
            sample(&encode_body(&table(), b"")).encode(&mut block);
            for (at, value) in edits {
                block = resealed(&block, at, value);
            }
            if let Ok(mut h) = RootHeader::decode(&block) {
                let mut encoded_again = vec![0; BLOCK_BYTES];
                h.encode(&mut encoded_again);
                proptest::prop_assert_eq!(encoded_again, block);
                h.body_bytes = u32::try_from(body.len()).unwrap();
                h.body_crc = crc32c(&body);
                let _decoded_or_refused = h.decode_body(&body);
            }
        }
    }
}
