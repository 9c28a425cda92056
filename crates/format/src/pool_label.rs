//! The label of a pool, which roots carry: text with a padding of zeroes.

use crate::Corrupt;

/// Bytes of a pool's label, at most.
pub const LABEL_BYTES_MAX: usize = 64;

pub(crate) const LABEL: Corrupt = Corrupt::new(108, "root with a label that is not UTF-8 padded with zeroes");

/// The name that people give a pool: at most 64 bytes of UTF-8 without NUL. It may be empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PoolLabel([u8; LABEL_BYTES_MAX]);

impl PoolLabel {
    /// No label.
    pub const EMPTY: PoolLabel = PoolLabel([0; LABEL_BYTES_MAX]);

    /// `None` if the text is longer than 64 bytes or has a control character.
    #[must_use]
    pub fn new(text: &str) -> Option<PoolLabel> {
        let mut bytes = [0; LABEL_BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.chars().any(char::is_control)).then_some(PoolLabel(bytes))
    }

    /// The label's text, without padding.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(LABEL_BYTES_MAX);
        std::str::from_utf8(&self.0[..end]).expect("a label was verified when it was made")
    }

    /// The text and its padding.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn decode(bytes: [u8; LABEL_BYTES_MAX]) -> Result<PoolLabel, Corrupt> {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(LABEL_BYTES_MAX);
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| LABEL)?;
        PoolLabel::new(text).filter(|label| label.0 == bytes).ok_or(LABEL)
    }
}

impl std::fmt::Debug for PoolLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_text_of_at_most_64_bytes() {
        for good in ["", "tank", "\u{1f525}", &"x".repeat(64)] {
            assert_eq!(PoolLabel::new(good).unwrap().as_str(), good);
        }
        for bad in ["a\0b", "a\nb", &"x".repeat(65)] {
            assert_eq!(PoolLabel::new(bad), None, "{bad:?}");
        }
    }
}
