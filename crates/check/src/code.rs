//! The numbers of findings. Like corruption codes they are permanent; theirs are 500 to 599.

use serde::{Serialize, Serializer};

/// What kind of thing is wrong. The number never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum FindingCode {
    /// A root record that does not verify, or remains of one.
    RootDamaged = 500,
    /// The newest root is on fewer devices than it should be.
    RootMissing = 501,
    /// A device of the pool was not given.
    DeviceMissing = 502,
    /// A device that holds no root, or belongs to another pool.
    DeviceForeign = 503,
    /// A device was given twice.
    DeviceTwice = 504,
    /// A device that is smaller than its entry in the table, or in another place.
    DeviceMismatch = 505,
    /// The log's state in the root does not decode.
    LogState = 506,
    /// A zone that belongs to two segments.
    ZoneTwice = 510,
    /// A zone or device that does not exist.
    ZoneOutside = 511,
    /// Stripes that do not fit into their zones.
    SegmentTooLong = 512,
    /// A stripe header that does not verify.
    HeaderDamaged = 520,
    /// A stripe header that verifies but is another write's.
    HeaderForeign = 521,
    /// A block that does not match its checksum.
    BlockDamaged = 522,
    /// Rows of a stripe with more bad blocks than parity columns.
    RowsLost = 523,
    /// Parity that is not the parity of its data.
    ParityDisagrees = 524,
    /// Bytes after a stripe's payload that are not zero.
    PaddingNotZero = 525,
    /// Headers of one stripe that contradict each other or the segment table.
    HeadersDisagree = 526,
    /// A device that answered a read with an error.
    ReadFailed = 527,
    /// A stripe of the commit log that must be there and is not.
    LogStripeLost = 530,
    /// A frame that does not decode, or in an impossible place.
    LogFrame = 531,
    /// A change of the segment table that contradicts it.
    LogEdit = 532,
    /// The end of the log that no sync vouched for.
    LogTail = 533,
    /// The log is newer than the newest root.
    RootStale = 534,
    /// A manifest edit that does not decode or contradicts the manifest.
    ManifestEdit = 540,
    /// A commit record that does not decode or is out of order.
    CommitRecord = 541,
    /// Runs and tables that contradict each other.
    Runs = 542,
    /// A block of a table that can not be read or does not decode.
    TableBlock = 543,
    /// A key out of order or outside what the manifest says.
    TableKeys = 544,
    /// An index or filter that would hide a key that is there.
    TableIndex = 545,
    /// Counts or versions in the manifest that are not those of the table.
    TableCounts = 546,
    /// Bytes that the manifest says a table names, and it does not.
    TableReferences = 547,
    /// An older run that holds a newer version.
    RunOrder = 548,
    /// A key or value that does not decode.
    Value = 550,
    /// A slice outside the written payload of a live segment.
    SliceOutside = 551,
    /// The pool's own records: superblock, volume, root directory.
    PoolRecords = 552,
    /// An inode number that no one has reserved.
    InoUnreserved = 553,
    /// An inode number that two inodes have.
    InoTwice = 554,
    /// A name in a directory that does not exist.
    NameWithoutDirectory = 555,
    /// A name that leads to no inode.
    NameWithoutInode = 556,
    /// A name that says another kind of file than its inode.
    NameKind = 557,
    /// A link count that is not the number of names.
    Links = 558,
    /// A directory whose name is not where it says.
    DirectoryPlace = 559,
    /// A directory that can not be reached from the root.
    Unreachable = 560,
    /// Orphans: inodes that wait to be removed.
    Orphan = 561,
    /// Bytes past the end of a file.
    PastEnd = 562,
    /// Allocated bytes that are not those of the extents.
    Allocated = 563,
    /// A region of something that has none.
    RegionWithoutFile = 564,
    /// An extended attribute of something that has none.
    XattrWithoutInode = 565,
    /// An access control list that does not decode.
    Acl = 566,
    /// A sum that is not the sum.
    Counter = 567,
    /// Flags of an inode that do not agree with its attributes.
    AttributeFlags = 568,
    /// Something could not be checked.
    NotChecked = 590,
}

impl FindingCode {
    /// The number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}
