//! Digests: 64 bits for the answer of a call, so that a replay compares answers that the journal does not
//! keep.
//!
//! A program that could make two answers with one digest could hide a conflict. So digests have random keys
//! of 128 bits, which never leave the process: SipHash for answers, and Poly1305 for the bytes of files. No
//! digest leaves the process either, so a program learns nothing by trying.
//!
//! Each type of answer implements [`Digestible`] in its own file.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};

use crate::error::FsError;
use crate::node::NodeRef;

/// The answer of a call.
pub(crate) trait Digestible {
    /// Adds every part of the answer that callers rely on, and nothing else: each part that differs in a
    /// replay makes a conflict.
    fn add_to(&self, state: &mut impl Hasher);
}

/// The keys of all digests of this process. They are the same for a transaction and its replay.
struct DigestKeys {
    answers: RandomState,
    bytes: poly1305::Key,
}

static KEYS: LazyLock<DigestKeys> = LazyLock::new(|| {
    let mut bytes = poly1305::Key::default();
    // The standard library's source of random numbers: the keys of its hash maps.
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes()));
    DigestKeys { answers: RandomState::new(), bytes }
});

/// The hasher of digests.
pub(crate) fn new_hasher() -> DefaultHasher {
    KEYS.answers.build_hasher()
}

/// The unit in which a digest of a file's content looks for zeros.
const ZEROS: [u8; 4096] = [0; 4096];

/// A digest of the content of a file, for answers with many bytes: ten times as fast as the hasher. The
/// caller adds the length.
///
/// Zeros cost only a comparison, so that a read of a hole costs little more than its buffer. Everything else
/// is hashed with its place: as runs of blocks that are not all zeros, each after its offset and its length.
pub(crate) fn digest_of_bytes(bytes: &[u8]) -> [u8; 16] {
    let mut digest = Poly1305::new(&KEYS.bytes);
    let is_zeros = |block: &[u8]| ZEROS.starts_with(block);
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let len_where = |zeros: bool| {
            rest.chunks(ZEROS.len()).take_while(|block| is_zeros(block) == zeros).map(<[u8]>::len).sum()
        };
        let zeros: usize = len_where(true);
        if zeros > 0 {
            at += zeros;
            continue;
        }
        let len: usize = len_where(false);
        let mut place = [0; 16];
        place[..8].copy_from_slice(&(at as u64).to_le_bytes());
        place[8..].copy_from_slice(&(len as u64).to_le_bytes());
        digest.update_padded(&place);
        digest.update_padded(rest.get(..len).unwrap_or_default());
        at += len;
    }
    digest.finalize().into()
}

/// An answer's digest.
pub(super) fn digest(answer: &impl Digestible) -> u64 {
    let mut state = new_hasher();
    answer.add_to(&mut state);
    state.finish()
}

impl<T: Digestible> Digestible for Result<T, FsError> {
    fn add_to(&self, state: &mut impl Hasher) {
        match self {
            Ok(answer) => {
                state.write_u8(0);
                answer.add_to(state);
            }
            Err(e) => {
                state.write_u8(1);
                std::mem::discriminant(e).hash(state);
                e.errno().hash(state);
            }
        }
    }
}

impl<T: Digestible> Digestible for Option<T> {
    fn add_to(&self, state: &mut impl Hasher) {
        self.is_some().hash(state);
        if let Some(answer) = self {
            answer.add_to(state);
        }
    }
}

impl Digestible for () {
    fn add_to(&self, _state: &mut impl Hasher) {}
}

impl Digestible for u64 {
    fn add_to(&self, state: &mut impl Hasher) {
        self.hash(state);
    }
}

impl Digestible for Vec<u8> {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.len(), digest_of_bytes(self)).hash(state);
    }
}

impl Digestible for NodeRef {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.ino(), self.kind() as u8).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_answers_apart_and_repeat() {
        let of = |bytes: &[u8]| digest_of_bytes(bytes);
        assert_eq!(of(b"same"), of(b"same"));
        let all = [of(b""), of(b"a"), of(b"b"), of(&[7; 100_000]), of(&[8; 100_000])];
        assert!((0..all.len()).all(|n| !all[..n].contains(&all[n])));
        // Zeros are not hashed, but their place counts.
        let with = |places: &[usize]| {
            let mut bytes = vec![0; 50_000];
            places.iter().for_each(|place| bytes[*place] = 9);
            of(&bytes)
        };
        let sparse =
            [with(&[]), with(&[0]), with(&[4096]), with(&[49_999]), with(&[0, 49_999]), with(&[0, 4096])];
        assert!((0..sparse.len()).all(|n| !sparse[..n].contains(&sparse[n])));
        assert_eq!(with(&[0, 9000, 49_999]), with(&[49_999, 0, 9000]));
        assert_ne!(digest(&vec![0_u8; 4096]), digest(&vec![0_u8; 8192]), "the length counts");
        assert_eq!(digest(&7_u64), digest(&7_u64));
        assert_ne!(digest(&7_u64), digest(&8_u64));
    }
}
