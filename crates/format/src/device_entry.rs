//! One entry of the device table in a root.
//!
//! ```text
//!  0  16  uuid
//! 16   4  zones
//! 20   1  state: 1 active, 4 offline, 5 gone
//! 21   1  flags: bit 0 leaving, 1 kept offline, 2 spare
//! 22   2  zero
//! 24   4  joined: epoch
//! 28   4  seen: epoch
//! 32   8  seen: session
//! 40   8  seen: sequence
//! 48   8  life: bytes written
//! 56   8  life: zones reset
//! ```
//! Little-endian.

use crate::decode::only_zeroes;
use crate::root::{RootPoint, is_point};
use crate::{Corrupt, Reader, Uuid};

pub(crate) const ENTRY_BYTES: usize = 64;

const LEAVING: u8 = 1;
const KEPT_OFFLINE: u8 = 2;
const SPARE: u8 = 4;

pub(crate) const TABLE: Corrupt = Corrupt::new(106, "root with an impossible device table");

/// Whether the pool uses a device. 2 and 3 on flash are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceUse {
    /// The session that wrote the root writes the device.
    Active,
    /// The session that wrote the root does not write the device: it is missing, has failed, or was taken
    /// offline.
    Offline,
    /// The device was removed from the pool. Its entry keeps the indexes of the others.
    Gone,
}

impl DeviceUse {
    fn code(self) -> u8 {
        match self {
            DeviceUse::Active => 1,
            DeviceUse::Offline => 4,
            DeviceUse::Gone => 5,
        }
    }
}

/// What sessions of the pool have done to a device, as far as roots have recorded it. A session that ends in
/// a crash does not count from its last root on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceLife {
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Zones of it that were reset. On a conventional device a reset is a discard.
    pub resets: u64,
}

/// One entry of the device table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceEntry {
    /// The device's permanent name.
    pub uuid: Uuid,
    /// Zones on the device, the two root zones included.
    pub zones: u32,
    /// Whether the session that wrote the root writes the device.
    pub state: DeviceUse,
    /// Whether the device is to leave the pool: no zone of it is taken any more, and its columns move to
    /// other devices. A device that is gone is not leaving.
    pub is_leaving: bool,
    /// Whether the pool does not use the device, present or not, until somebody takes it online. Such a
    /// device is offline.
    pub is_kept_offline: bool,
    /// Whether the device waits for the loss of another one: no zone of it is taken before it takes the place
    /// of that one. A spare does not leave, and is not gone.
    pub is_spare: bool,
    /// Epoch of the session in which the device joined the pool, not zero.
    pub joined: u32,
    /// The newest session of which the device is known to hold a root, and the newest root that this session
    /// wrote while it wrote the device. The device may hold an older one.
    pub seen: RootPoint,
    /// The counts of the device since it joined. It never decreases from root to root.
    pub life: DeviceLife,
}

impl DeviceEntry {
    /// Appends the entry.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.is_possible(), "a reader accepts the entry");
        out.extend_from_slice(&self.uuid.get().to_le_bytes());
        out.extend_from_slice(&self.zones.to_le_bytes());
        let flags = flag(self.is_leaving, LEAVING)
            | flag(self.is_kept_offline, KEPT_OFFLINE)
            | flag(self.is_spare, SPARE);
        out.extend_from_slice(&[self.state.code(), flags, 0, 0]);
        out.extend_from_slice(&self.joined.to_le_bytes());
        out.extend_from_slice(&self.seen.epoch.to_le_bytes());
        out.extend_from_slice(&self.seen.session.to_le_bytes());
        out.extend_from_slice(&self.seen.sequence.to_le_bytes());
        out.extend_from_slice(&self.life.written_bytes.to_le_bytes());
        out.extend_from_slice(&self.life.resets.to_le_bytes());
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// Code 106.
    pub(crate) fn decode(c: &mut Reader<'_>) -> Result<DeviceEntry, Corrupt> {
        let uuid = Uuid::new(c.u128()?).ok_or(TABLE)?;
        let zones = c.u32()?;
        let state = match c.u8()? {
            1 => DeviceUse::Active,
            4 => DeviceUse::Offline,
            5 => DeviceUse::Gone,
            _ => return Err(TABLE),
        };
        let flags = c.u8()?;
        let (is_leaving, is_kept_offline) = (flags & LEAVING != 0, flags & KEPT_OFFLINE != 0);
        let is_spare = flags & SPARE != 0;
        only_zeroes(&c.array::<2>()?, TABLE)?;
        let joined = c.u32()?;
        let seen = RootPoint { epoch: c.u32()?, session: c.u64()?, sequence: c.u64()? };
        let life = DeviceLife { written_bytes: c.u64()?, resets: c.u64()? };
        let is_known = flags & !(LEAVING | KEPT_OFFLINE | SPARE) == 0;
        let entry =
            DeviceEntry { uuid, zones, state, is_leaving, is_kept_offline, is_spare, joined, seen, life };
        if is_known && entry.is_possible() { Ok(entry) } else { Err(TABLE) }
    }

    /// Whether the state and the flags go together, and no number is zero that must not be.
    fn is_possible(&self) -> bool {
        (!self.is_leaving || self.state != DeviceUse::Gone)
            && (!self.is_kept_offline || self.state == DeviceUse::Offline)
            && (!self.is_spare || (self.state != DeviceUse::Gone && !self.is_leaving))
            && self.joined > 0
            && is_point(&self.seen)
    }
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}
