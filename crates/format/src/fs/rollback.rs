//! The record of a rollback of a volume.
//!
//! ```text
//!  0   1  tag, 11
//!  1   *  seq that the volume shows again (varint)
//!  *   *  seq at which it ended, 0 while it goes on (varint)
//! ```
//!
//! The key has the seq R at which it was made. Readers of the volume at seqs above R, and below that of the
//! end, do not see versions with seqs above the one that is shown again, up to and with R.

use warpfire_units::Seq;

use super::{BAD_CONTENT, BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

const TAG: u8 = 11;

/// A rollback. Its key has the seq at which it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RolledBack {
    /// The seq that the volume shows again.
    pub to: Seq,
    /// The first seq at which nobody needs to know of it.
    pub ended_at: Option<Seq>,
}

impl RolledBack {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.to > Seq(0), "no snapshot shows an empty map");
        debug_assert!(self.ended_at.is_none_or(|ended| ended > self.to), "it ends after it was made");
        out.push(TAG);
        varint::put(out, self.to.0);
        varint::put(out, self.ended_at.map_or(0, |ended| ended.0));
    }

    /// Decodes the record of a rollback that was made at this seq, which its key has.
    ///
    /// # Errors
    /// Codes 401 to 403, 412 and 414.
    pub fn decode(made_at: Seq, bytes: &[u8]) -> Result<RolledBack, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != TAG {
            return Err(BAD_TAG);
        }
        let (to, ended) = (Seq(reader.varint()?), Seq(reader.varint()?));
        reader.end()?;
        let ended_at = Some(ended).filter(|ended| *ended != Seq(0));
        if to == Seq(0) || to > made_at || ended_at.is_some_and(|ended| ended <= made_at) {
            return Err(BAD_CONTENT);
        }
        Ok(RolledBack { to, ended_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let record = RolledBack { to: Seq(300), ended_at: None };
        let mut out = Vec::new();
        record.encode(&mut out);
        assert_eq!(out, b"\x0b\xac\x02\x00");
        assert_eq!(RolledBack::decode(Seq(300), &out), Ok(record));
        assert_eq!(RolledBack::decode(Seq(299), &out), Err(BAD_CONTENT), "it would go forward");
        let ended = RolledBack { ended_at: Some(Seq(302)), ..record };
        out.clear();
        ended.encode(&mut out);
        assert_eq!(RolledBack::decode(Seq(301), &out), Ok(ended));
        assert_eq!(RolledBack::decode(Seq(302), &out), Err(BAD_CONTENT), "it would end before it was made");
        for bytes in [&b""[..], b"\x0a\x01\x00", b"\x0b\x00\x00", b"\x0b\x01", b"\x0b\x01\x00\x00"] {
            assert!(RolledBack::decode(Seq(9), bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, made_at: u64) {
            let bytes: Vec<u8> = std::iter::once(TAG).chain(bytes).collect();
            if let Ok(record) = RolledBack::decode(Seq(made_at), &bytes) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(out, bytes);
            }
        }
    }
}
