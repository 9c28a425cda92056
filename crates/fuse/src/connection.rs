//! The connection between the kernel and a session: each read takes one request, each write answers one.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: makes a new descriptor of `/dev/fuse` one of this connection.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;

/// A descriptor of a connection.
pub(crate) struct Connection(OwnedFd);

impl Connection {
    pub(crate) fn new(device: OwnedFd) -> Arc<Connection> {
        Arc::new(Connection(device))
    }

    /// Another descriptor of this connection, with a queue of its own for requests that wait for their
    /// answer; the same one if `/dev/fuse` cannot be opened here.
    pub(crate) fn another(self: &Arc<Self>) -> Arc<Connection> {
        let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
            return Arc::clone(self);
        };
        match clone_into(device.as_fd(), self.0.as_fd()) {
            Ok(()) => Connection::new(device.into()),
            Err(_) => Arc::clone(self),
        }
    }

    /// The descriptor, as io_uring wants it.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next request, at the start of `buffer`; `None` if the kernel has ended the connection.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                // `CONNABORTED`: the connection ended after the kernel had chosen a request for this read.
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Ok(len) => return Ok(Some(&buffer[..len])),
                // `NOENT`: the program was interrupted before the request was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends one message.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        // The kernel takes a message whole or not at all.
        rustix::io::writev(&self.0, parts).map(drop)
    }
}

#[expect(unsafe_code, reason = "only the number of an ioctl defines the type of its argument")]
fn clone_into(new: BorrowedFd<'_>, connection: BorrowedFd<'_>) -> Result<(), Errno> {
    let number = connection.as_raw_fd().cast_unsigned();
    // SAFETY: the call reads a `u32`, the number of a descriptor, and writes nothing.
    unsafe { ioctl(new, Setter::<CLONE, u32>::new(number)) }
}
