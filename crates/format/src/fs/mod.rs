//! Keys and values of the filesystem, the contents of the metadata engine's ordered map.
//!
//! A key says which kind of record its value is. A value decodes without any other value. Values of some
//! kinds also take *operands*: changes that are merged without reading the value. [`fold`] defines the
//! meaning of operands, so that any reader can compute a value from its history without the filesystem. See
//! `docs/FORMAT.md`, sections "Keys", "Inodes", "Regions" and "Counters".

mod acl;
mod bookmark;
mod counter;
mod edit;
mod extent;
mod fade;
mod fold;
mod health;
mod inode;
mod key;
mod number;
mod pool_records;
mod rollback;
mod snapshot;
mod snapshot_rule;
mod visit;
mod volume;
mod wishes;
mod xattr;

pub use acl::{ACL_ENTRIES_MAX, AclCodingError, AclTag, acl_bytes, decode_acl, encode_acl};
pub use bookmark::BookmarkRecord;
pub use counter::{COUNTER_BYTES_MAX, decode_counter, encode_counter};
pub use edit::InodeEdit;
pub use extent::{
    Extent, ExtentMap, ExtentReader, ExtentSource, REGION_BYTES, SMALL_FILE_BYTES_MAX, decode_region,
    encode_region, region_extents,
};
pub use fade::{FADED_REGION, fade};
pub use fold::{FoldBase, FoldOutcome, fold};
pub use health::{DAMAGED_FILES_MAX, DeviceErrors, HealthRecord, LastScrub};
pub use inode::{Attrs, Dentry, FileKind, Inode, InodeContent, InodeTime, flag};
pub use key::{
    CounterId, KEY_HEAD_BYTES, Key, KeyBuf, KeyKind, NAME_BYTES_MAX, PoolRecordId, VolumeId,
    XATTR_NAME_BYTES_MAX, bookmark_range, dentry_key, dentry_name as file_name, dentry_range, inode_key,
    is_of_kind, is_of_volume, region_key, region_range, rollback_range, snapshot_range, snapshot_rule_range,
    volume_range, xattr_key, xattr_name, xattr_range,
};
pub use number::{
    INO_MAX, LOCAL_INO_MAX, VOLUME_MAX, local_of, number_from, number_in, stored_in, volume_of,
};
pub use pool_records::{FORMAT_VERSION, FilesystemRecord, VolumeRecord};
pub use rollback::RolledBack;
pub use snapshot::{SNAPSHOT_HOLDS_MAX, SnapshotName, SnapshotRecord};
pub use snapshot_rule::{RULE_PERIODS, SnapshotRuleRecord};
pub use visit::{INLINE_FOREVER_BYTES_MAX, MovedSlices, PackBytes, extents, pointers, relocate};
pub use volume::{DoorVolume, LIMIT_MAX, VolumeLimits, VolumeOrigin};
pub use wishes::{DAY_MINUTES, ScrubRound, ScrubSchedule, WishesRecord};
pub use xattr::{XATTR_BYTES_MAX, decode_xattr, encode_xattr};

use crate::{Corrupt, FieldErrors};

const BAD_KEY: Corrupt = Corrupt::new(400, "key is malformed");
const TRUNCATED: Corrupt = Corrupt::new(401, "value ends early");
const BAD_VARINT: Corrupt = Corrupt::new(402, "variable-length integer is too long or not minimal");
const BAD_TAG: Corrupt = Corrupt::new(403, "tag names no record of this kind of key");
const BAD_INO: Corrupt = Corrupt::new(404, "inode number is zero or too large");
const BAD_MODE: Corrupt = Corrupt::new(405, "mode has no file type");
const BAD_NANOS: Corrupt = Corrupt::new(406, "nanoseconds are not below a second");
const BAD_FLAGS: Corrupt = Corrupt::new(407, "a bit without a meaning is set");
const BAD_EXTENT: Corrupt = Corrupt::new(408, "extent is empty, out of order or past its region");
const BAD_SEGMENT: Corrupt = Corrupt::new(409, "slice names segment zero");
const HOLE_IN_VALUE: Corrupt = Corrupt::new(410, "a value spells out a hole");
const BAD_NAME: Corrupt = Corrupt::new(411, "name is empty, too long or holds '/' or NUL");
const TRAILING: Corrupt = Corrupt::new(412, "bytes after the end of a value");
const NO_OPERANDS: Corrupt = Corrupt::new(413, "this kind of key takes no operands");
const BAD_CONTENT: Corrupt = Corrupt::new(414, "content does not fit the file type");
const BAD_VERSION: Corrupt = Corrupt::new(415, "format version is not known");
const BAD_LINKS: Corrupt = Corrupt::new(416, "link count leaves its range");

/// The errors of the readers of all values.
static FIELDS: FieldErrors = FieldErrors { short: TRUNCATED, varint: BAD_VARINT, trailing: TRAILING };
