//! What every decoder says when bytes are not what they should be.

/// Bytes that do not decode. The code is permanent: `docs/FORMAT.md`, "Corruption codes".
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("corrupt ({code}): {what}")]
pub struct Corrupt {
    /// Permanent number of this kind of corruption.
    pub code: u16,
    /// What did not hold.
    pub what: &'static str,
}

impl Corrupt {
    /// A corruption of kind `code`.
    #[must_use]
    pub const fn new(code: u16, what: &'static str) -> Self {
        Corrupt { code, what }
    }
}
