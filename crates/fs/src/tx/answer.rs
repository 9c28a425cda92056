//! Answers in 64 bits, so that two runs of a call can be compared without keeping what they said.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::{FixedState, FoldHasher};
use warpfire_format::fs::FileKind;

use crate::attrs::Attr;
use crate::data::ReadAt;
use crate::error::FsError;
use crate::names::DirEntry;
use crate::node::NodeRef;
use crate::path::Resolved;

/// What a call tells its caller.
pub(crate) trait Answer {
    /// Adds what was told, leaving out what no one relies on.
    fn add_to(&self, state: &mut impl Hasher);
}

/// An answer's digest.
pub(crate) fn digest(answer: &impl Answer) -> u64 {
    let mut state = FixedState::with_seed(7).build_hasher();
    answer.add_to(&mut state);
    state.finish()
}

impl<T: Answer> Answer for Result<T, FsError> {
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

impl<T: Answer> Answer for Option<T> {
    fn add_to(&self, state: &mut impl Hasher) {
        self.is_some().hash(state);
        if let Some(answer) = self {
            answer.add_to(state);
        }
    }
}

impl Answer for () {
    fn add_to(&self, _state: &mut impl Hasher) {}
}

impl Answer for u64 {
    fn add_to(&self, state: &mut impl Hasher) {
        self.hash(state);
    }
}

impl Answer for Vec<u8> {
    fn add_to(&self, state: &mut impl Hasher) {
        self.hash(state);
    }
}

impl Answer for NodeRef {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.ino(), self.kind() as u8).hash(state);
    }
}

impl Answer for Vec<DirEntry> {
    fn add_to(&self, state: &mut impl Hasher) {
        for entry in self {
            (entry.name.as_slice(), entry.ino, entry.kind as u8).hash(state);
        }
        self.len().hash(state);
    }
}

impl Answer for Resolved {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.dir.ino(), self.name.as_slice(), self.wants_dir).hash(state);
        self.node.as_ref().map(|node| (node.ino(), node.kind() as u8)).hash(state);
    }
}

impl Answer for Attr {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.ino, self.mode, self.links, self.uid, self.gid, self.rdev).hash(state);
        (self.size_bytes, self.allocated_bytes).hash(state);
        (self.btime.seconds, self.btime.nanos).hash(state);
        // A directory's times move with every name that anyone makes in it; access times move with reading.
        if self.kind != FileKind::Directory {
            for time in [self.mtime, self.ctime] {
                (time.seconds, time.nanos).hash(state);
            }
        }
    }
}

/// Bytes that were read into the buffers of who asked.
pub(crate) struct Told(u64);

impl Told {
    pub(crate) fn of(reads: &[ReadAt<'_>]) -> Told {
        let mut state = FixedState::with_seed(7).build_hasher();
        for read in reads {
            read.buf.get(..read.len).hash(&mut state);
        }
        Told(state.finish())
    }
}

impl Answer for Told {
    fn add_to(&self, state: &mut impl Hasher) {
        self.0.hash(state);
    }
}

/// Names that were shown one by one, with their nodes and attributes.
pub(crate) struct Shown {
    state: FoldHasher<'static>,
    count: usize,
}

impl Default for Shown {
    fn default() -> Self {
        Shown { state: FixedState::with_seed(7).build_hasher(), count: 0 }
    }
}

impl Shown {
    pub(crate) fn add(&mut self, name: &[u8], node: &NodeRef, attr: &Attr) {
        self.count += 1;
        name.hash(&mut self.state);
        node.add_to(&mut self.state);
        attr.add_to(&mut self.state);
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl Answer for Shown {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.state.finish(), self.count).hash(state);
    }
}

/// What was made: its number, and its node if that was asked for.
pub(crate) struct Fresh(pub(crate) u64, pub(crate) Option<NodeRef>);

impl Answer for Fresh {
    fn add_to(&self, state: &mut impl Hasher) {
        self.0.hash(state);
    }
}
