//! Error numbers of the operating system, by which errors of model and product are compared.

use std::fmt;

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The pool is full.
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    /// Bytes cannot be read or do not verify.
    pub const IO: Errno = Errno(libc::EIO);
    /// The store has latched read-only.
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}
