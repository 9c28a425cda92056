//! The fields of messages: native byte order, no padding but what the structures of the kernel name.

use smallvec::SmallVec;

/// A message that is too short for its kind, or a name in it without an end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the fields of a message one after the other.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
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
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Bytes up to a NUL, without it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let name = &self.0[..len];
        self.0 = &self.0[len + 1..];
        Ok(name)
    }
}

/// The bytes of an answer. The longest structure, that of STATX, fits without an allocation.
#[derive(Default)]
pub(crate) struct Answer(SmallVec<[u8; 320]>);

impl Answer {
    pub(crate) fn u16(&mut self, field: u16) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, field: u32) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, field: u64) -> &mut Self {
        self.bytes(&field.to_ne_bytes())
    }

    pub(crate) fn bytes(&mut self, field: &[u8]) -> &mut Self {
        self.0.extend_from_slice(field);
        self
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Overwrites the first bytes.
    pub(crate) fn set_start(&mut self, bytes: &[u8]) {
        self.0[..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
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
}
