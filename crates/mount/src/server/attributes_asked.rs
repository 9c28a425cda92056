//! The attributes that the kernel has asked for in a view, with the reason unknown.
//!
//! The kernel asks for the attributes of a file when a program does, and before it checks the permission to
//! open the file. Both requests look the same. But after a check the same thread sends OPEN, and then no
//! program has seen the answer.
//!
//! # Invariants
//! 1. An answer counts as unseen only if OPEN of the same file, by the same thread, is the next request that
//!    is about attributes or opening. Each check asks anew, because the kernel may not cache these
//!    attributes. So an answer that a program asked for is never the last one before an OPEN (the tests
//!    `views`).
//! 2. The number of threads is bounded. An answer that is dropped counts as seen.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_fs::{Attr, CallNumber, FileKind, NodeRef};
use warpfire_fuse::INodeNo;
use warpfire_meta::Storage;

use super::Server;
use crate::invalidation_gate::GatePass;
use crate::options::PermissionChecks;
use crate::views::MountKind;

/// Most threads with a last question that is kept.
const THREADS_MAX: usize = 4096;

/// The number that the kernel sends for a thread outside the server's process namespace. Such threads look
/// the same, so the attributes that they ask for count as seen.
const UNKNOWN_THREAD: u32 = 0;

/// The last question of each thread.
#[derive(Default)]
pub(super) struct AttributesAsked(Mutex<HashMap<u32, (INodeNo, CallNumber)>>);

impl AttributesAsked {
    /// Notes the question of a thread. `number` is its place in the journal, if it is there.
    pub(super) fn note(&self, thread: u32, ino: INodeNo, number: Option<CallNumber>) {
        let mut asked = self.0.lock();
        if asked.len() >= THREADS_MAX {
            asked.clear();
        }
        match number {
            Some(number) if thread != UNKNOWN_THREAD => _ = asked.insert(thread, (ino, number)),
            _ => _ = asked.remove(&thread),
        }
    }

    /// Takes the last question of a thread that opens a file, if it was about that file.
    pub(super) fn take(&self, thread: u32, ino: INodeNo) -> Option<CallNumber> {
        self.0.lock().remove(&thread).filter(|(asked, _)| *asked == ino).map(|(_, number)| number)
    }
}

impl<E: Storage> Server<E> {
    /// Whether programs learn the attributes of this file only by asking: a regular file, in a view, that the
    /// transaction has not made. Its attributes come with many answers that no program asked for, and what a
    /// program has not asked for is no conflict. So the kernel may not cache them, and asks when a program
    /// does.
    pub(super) fn asks_for_attributes(&self, node: &NodeRef) -> bool {
        matches!(self.context.mount_kind, MountKind::View(..))
            && node.kind() == FileKind::Regular
            && !self.fs.is_made_here(node)
    }

    /// Whether OPEN is served: in a view in which the kernel checks permissions. It asks for the attributes
    /// to check them, and the OPEN that follows says that no program has asked.
    pub(super) fn serves_open(&self) -> bool {
        matches!(self.context.mount_kind, MountKind::View(..)) && self.checks == PermissionChecks::Kernel
    }

    /// The attributes that a thread has asked for, and how long the kernel may cache them.
    pub(super) fn asked_attributes(
        &self,
        thread: u32,
        node: &NodeRef,
        pass: &GatePass<'_>,
    ) -> (Duration, Attr) {
        if !self.asks_for_attributes(node) {
            return (pass.cache_time(), self.fs.getattr(node));
        }
        let (attr, number) = self.fs.getattr_numbered(node);
        self.attributes_asked.note(thread, INodeNo(node.ino()), number);
        (Duration::ZERO, attr)
    }
}
