//! Damage that shows only where records meet: each of them decodes, and together they cannot be.
//!
//! The codes are permanent: docs/FORMAT.md, "Corruption codes".

use warpfire_format::Corrupt;

pub(crate) const NO_ROOT_INODE: Corrupt = Corrupt::new(420, "the root directory has no inode");
pub(crate) const HOLDS_ITSELF: Corrupt = Corrupt::new(421, "a directory holds itself");
pub(crate) const NO_INODE_OF_NAME: Corrupt = Corrupt::new(422, "a name refers to an inode that is not there");
pub(crate) const INODE_DIFFERS: Corrupt =
    Corrupt::new(423, "an inode differs from the name that refers to it");
pub(crate) const OWN_ANCESTOR: Corrupt = Corrupt::new(424, "a directory is its own ancestor");
pub(crate) const MISCOUNTED_LINKS: Corrupt = Corrupt::new(425, "a directory miscounts its subdirectories");
pub(crate) const WRONG_RANGE: Corrupt = Corrupt::new(426, "a key is in the wrong range");
pub(crate) const NO_RECORD: Corrupt = Corrupt::new(427, "an inode in use has no record");
pub(crate) const MISCOUNTED_BYTES: Corrupt =
    Corrupt::new(428, "a file's allocated bytes are not those of its extents");
pub(crate) const REGION_PAST_END: Corrupt = Corrupt::new(429, "a region lies past every file's end");
