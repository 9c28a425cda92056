//! Every byte on flash: encode, decode, verify, and nothing else.
//!
//! One module per structure. `docs/FORMAT.md` is the specification: it defines the terms and the rules, and a
//! reader can be written from it alone. The pictures of bytes here repeat its tables next to the code.
//!
//! Invariants
//! 1. A decoder returns for any bytes. It does not panic, and a false count makes no large allocation
//!    (tests/decoders.rs runs every decoder on arbitrary and on damaged bytes).
//! 2. A structure that decodes has one encoding: encoding it again gives the same bytes (the same test).
//!    Commit records and table blocks are exceptions; no code encodes them again.
//! 3. An encoder panics rather than write bytes that its decoder refuses (asserts in each `encode`).
//! 4. Every kind of corruption has a permanent number, used once (a test of the repository compares the
//!    numbers with `docs/FORMAT.md`).

#![forbid(unsafe_code)]

pub mod commit;
mod decode;
mod device_entry;
pub mod fs;
mod hash;
pub mod log_frame;
pub mod log_state;
pub mod manifest;
mod pool_label;
pub mod root;
pub mod root_copy;
mod root_wishes;
pub mod segment;
mod segment_columns;
pub mod state_frame;
pub mod stream;
pub mod stripe;
pub mod table;
mod unsupported;
mod varint;

pub use decode::{Corrupt, FieldErrors, Reader};
pub use hash::{crc32c, key_hash};

/// The 128-bit random name of a pool or of a device. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uuid(std::num::NonZeroU128);

impl Uuid {
    /// `None` when `raw` is zero, which is invalid on flash.
    #[must_use]
    pub const fn new(raw: u128) -> Option<Self> {
        match std::num::NonZeroU128::new(raw) {
            Some(n) => Some(Uuid(n)),
            None => None,
        }
    }

    /// The number as it is written to flash, little-endian.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0.get()
    }
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
