//! The fields of messages: native byte order, no padding but what the structures of the kernel name.

/// A message that is too short for its kind, or a name in it without an end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the fields of a message one after the other. A message has one part or two; no field is in both.
pub(crate) struct Fields<'a> {
    part: &'a [u8],
    second: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Fields { part: bytes, second: &[] }
    }

    /// The fields of `first`, and then those of `second`.
    pub(crate) fn in_two(first: &'a [u8], second: &'a [u8]) -> Self {
        Fields { part: first, second }
    }

    /// The part that the next field is in.
    #[inline]
    fn part(&mut self) -> &'a [u8] {
        if self.part.is_empty() {
            self.part = std::mem::take(&mut self.second);
        }
        self.part
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.part().split_first_chunk().ok_or(Malformed)?;
        self.part = rest;
        Ok(*field)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Bytes of a known length.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.part().split_at_checked(len as usize).ok_or(Malformed)?;
        self.part = rest;
        Ok(bytes)
    }

    /// Bytes up to a NUL, without it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let part = self.part();
        let len = part.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        self.part = &part[len + 1..];
        Ok(&part[..len])
    }
}

/// Longest answer of fields: the longest structure is that of STATX.
const ANSWER_BYTES_MAX: usize = 320;

/// The fields of an answer, as bytes. Bytes past its end are zero.
pub(crate) struct Answer {
    bytes: [u8; ANSWER_BYTES_MAX],
    len: usize,
}

impl Default for Answer {
    fn default() -> Self {
        Answer { bytes: [0; ANSWER_BYTES_MAX], len: 0 }
    }
}

impl Answer {
    #[inline]
    pub(crate) fn u16(&mut self, field: u16) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: u32) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: u64) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    // Inline: an answer about a file has thirty fields, and a listing has one for each name.
    #[inline]
    pub(crate) fn bytes(&mut self, field: &[u8]) -> &mut Self {
        let end = self.len + field.len();
        self.bytes[self.len..end].copy_from_slice(field);
        self.len = end;
        self
    }

    #[inline]
    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.len += count;
        assert!(self.len <= ANSWER_BYTES_MAX, "an answer has room for its longest structure");
        self
    }

    /// Overwrites the first bytes.
    pub(crate) fn set_start(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "these bytes are there");
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_there_are_malformed() {
        let mut fields = Fields::new(&[1, 0, 0, 0, b'a', 0, b'b']);
        assert_eq!(fields.u32(), Ok(u32::from_ne_bytes([1, 0, 0, 0])));
        assert_eq!(fields.name(), Ok(&b"a"[..]));
        assert_eq!(fields.name(), Err(Malformed), "the name has no end");
        assert_eq!(fields.u32(), Err(Malformed));
        assert_eq!(fields.bytes(1), Ok(&b"b"[..]));
        assert_eq!(fields.bytes(1), Err(Malformed));
    }

    #[test]
    fn a_message_in_two_parts_is_read_as_one() {
        let mut fields = Fields::in_two(&[1, 0, 0, 0], b"a\0bc");
        assert_eq!(fields.u32(), Ok(u32::from_ne_bytes([1, 0, 0, 0])));
        assert_eq!(fields.name(), Ok(&b"a"[..]));
        assert_eq!(fields.bytes(2), Ok(&b"bc"[..]));
        assert_eq!(fields.bytes(0), Ok(&b""[..]));
        assert_eq!(fields.name(), Err(Malformed));
        let mut split = Fields::in_two(&[1, 0], &[0, 0]);
        assert_eq!(split.u32(), Err(Malformed), "no field is in both parts");
        assert_eq!(Fields::in_two(&[], b"a\0").name(), Ok(&b"a"[..]));
    }
}
