//! The caller of an operation, in the form that a journal keeps.

use super::operation::HeapBytes;
use crate::acl::{Caller, GroupSet};

/// The numbers of a caller's groups at the time of the call.
#[derive(Debug)]
struct RecordedGroups(Box<[u32]>);

impl GroupSet for RecordedGroups {
    fn contains(&self, gid: u32) -> bool {
        self.0.contains(&gid)
    }

    fn known(&self) -> Vec<u32> {
        self.0.to_vec()
    }
}

/// A caller as a journal keeps it.
#[derive(Debug)]
pub(crate) struct RecordedCaller {
    uid: u32,
    gid: u32,
    groups: RecordedGroups,
    checked: bool,
}

impl RecordedCaller {
    pub(crate) fn of(caller: &Caller<'_>) -> RecordedCaller {
        RecordedCaller {
            uid: caller.uid,
            gid: caller.gid,
            groups: RecordedGroups(caller.groups.known().into()),
            checked: caller.checked,
        }
    }

    /// The caller, for a replay of the call.
    pub(crate) fn get(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups, checked: self.checked }
    }
}

impl HeapBytes for RecordedCaller {
    fn heap_bytes(&self) -> usize {
        self.groups.0.heap_bytes()
    }
}
