//! Messages to the kernel that answer no request: it forgets what it has cached.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::connection::{Connection, OUT_HEADER_BYTES};
use crate::fields::Answer;
use crate::request::INodeNo;

const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
const INC_EPOCH: u32 = 8;
const PRUNE: u32 = 9;

/// Sends notifications to the kernel.
///
/// The kernel may wait for answers to other requests before it takes a notification. So a thread that serves
/// requests sends none.
#[derive(Clone)]
pub struct Notifier(Arc<Connection>);

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Notifier {
        Notifier(connection)
    }

    /// Makes the kernel forget the attributes of an inode, and the pages of a range of it after it has sent
    /// those that were changed. A negative offset means no pages; a length of 0 means all pages from the
    /// offset on.
    ///
    /// # Errors
    /// `NotFound` if the kernel does not know the inode.
    pub fn inval_inode(&self, ino: INodeNo, offset: i64, len: i64) -> io::Result<()> {
        let mut body = Answer::default();
        body.u64(ino.0).u64(offset.cast_unsigned()).u64(len.cast_unsigned());
        self.send(INVAL_INODE, &body, &[])
    }

    /// Makes the kernel forget a name, and all names below it that nobody uses.
    ///
    /// # Errors
    /// `NotFound` if the kernel does not know the name.
    pub fn inval_entry(&self, parent: INodeNo, name: &[u8]) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut body = Answer::default();
        let flags = 0;
        body.u64(parent.0).u32(len).u32(flags);
        self.send(INVAL_ENTRY, &body, &[name, b"\0"])
    }

    /// Makes the kernel look all names up again, also those that it remembers as missing.
    ///
    /// # Errors
    /// `InvalidInput` if the kernel does not know this notification: Linux has it since 6.16.
    pub fn forget_names(&self) -> io::Result<()> {
        self.send(INC_EPOCH, &Answer::default(), &[])
    }

    /// Makes the kernel forget inodes that nobody uses. It sends FORGET for each that it drops.
    ///
    /// # Errors
    /// `InvalidInput` if the kernel does not know this notification: Linux has it since 6.18.
    pub fn prune(&self, inodes: &[u64]) -> io::Result<()> {
        let count = u32::try_from(inodes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut body = Answer::default();
        let spare = 12;
        body.u32(count).zeros(spare);
        let numbers: Vec<u8> = inodes.iter().flat_map(|ino| ino.to_ne_bytes()).collect();
        self.send(PRUNE, &body, &[&numbers])
    }

    /// Sends the fields of `body`, and then `rest`.
    fn send(&self, code: u32, body: &Answer, rest: &[&[u8]]) -> io::Result<()> {
        let rest_bytes: usize = rest.iter().map(|part| part.len()).sum();
        let len = OUT_HEADER_BYTES + body.as_slice().len() + rest_bytes;
        let mut header = Answer::default();
        let no_request = 0;
        header.u32(u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?).u32(code).u64(no_request);
        let parts: Vec<IoSlice<'_>> =
            [header.as_slice(), body.as_slice()].iter().chain(rest).map(|part| IoSlice::new(part)).collect();
        Ok(self.0.send(&parts)?)
    }
}
