//! Errors as the operating system counts them, so that model and product can be compared.

use std::fmt;

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The pool is full.
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    /// Bytes can not be read or do not verify.
    pub const IO: Errno = Errno(libc::EIO);
    /// The store has latched read-only.
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}
