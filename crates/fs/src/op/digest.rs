//! Digests: 64 bits for the answer of a call, so that a replay compares answers that the journal does not
//! keep.
//!
//! Each type of answer implements [`Digestible`] in its own file.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::{FixedState, FoldHasher};

use crate::error::FsError;
use crate::node::NodeRef;

/// The answer of a call.
pub(crate) trait Digestible {
    /// Adds every part of the answer that callers rely on, and nothing else: each part that differs in a
    /// replay makes a conflict.
    fn add_to(&self, state: &mut impl Hasher);
}

/// The hasher of digests. Its seed is fixed, because the digests of a transaction are compared with those of
/// its replay.
pub(crate) fn new_hasher() -> FoldHasher<'static> {
    FixedState::with_seed(7).build_hasher()
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
        self.hash(state);
    }
}

impl Digestible for NodeRef {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.ino(), self.kind() as u8).hash(state);
    }
}
