//! A root: the pool's label, the device table and a payload for the client. Roots are appended in zones 0 and
//! 1 of each device.
//!
//! A root is one header block and then its body, padded with zeroes to whole blocks.
//!
//! ```text
//! header                                          body
//! offset  bytes                                   offset  bytes
//!      0      4  CRC32C of bytes 4 to 4095             0    64n  device table, in index order
//!      4      4  magic "WfRt"                        64n      …  payload
//!      8      1  version: 2
//!      9      1  m, parity columns                device table entry: `device_entry.rs`
//!     10      2  k, data columns, not zero
//!     12      2  index of this device
//!     14      2  n, devices in the table
//!     16     16  pool uuid
//!     32     16  uuid of this device
//!     48      8  sequence, not zero
//!     56      4  epoch, not zero
//!     60      4  zone_blocks: blocks per zone
//!     64      4  body bytes
//!     68      4  CRC32C of the body
//!     72      8  time the pool was made,
//!                seconds since 1970 (i64)          earlier session
//!     80      8  features needed to read           offset  bytes
//!     88      8  features needed to write               0      4  epoch
//!     96     64  label, UTF-8, zero-padded              4      4  flags as at 176
//!    160      8  configuration version                  8      8  session
//!    168      8  session, not zero                     16      8  sequence of its last root
//!    176      1  flags: bit 0 inherited, bit 1 narrow
//!    177      1  c, earlier sessions, at most 16
//!    178      6  zero
//!    184    24c  earlier sessions, newest first
//! 184+24c    24  wishes, if the feature `wishes` is set: `root_wishes.rs`
//!       …     …  zero
//! ```
//! Little-endian.

use warpfire_units::{BLOCK_BYTES, DeviceIndex, PARITY_MAX};

pub use crate::device_entry::{DeviceEntry, DeviceLife, DeviceUse};
pub use crate::pool_label::PoolLabel;
pub use crate::root_wishes::{RootWishes, SPARE_SPACE_MAX};
pub use crate::unsupported::{FeatureBits, Unsupported};

use crate::decode::only_zeroes;
use crate::device_entry::{ENTRY_BYTES, TABLE};
use crate::root_wishes::{WISHES, WISHES_BYTES};
use crate::{Corrupt, FieldErrors, Reader, Uuid, crc32c};

const MAGIC: [u8; 4] = *b"WfRt";
pub(crate) const VERSION: u8 = 2;

/// Earlier sessions that a root names, at most.
pub const EARLIER_MAX: usize = 16;

/// The feature of a root with wishes: a version that does not know them must not read the pool.
const WISHES_FEATURE: u64 = 1;

/// The feature of a root that counts writes to its devices. Without it the bytes of these counts are
/// zero, as in roots of versions before it.
const LIVES_FEATURE: u64 = 2;

/// Features needed to read that this version knows.
const KNOWN_FEATURES: u64 = WISHES_FEATURE | LIVES_FEATURE;

/// Features needed to write that this version knows. None has a bit yet.
const KNOWN_WRITE_FEATURES: u64 = 0;

const INHERITED: u8 = 1;
const NARROW: u8 = 2;

/// Where a header has the number of earlier sessions, and where these begin.
pub(crate) const EARLIER_COUNT_AT: usize = 177;
pub(crate) const EARLIER_AT: usize = 184;
pub(crate) const EARLIER_BYTES: usize = 24;

/// Most bytes of a header that are not always zero.
pub(crate) const HEAD_BYTES_MAX: usize = EARLIER_AT + EARLIER_BYTES * EARLIER_MAX + WISHES_BYTES;

/// Where a header has the features that are needed to read.
const FEATURES_AT: usize = 80;

/// Bytes of a header up to those that are always zero. `head` is its beginning; `None` if it is too short to
/// say.
pub(crate) fn head_bytes(head: &[u8]) -> Option<usize> {
    let earlier = usize::from(*head.get(EARLIER_COUNT_AT)?);
    let features = head.get(FEATURES_AT..FEATURES_AT + 8)?.try_into().ok()?;
    let wishes = if u64::from_le_bytes(features) & WISHES_FEATURE == 0 { 0 } else { WISHES_BYTES };
    Some((EARLIER_AT + EARLIER_BYTES * earlier + wishes).min(BLOCK_BYTES))
}

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
const FEATURES: Corrupt = Corrupt::new(107, "root of a pool that needs features unknown to this version");
const HISTORY: Corrupt = Corrupt::new(109, "root with an impossible history of sessions");

static HEADER_FIELDS: FieldErrors = FieldErrors::all(MAGIC_BAD);
static TABLE_FIELDS: FieldErrors = FieldErrors::all(TABLE);

/// A root by its place in the history of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootPoint {
    /// Epoch of the session that wrote the root, not zero.
    pub epoch: u32,
    /// Random number of that session, not zero. Two sessions may have one epoch if each had other devices;
    /// their numbers differ.
    pub session: u64,
    /// The root's number, not zero.
    pub sequence: u64,
}

/// A session that a later session goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlierSession {
    /// The root that the later session began with.
    pub last: RootPoint,
    /// Whether that root is narrow ([`RootHeader::is_narrow`]).
    pub is_narrow: bool,
    /// Whether that root is inherited ([`RootHeader::is_inherited`]).
    pub is_inherited: bool,
}

/// Whether an intact root header is of a pool that this version cannot read.
#[must_use]
pub fn unsupported(block: &[u8]) -> Option<Unsupported> {
    let mut c = Reader::new(block, &HEADER_FIELDS);
    let stored = c.u32().ok()?;
    let is_intact =
        block.len() == BLOCK_BYTES && c.clone().array().ok()? == MAGIC && crc32c(c.rest()) == stored;
    if !is_intact {
        return None;
    }
    let version = *block.get(8)?;
    let features = u64::from_le_bytes(block.get(FEATURES_AT..FEATURES_AT + 8)?.try_into().ok()?);
    match (version, features & !KNOWN_FEATURES) {
        (VERSION, 0) => None,
        (VERSION, unknown) => Some(Unsupported::Features(unknown)),
        (other, _) => Some(Unsupported::Version(other)),
    }
}

/// The decoded header block of a root.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// Features of which a writer has to know each. A reader ignores them.
    pub write_features: u64,
    /// The name that people gave the pool.
    pub label: PoolLabel,
    /// Number of the pool's configuration: k, m, wishes, label and the membership of devices. Each change
    /// adds one.
    pub config_version: u64,
    /// What the pool wishes for older segments and for its free space.
    pub wishes: RootWishes,
    /// Whether an entry of the device table counts something ([`counts_lives`]).
    pub counts_lives: bool,
    /// Random number of the session that wrote the root, not zero.
    pub session: u64,
    /// Whether the root only repeats the payload of an earlier session's root: the session has written
    /// nothing else yet.
    pub is_inherited: bool,
    /// Whether the session wrote m devices or fewer, so that the root could not be on m + 1.
    pub is_narrow: bool,
    /// The sessions that the state comes from, newest first: at most 16.
    pub earlier: Vec<EarlierSession>,
}

/// The body of a root: the device table, then the payload.
#[must_use]
pub fn encode_body(devices: &[DeviceEntry], payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(table_bytes(devices.len()) + payload.len());
    devices.iter().for_each(|entry| entry.encode(&mut body));
    body.extend_from_slice(payload);
    body
}

/// Whether an entry of the table counts something.
#[must_use]
pub fn counts_lives(table: &[DeviceEntry]) -> bool {
    table.iter().any(|entry| entry.life != DeviceLife::default())
}

/// Bytes of a table of `devices` devices.
#[must_use]
pub const fn table_bytes(devices: usize) -> usize {
    ENTRY_BYTES * devices
}

impl RootHeader {
    /// The root's place in the history of the pool.
    #[must_use]
    pub fn point(&self) -> RootPoint {
        RootPoint { epoch: self.epoch, session: self.session, sequence: self.sequence }
    }

    /// This root as an earlier one of a later session.
    #[must_use]
    pub fn as_earlier(&self) -> EarlierSession {
        let (is_narrow, is_inherited) = (self.is_narrow, self.is_inherited);
        EarlierSession { last: self.point(), is_narrow, is_inherited }
    }

    /// The root that the state comes from: itself, or the root that it inherited.
    #[must_use]
    pub fn origin(&self) -> EarlierSession {
        let own = self.as_earlier();
        let inherited = self.earlier.iter().find(|e| self.is_inherited && !e.is_inherited);
        inherited.copied().unwrap_or(own)
    }

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
        let wishes = if self.wishes == RootWishes::NONE { 0 } else { WISHES_FEATURE };
        let features = wishes | if self.counts_lives { LIVES_FEATURE } else { 0 };
        block[FEATURES_AT..FEATURES_AT + 8].copy_from_slice(&features.to_le_bytes());
        block[88..96].copy_from_slice(&self.write_features.to_le_bytes());
        block[96..160].copy_from_slice(self.label.as_bytes());
        block[160..168].copy_from_slice(&self.config_version.to_le_bytes());
        block[168..176].copy_from_slice(&self.session.to_le_bytes());
        block[176] = flag(self.is_inherited, INHERITED) | flag(self.is_narrow, NARROW);
        block[EARLIER_COUNT_AT] =
            u8::try_from(self.earlier.len()).expect("the number of sessions was verified");
        for (entry, e) in block[EARLIER_AT..].chunks_exact_mut(EARLIER_BYTES).zip(&self.earlier) {
            entry[..4].copy_from_slice(&e.last.epoch.to_le_bytes());
            entry[4] = flag(e.is_inherited, INHERITED) | flag(e.is_narrow, NARROW);
            entry[8..16].copy_from_slice(&e.last.session.to_le_bytes());
            entry[16..].copy_from_slice(&e.last.sequence.to_le_bytes());
        }
        if self.wishes != RootWishes::NONE {
            self.wishes.encode(&mut block[EARLIER_AT + EARLIER_BYTES * self.earlier.len()..]);
        }
        // The checksum covers everything after itself, so it is computed last.
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Verifies and reads a header block. The body is verified by [`RootHeader::decode_body`].
    ///
    /// # Errors
    /// Codes 100 to 104, 107 to 109 and 113.
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
        let (sequence, epoch) = (c.u64()?, c.u32()?);
        let (zone_blocks, body_bytes, body_crc) = (c.u32()?, c.u32()?, c.u32()?);
        let made_seconds = i64::from_le_bytes(c.array()?);
        let features = c.u64()?;
        if features & !KNOWN_FEATURES != 0 {
            return Err(FEATURES);
        }
        let write_features = c.u64()?;
        let label = PoolLabel::decode(c.array()?)?;
        let (config_version, session) = (c.u64()?, c.u64()?);
        let (flags, count) = (c.u8()?, c.u8()?);
        only_zeroes(&c.array::<6>()?, PADDING)?;
        if flags & !(INHERITED | NARROW) != 0 || usize::from(count) > EARLIER_MAX {
            return Err(HISTORY);
        }
        let earlier = (0..count).map(|_| decode_earlier(&mut c)).collect::<Result<_, _>>()?;
        let wishes = match features & WISHES_FEATURE {
            0 => RootWishes::NONE,
            _ => RootWishes::decode(&mut c)?,
        };
        let header = RootHeader {
            data,
            parity,
            device,
            device_uuid,
            device_count,
            pool,
            sequence,
            epoch,
            zone_blocks,
            body_bytes,
            body_crc,
            made_seconds,
            write_features,
            label,
            config_version,
            wishes,
            counts_lives: features & LIVES_FEATURE != 0,
            session,
            is_inherited: flags & INHERITED != 0,
            is_narrow: flags & NARROW != 0,
            earlier,
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
        if !(shape && place && counted) {
            return Err(FIELD);
        }
        if !self.wishes.is_possible() {
            return Err(WISHES);
        }
        // Epochs fall, and an inherited root names the session that it comes from.
        let mut epoch = self.epoch;
        let falls = self.earlier.iter().all(|e| {
            let is_earlier = e.last.epoch < epoch;
            epoch = e.last.epoch;
            is_earlier && is_point(&e.last)
        });
        let is_known = !self.is_inherited || self.earlier.iter().any(|e| !e.is_inherited);
        let is_short = self.earlier.len() <= EARLIER_MAX;
        if falls && is_known && is_short && is_point(&self.point()) { Ok(()) } else { Err(HISTORY) }
    }

    /// Features that a writer needs and this version does not know.
    #[must_use]
    pub fn unknown_write_features(&self) -> u64 {
        self.write_features & !KNOWN_WRITE_FEATURES
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
            devices.push(DeviceEntry::decode(&mut c)?);
        }
        // Each device stands in the table once, and the header names the device at its own index.
        let mut uuids: Vec<Uuid> = devices.iter().map(|d| d.uuid).collect();
        uuids.sort_unstable();
        uuids.dedup();
        let own = devices.get(usize::from(self.device.0)).map(|d| d.uuid);
        if uuids.len() != devices.len() || own != Some(self.device_uuid) {
            return Err(TABLE);
        }
        if counts_lives(&devices) != self.counts_lives {
            return Err(TABLE);
        }
        Ok((devices, c.rest()))
    }
}

/// The bit, if it is set.
fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

/// Zero is never valid.
pub(crate) fn is_point(p: &RootPoint) -> bool {
    p.epoch > 0 && p.session > 0 && p.sequence > 0
}

fn decode_earlier(c: &mut Reader<'_>) -> Result<EarlierSession, Corrupt> {
    let (epoch, flags, session, sequence) = (c.u32()?, c.u32()?, c.u64()?, c.u64()?);
    if flags & !u32::from(NARROW | INHERITED) != 0 {
        return Err(HISTORY);
    }
    let has = |flag: u8| flags & u32::from(flag) != 0;
    let last = RootPoint { epoch, session, sequence };
    Ok(EarlierSession { last, is_narrow: has(NARROW), is_inherited: has(INHERITED) })
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn point(epoch: u32, session: u64, sequence: u64) -> RootPoint {
        RootPoint { epoch, session, sequence }
    }

    pub(crate) fn table() -> Vec<DeviceEntry> {
        let entry = |n: u32| DeviceEntry {
            uuid: Uuid::new(n.into()).unwrap(),
            zones: 16,
            state: if n == 3 { DeviceUse::Offline } else { DeviceUse::Active },
            is_leaving: n == 3,
            is_kept_offline: n == 3,
            is_spare: false,
            joined: 1,
            seen: point(n, 0x77, 6),
            life: DeviceLife::default(),
        };
        (1..=3).map(entry).collect()
    }

    pub(crate) fn sample(body: &[u8]) -> RootHeader {
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
            write_features: 0x40,
            label: PoolLabel::new("tank é").unwrap(),
            config_version: 3,
            wishes: RootWishes::NONE,
            counts_lives: false,
            session: 0x55,
            is_inherited: true,
            is_narrow: false,
            earlier: vec![
                EarlierSession { last: point(3, 0x44, 4), is_narrow: true, is_inherited: true },
                EarlierSession { last: point(1, 0x33, 2), is_narrow: false, is_inherited: false },
            ],
        }
    }

    pub(crate) fn body() -> Vec<u8> {
        encode_body(&table(), b"state")
    }
}

#[cfg(test)]
mod tests;
