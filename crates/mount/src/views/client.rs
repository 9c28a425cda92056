//! Client of the transaction ioctls: requests to the server of a mount.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};

use warpfire_fs::PathChange;

use super::diff::{self, DIFF};
use super::wire::{ABORT, BEGIN, COMMIT, NEXT, STATUS, TransactionReport, TransactionRequest};

/// A connection to the server of a mount. The errors of all calls are those that `views/wire.rs` lists.
#[derive(Debug)]
pub struct TransactionClient {
    root: OwnedFd,
}

impl TransactionClient {
    /// Opens the root directory of a mount.
    ///
    /// # Errors
    /// The error of open(2).
    pub fn open(mountpoint: &Path) -> io::Result<TransactionClient> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(TransactionClient { root: rustix::fs::open(mountpoint, flags, Mode::empty())? })
    }

    /// Begins a transaction. With `ends_with_process` it is aborted if this process ends first.
    ///
    /// # Errors
    /// `ENOTTY` if no pool is mounted there, or if the mount is a view.
    pub fn begin(&self, ends_with_process: bool) -> io::Result<TransactionReport> {
        self.ask(TransactionRequest::Begin { ends_with_process })
    }

    /// Commits a transaction, and takes its view away. A conflict is no error: the report's `state` has the
    /// outcome.
    ///
    /// # Errors
    /// `EBUSY` while a file in the view is open: the transaction stays open.
    pub fn commit(&self, id: u64, durable: bool) -> io::Result<TransactionReport> {
        self.ask(TransactionRequest::Commit { id, durable, chained: false })
    }

    /// Commits a transaction, and begins the next one in the same view. Files that are open in the view are
    /// open in the next transaction. The report's `id` is the number of the next transaction, also after a
    /// conflict, or 0 if it could not begin.
    ///
    /// # Errors
    /// `EBUSY` while a directory in the view is listed, or very many files are in use: the transaction stays
    /// open. After other errors the transaction has been aborted, and no other one begins.
    pub fn commit_and_chain(&self, id: u64, durable: bool) -> io::Result<TransactionReport> {
        self.ask(TransactionRequest::Commit { id, durable, chained: true })
    }

    /// Aborts a transaction. Files that are open in its view get errors from then on.
    ///
    /// # Errors
    /// `ENOENT` if it has ended.
    pub fn abort(&self, id: u64) -> io::Result<TransactionReport> {
        self.ask(TransactionRequest::Abort { id })
    }

    /// The state of a transaction.
    ///
    /// # Errors
    /// `ENOENT` if it has ended.
    pub fn status(&self, id: u64) -> io::Result<TransactionReport> {
        self.ask(TransactionRequest::Status { id })
    }

    /// The open transactions of this user; for root, those of all users.
    ///
    /// # Errors
    /// `ENOTTY` if no pool is mounted there, or if the mount is a view.
    pub fn list(&self) -> io::Result<Vec<TransactionReport>> {
        let mut reports: Vec<TransactionReport> = Vec::new();
        loop {
            let after = reports.last().map_or(0, |report| report.id);
            match self.ask(TransactionRequest::Next { after }) {
                Ok(report) => reports.push(report),
                Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(reports),
                Err(e) => return Err(e),
            }
        }
    }

    /// The changes that a commit of a transaction would make, in the order of the paths: see
    /// [`warpfire_fs::Diff`].
    #[must_use]
    pub fn changes(&self, id: u64) -> TransactionChanges<'_> {
        TransactionChanges { control: self, id, at: 0, page: Vec::new().into_iter(), ended: false }
    }

    fn ask(&self, request: TransactionRequest) -> io::Result<TransactionReport> {
        let (command, mut block) = request.encode();
        match command {
            BEGIN => self.exchange::<{ BEGIN as Opcode }, _>(&mut block),
            COMMIT => self.exchange::<{ COMMIT as Opcode }, _>(&mut block),
            ABORT => self.exchange::<{ ABORT as Opcode }, _>(&mut block),
            STATUS => self.exchange::<{ STATUS as Opcode }, _>(&mut block),
            NEXT => self.exchange::<{ NEXT as Opcode }, _>(&mut block),
            _ => unreachable!("requests have no other numbers"),
        }?;
        TransactionReport::decode(&block).ok_or_else(malformed_reply)
    }

    #[expect(unsafe_code, reason = "only the number of an ioctl defines the type of its argument")]
    fn exchange<const NUMBER: Opcode, B: IoctlBlock>(&self, block: &mut B) -> Result<(), Errno> {
        const {
            assert!(
                NUMBER >> 16 & 0x3fff == size_of::<B>() as Opcode,
                "the number encodes the length of a block"
            )
        };
        // SAFETY: the number encodes that the call reads and writes the length of a block, and FUSE copies no
        // more.
        unsafe { ioctl(&self.root, Updater::<NUMBER, B>::new(block)) }
    }
}

/// Plain bytes: any content that the call writes is valid.
trait IoctlBlock {}

impl<const LEN: usize> IoctlBlock for [u8; LEN] {}

fn malformed_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server's answer is malformed")
}

/// The changes of a transaction, fetched page by page as they are read. An error ends the iterator.
///
/// # Errors
/// `ENOENT` if there is no such transaction, or it has ended; `EBUSY` and `ESTALE` if another caller lists
/// its changes at the same time.
#[derive(Debug)]
pub struct TransactionChanges<'a> {
    control: &'a TransactionClient,
    id: u64,
    at: u64,
    page: std::vec::IntoIter<PathChange>,
    ended: bool,
}

impl TransactionChanges<'_> {
    fn next_page(&mut self) -> io::Result<()> {
        let mut block = Box::new(diff::DiffRequest { id: self.id, at: self.at }.encode());
        self.control.exchange::<{ DIFF as Opcode }, _>(&mut *block)?;
        let (at, changes) = diff::decode(&block).ok_or_else(malformed_reply)?;
        self.at = at;
        self.page = changes.into_iter();
        Ok(())
    }
}

impl Iterator for TransactionChanges<'_> {
    type Item = io::Result<PathChange>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.len() == 0 && !self.ended {
            let asked = self.next_page();
            self.ended = self.page.len() == 0;
            if let Err(e) = asked {
                return Some(Err(e));
            }
        }
        self.page.next().map(Ok)
    }
}
