//! The names and files with another answer after a change that no call on them has made.

/// A name or a file with another answer after a commit of a transaction, a rollback or a change of
/// volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation<'a> {
    /// A name in the directory with this inode number. It is made, removed or refers to another file.
    Name(u64, &'a [u8]),
    /// A file's attributes, extended attributes or content; or a directory in which names change.
    File(u64),
    /// All names and files of the first volume: too many have changed to name them.
    Everything,
}
