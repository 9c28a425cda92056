//! The targets of copies into a pool: no symbolic link below the named destination is followed.

use std::path::Path;

use warpfire::{ErrorKind, Warpfire};

/// Makes a directory if none is there.
///
/// # Errors
/// `AlreadyExists` if anything else is there, a link too.
pub fn make_dir(fs: &Warpfire, target: &Path) -> Result<(), warpfire::Error> {
    // The root of the pool has no name, and is there.
    let is_there =
        target.file_name().is_none() || fs.symlink_metadata(target).is_ok_and(|there| there.is_dir());
    if is_there { Ok(()) } else { fs.create_dir(target) }
}

/// Whether the content of a regular file can be written to this name as it is.
pub fn is_free_or_file(fs: &Warpfire, target: &Path) -> bool {
    match fs.symlink_metadata(target) {
        Ok(there) => there.is_file(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Removes a file, link or special file, so that another can be made there.
pub fn remove_existing(fs: &Warpfire, target: &Path) -> Result<(), warpfire::Error> {
    match fs.remove_file(target) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
