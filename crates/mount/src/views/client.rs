//! Asking the server of a mount to begin and end transactions.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};

use super::wire::{ABORT, BEGIN, Block, COMMIT, NEXT, Request, STATUS, TransactionReport};

/// A mount whose server can be asked. Errors are those that `views/wire.rs` lists.
#[derive(Debug)]
pub struct Control {
    root: OwnedFd,
}

impl Control {
    /// Opens the root directory of a mount.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(mountpoint: &Path) -> io::Result<Control> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Control { root: rustix::fs::open(mountpoint, flags, Mode::empty())? })
    }

    /// Begins a transaction. `ends_with_process`: it is aborted if this process ends first.
    ///
    /// # Errors
    /// `ENOTTY` if no pool is mounted there, or it is a view.
    pub fn begin(&self, ends_with_process: bool) -> io::Result<TransactionReport> {
        self.ask(Request::Begin { ends_with_process })
    }

    /// Commits. Whether it was, or a conflict came between, the report's state says; nobody can work in its view any more.
    ///
    /// # Errors
    /// `EBUSY` while something in the view is open: it goes on then.
    pub fn commit(&self, id: u64, durable: bool) -> io::Result<TransactionReport> {
        self.ask(Request::Commit { id, durable })
    }

    /// Aborts. What is open in the view gets errors from then on.
    ///
    /// # Errors
    /// `ENOENT` if it has ended.
    pub fn abort(&self, id: u64) -> io::Result<TransactionReport> {
        self.ask(Request::Abort { id })
    }

    /// How a transaction is doing.
    ///
    /// # Errors
    /// `ENOENT` if it has ended.
    pub fn status(&self, id: u64) -> io::Result<TransactionReport> {
        self.ask(Request::Status { id })
    }

    /// All that this user may end: one's own, root all.
    ///
    /// # Errors
    /// What the system says.
    pub fn list(&self) -> io::Result<Vec<TransactionReport>> {
        let mut reports: Vec<TransactionReport> = Vec::new();
        loop {
            let after = reports.last().map_or(0, |report| report.id);
            match self.ask(Request::Next { after }) {
                Ok(report) => reports.push(report),
                Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(reports),
                Err(e) => return Err(e),
            }
        }
    }

    fn ask(&self, request: Request) -> io::Result<TransactionReport> {
        let (command, mut block) = request.encode();
        match command {
            BEGIN => self.exchange::<{ BEGIN as Opcode }>(&mut block),
            COMMIT => self.exchange::<{ COMMIT as Opcode }>(&mut block),
            ABORT => self.exchange::<{ ABORT as Opcode }>(&mut block),
            STATUS => self.exchange::<{ STATUS as Opcode }>(&mut block),
            NEXT => self.exchange::<{ NEXT as Opcode }>(&mut block),
            _ => unreachable!("requests have no other numbers"),
        }?;
        TransactionReport::decode(&block)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is none"))
    }

    #[expect(
        unsafe_code,
        reason = "an ioctl is a call with an argument that only its number tells the type of"
    )]
    fn exchange<const NUMBER: Opcode>(&self, block: &mut Block) -> Result<(), Errno> {
        // SAFETY: the number says that it reads and writes as many bytes as a block has, and FUSE passes no more.
        unsafe { ioctl(&self.root, Updater::<NUMBER, Block>::new(block)) }
    }
}
