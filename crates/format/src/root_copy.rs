//! A copy of a root in the commit log. A pool that has lost the roots in its root zones is found again by its
//! newest copy.
//!
//! ```text
//! offset      bytes
//!      0          …  the first bytes of the root's header, as device 0 would hold it, with its earlier
//!                    sessions and wishes; the rest of it is zero
//!      …          …  the root's body, without padding
//! ```

use warpfire_units::BLOCK_BYTES;

use crate::root::{DeviceEntry, HEAD_BYTES_MAX, RootHeader, head_bytes};
use crate::{Corrupt, FieldErrors, Reader};

const SHORT: Corrupt = Corrupt::new(226, "copy of a root ends early");
const DEVICE: Corrupt = Corrupt::new(227, "copy of a root that is not as device 0 holds it");

static FIELDS: FieldErrors = FieldErrors::all(SHORT);

/// Most bytes of a copy beside the root's body.
pub const ROOT_COPY_HEAD_BYTES_MAX: usize = HEAD_BYTES_MAX;

/// The bytes of a copy.
///
/// # Panics
/// If the header is not that of device 0.
#[must_use]
pub fn encode(header: &RootHeader, body: &[u8]) -> Vec<u8> {
    assert_eq!(header.device.0, 0, "a copy is written as device 0 holds the root");
    debug_assert_eq!(header.body_bytes as usize, body.len(), "the header is of this body");
    let mut block = vec![0; BLOCK_BYTES];
    header.encode(&mut block);
    block.truncate(head_bytes(&block).expect("a header is one block"));
    block.extend_from_slice(body);
    block
}

/// A root, as a copy holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootCopy {
    /// The header on device 0.
    pub header: RootHeader,
    /// The device table.
    pub table: Vec<DeviceEntry>,
    /// The client's payload.
    pub payload: Vec<u8>,
}

impl RootCopy {
    /// Verifies and reads the bytes of a copy.
    ///
    /// # Errors
    /// Codes 226 and 227, and those of a root.
    pub fn decode(bytes: &[u8]) -> Result<RootCopy, Corrupt> {
        let mut c = Reader::new(bytes, &FIELDS);
        let head = c.bytes(head_bytes(bytes).ok_or(SHORT)?)?;
        let mut block = vec![0; BLOCK_BYTES];
        block[..head.len()].copy_from_slice(head);
        let header = RootHeader::decode(&block)?;
        let body = c.rest();
        if header.body_bytes as usize > body.len() {
            return Err(SHORT);
        }
        // `decode_body` takes what follows for padding, and a copy has none.
        let (table, payload) = header.decode_body(body)?;
        if header.device.0 != 0 || body.len() > header.body_bytes as usize {
            return Err(DEVICE);
        }
        Ok(RootCopy { table, payload: payload.to_vec(), header })
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::root::samples::{body, sample};

    /// The sample of a root, as device 0 holds it.
    pub(crate) fn header() -> RootHeader {
        let device_uuid = crate::Uuid::new(1).unwrap();
        RootHeader { device: warpfire_units::DeviceIndex(0), device_uuid, ..sample(&body()) }
    }

    pub(crate) fn copy() -> Vec<u8> {
        encode(&header(), &body())
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{copy, header};
    use super::*;
    use crate::root::samples::{body, sample};

    #[test]
    fn a_copy_comes_back_as_it_went_in_and_no_prefix_does() {
        let (header, body, bytes) = (header(), body(), copy());
        let copy = RootCopy::decode(&bytes).unwrap();
        assert_eq!(copy.header, header);
        assert_eq!(crate::root::encode_body(&copy.table, &copy.payload), body);
        for len in 0..bytes.len() {
            assert!(RootCopy::decode(&bytes[..len]).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(RootCopy::decode(&longer), Err(DEVICE));
        let wishes = crate::root::RootWishes { spare_space: 1, ..crate::root::RootWishes::NONE };
        let wishing = RootHeader { wishes, ..header };
        assert_eq!(RootCopy::decode(&encode(&wishing, &body)).unwrap().header, wishing);
    }

    #[test]
    fn a_copy_of_another_device_is_refused() {
        let body = body();
        let mut block = vec![0; BLOCK_BYTES];
        let header = sample(&body);
        header.encode(&mut block);
        block.truncate(head_bytes(&block).unwrap());
        block.extend_from_slice(&body);
        assert_eq!(RootCopy::decode(&block), Err(DEVICE));
    }
}
