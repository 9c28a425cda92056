//! The reasons for which this version refuses a pool that is not damaged.

use std::fmt;

use crate::{log_state, root};

/// Why this version cannot read a root that is not damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsupported {
    /// The root has another format version.
    Version(u8),
    /// The log state in the root has another format version.
    LogState(u16),
    /// The root needs features with these bits, which this version does not know.
    Features(u64),
}

/// In words that continue the name of a pool.
impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, found, known) = match self {
            Unsupported::Version(found) => ("roots have", u16::from(*found), u16::from(root::VERSION)),
            Unsupported::LogState(found) => ("log state has", *found, log_state::VERSION),
            Unsupported::Features(bits) => {
                return write!(f, "has features that this version does not know: {}", FeatureBits(*bits));
            }
        };
        write!(
            f,
            "was made by another version of warpfire: its {place} format {found}, and this version reads \
             format {known}"
        )
    }
}

/// The numbers of the feature bits that are set.
pub struct FeatureBits(pub u64);

impl fmt::Display for FeatureBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = (0..u64::BITS).filter(|bit| (self.0 >> bit) & 1 == 1);
        for (n, bit) in set.enumerate() {
            write!(f, "{}{bit}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
