//! Facts: the part of an inode that a pass keeps until all references to the inode have been seen.

use warpfire_format::fs::flag;

/// An inode with a key of its own: a directory, or a file with several names. 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedInode {
    pub(super) ino: u64,
    /// Parent of a directory, else 0.
    pub(super) parent: u64,
    /// Hash of a directory's own name.
    pub(super) name_hash: u64,
    /// Link count in the inode.
    pub(super) links: u32,
    /// Names that refer to the inode, as counted.
    pub(super) names: u32,
    /// Subdirectories, as counted.
    pub(super) directories: u32,
    pub(super) kind: u8,
}

/// A regular file in regions. 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionFile {
    pub(super) ino: u64,
    pub(super) size_bytes: u64,
    /// Allocated bytes in the inode minus the bytes of the regions so far, wrapping.
    pub(super) allocated_left: u64,
    /// As `allocated_left`, of reserved bytes.
    pub(super) reserved_left: u64,
    /// Whether it is an orphan, which loses its regions one by one.
    pub(super) is_orphan: bool,
}

/// An inode with flags that promise attributes. 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromisedAttributes {
    pub(super) ino: u64,
    /// The flags of `ATTRIBUTE_FLAGS` without their attribute so far.
    pub(super) left: u32,
}

/// The flags that promise an attribute, each with the attribute's name.
pub(super) const ATTRIBUTE_FLAGS: [(u32, &[u8]); 3] = [
    (flag::ACL, b"system.posix_acl_access"),
    (flag::DEFAULT_ACL, b"system.posix_acl_default"),
    (flag::CAPABILITY, b"security.capability"),
];

/// A range of inode numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InoRange {
    pub(super) first: u64,
    /// One past the last; `u64::MAX` is the end of all numbers, itself included.
    pub(super) past: u64,
}

impl InoRange {
    pub(super) const ALL: InoRange = InoRange { first: 0, past: u64::MAX };

    pub(super) fn contains(&self, ino: u64) -> bool {
        self.first <= ino && (ino < self.past || self.past == u64::MAX)
    }

    pub(super) fn is_all(&self) -> bool {
        *self == Self::ALL
    }

    /// The first half of the part of the range below `bound`. `None` if that part has less than two numbers.
    pub(super) fn halve(self, bound: u64) -> Option<InoRange> {
        let past = self.first + self.past.min(bound).saturating_sub(self.first) / 2;
        (past > self.first).then_some(InoRange { first: self.first, past })
    }

    /// The next range of the same length, `None` when this one reaches `bound`.
    pub(super) fn next(self, bound: u64) -> Option<InoRange> {
        let length = self.past - self.first;
        (self.past < bound).then(|| InoRange { first: self.past, past: self.past.saturating_add(length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_each_number_once() {
        let half = InoRange::ALL.halve(101).unwrap();
        assert_eq!(half, InoRange { first: 0, past: 50 });
        let mut windows = vec![half];
        while let Some(next) = windows.last().unwrap().next(101) {
            windows.push(next);
        }
        for ino in 0..101 {
            assert_eq!(windows.iter().filter(|w| w.contains(ino)).count(), 1, "{ino}");
        }
        assert_eq!(InoRange { first: 5, past: 6 }.halve(101), None);
        assert!(InoRange::ALL.contains(u64::MAX));
    }
}
