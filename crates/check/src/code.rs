//! Finding codes: permanent numbers from 500 to 599. Corruption codes (`docs/FORMAT.md`) are below 500.

use serde::{Serialize, Serializer};

/// The kind of a finding. A number never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum FindingCode {
    /// A damaged root, or the remains of one.
    RootDamaged = 500,
    /// The newest root is on fewer devices than it should be.
    RootMissing = 501,
    /// A device of the pool was not given.
    DeviceMissing = 502,
    /// A device without a root, of another pool, or that has left the pool.
    DeviceForeign = 503,
    /// A device was given twice.
    DeviceTwice = 504,
    /// A device that is smaller than its entry in the device table says, or has another index.
    DeviceMismatch = 505,
    /// The log's state in the root does not decode.
    LogState = 506,
    /// Stripes of a later session than that of every root: newer roots are lost.
    NewerSession = 507,
    /// A zone that belongs to two segments.
    ZoneTwice = 510,
    /// A zone or device that does not exist.
    ZoneOutside = 511,
    /// Stripes that do not fit into their zones.
    SegmentTooLong = 512,
    /// A stripe with fewer parity columns than the present devices allow.
    StripeNarrow = 513,
    /// A stripe header that does not verify.
    HeaderDamaged = 520,
    /// A stripe header that verifies but belongs to another write.
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
    /// A read that a device answered with an error.
    ReadFailed = 527,
    /// A required stripe of the commit log that is missing.
    LogStripeLost = 530,
    /// A frame that does not decode or is in an impossible place.
    LogFrame = 531,
    /// A change of the segment table that contradicts it.
    LogEdit = 532,
    /// The end of the log, which no durable barrier covers.
    LogTail = 533,
    /// The log is newer than the newest root.
    RootStale = 534,
    /// A manifest edit that does not decode or contradicts the manifest.
    ManifestEdit = 540,
    /// A commit record that does not decode or is out of order.
    CommitRecord = 541,
    /// Runs and tables that contradict each other.
    Runs = 542,
    /// A block of a table that cannot be read or does not decode.
    TableBlock = 543,
    /// A key that is out of order or outside the key range in the manifest.
    TableKeys = 544,
    /// An index or filter that hides a key of its table.
    TableIndex = 545,
    /// Counts or seqs in the manifest that differ from those of the table.
    TableCounts = 546,
    /// References in the manifest that differ from the pointers in the table.
    TableReferences = 547,
    /// A version in an older run that is newer than one in a newer run.
    RunOrder = 548,
    /// A run of the past in which the newest version of a key is no delete.
    PastSpan = 549,
    /// A key or value that does not decode.
    Value = 550,
    /// A slice outside the written payload of a live segment.
    SliceOutside = 551,
    /// A missing or wrong filesystem record, volume record or root directory.
    PoolRecords = 552,
    /// An inode number that is not reserved.
    InoUnreserved = 553,
    /// An inode number that two inodes have.
    InoTwice = 554,
    /// A name in a directory that does not exist.
    NameWithoutDirectory = 555,
    /// A name that refers to no inode.
    NameWithoutInode = 556,
    /// A name with another file type than its inode.
    NameKind = 557,
    /// A link count that is not the number of names.
    Links = 558,
    /// A directory without exactly the one name that its inode states.
    DirectoryPlace = 559,
    /// A directory that cannot be reached from the root.
    Unreachable = 560,
    /// An orphan, which waits to be removed, or a wrong record of one.
    Orphan = 561,
    /// Bytes past the end of a file.
    PastEnd = 562,
    /// Allocated bytes that differ from those of the extents.
    Allocated = 563,
    /// A region of an inode that is no file in regions.
    RegionWithoutFile = 564,
    /// An extended attribute of an inode that does not exist or has none.
    XattrWithoutInode = 565,
    /// An access control list that is not valid.
    Acl = 566,
    /// A counter that differs from the counted sum.
    Counter = 567,
    /// Flags of an inode that do not agree with its attributes.
    AttributeFlags = 568,
    /// Something that could not be checked.
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
