//! Requests on the content of files: WRITE and LSEEK, where the kernel's page cache and the file may
//! differ.
//!
//! The kernel makes nearly every change itself, so its pages and its size of a file are right. The exceptions
//! are changes behind it (commits of transactions, ioctls on slices), stores into a mapping that it has not
//! written back yet, and asynchronous direct writes: it drops the pages of their range before the write, and
//! not again after it.
//!
//! # Invariants
//! 1. A write through a descriptor that is open for appending goes to the end that the file has at the time
//!    of the write, except for a direct one of 1 MiB and more on the main mount of a server with several
//!    threads (`write_position`;
//!    `tests::views::a_descriptor_open_for_appending_appends_behind_what_a_transaction_appended`). The kernel
//!    has cached such bytes at its own end; if that was another offset, the pages from the one to the other
//!    are dropped.
//! 2. A direct write into a file whose pages the kernel may have is answered after the pages of its range
//!    were dropped. A READ that was answered earlier has filled its pages by then or fills them before they
//!    are dropped, because the kernel locks pages that it reads
//!    (`tests::coherence::buffered_reads_beside_direct_writes_see_no_old_data`).
//! 3. A write past the pages that is to be durable is answered after a sync
//!    (`tests::files::what_is_to_be_durable_flushes_the_device`).
//! 4. A change that takes set-user-ID and set-group-ID bits is answered after the kernel has dropped the
//!    file's attributes: execve(2) reads the bits from the kernel's cache (`SetIdBits`;
//!    `tests::privileges::a_program_that_was_changed_does_not_run_with_its_set_user_id_bit`).
//! 5. Holes that LSEEK answers were written back first (`seek_written_back`).
//! 6. A serving thread sends no invalidation, because the kernel may wait for that thread to answer another
//!    request first. Jobs send them.

use std::io;
use std::sync::{Arc, OnceLock};

use warpfire_fs::acl::Caller;
use warpfire_fs::{Fs, FsError, NodeRef, Position, Seek};
use warpfire_fuse::{
    Errno, FileHandle, FopenFlags, INodeNo, Notifier, OpenFlags, ReplyLseek, ReplyWrite, Request,
    WriteRequest,
};
use warpfire_meta::Storage;

use super::init::WRITE_BYTES_MAX;
use super::request::set_id_caller;
use super::{Refusal, RequestResult, STALE, Server, caller};
use crate::caller::CallerGroups;
use crate::views::MountKind;

/// Most rounds of writing a hole back for one LSEEK. A program that makes holes all the time could go on for
/// ever.
const SEEK_ROUNDS_MAX: u32 = 16;

/// The handle of a file that is open for writing alone, past the kernel's pages: the kernel sends each write
/// straight from the memory of the program. It makes no pages, and does not read `security.capability` before
/// the first write (the server removes it).
const PAST_PAGES: FileHandle = FileHandle(1);

/// The bits that give a program the rights of its owner or group.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

fn only_writes(flags: OpenFlags) -> bool {
    flags.0 & libc::O_ACCMODE == libc::O_WRONLY
}

fn appends(flags: OpenFlags) -> bool {
    flags.0 & libc::O_APPEND != 0
}

/// Whether a write is to be durable when it ends, as the file, the mount or the call asks.
fn is_durable(flags: OpenFlags) -> bool {
    flags.0 & libc::O_DSYNC != 0
}

/// The kernel's cache of a file.
struct CachedFile {
    notifier: Arc<OnceLock<Notifier>>,
    ino: INodeNo,
}

impl CachedFile {
    /// Makes the kernel send the changed pages of a range, then drop its pages and the file's attributes.
    fn drop_pages(&self, offset: u64, len: u64) {
        let notifier = self.notifier.get().expect("the notifier is set before the first request");
        let signed =
            |bytes: u64| i64::try_from(bytes).expect("the kernel's ranges end within the largest file");
        self.note(notifier.inval_inode(self.ino, signed(offset), signed(len)));
    }

    /// Makes the kernel drop the file's attributes, and no pages.
    fn drop_attributes(&self) {
        let notifier = self.notifier.get().expect("the notifier is set before the first request");
        self.note(notifier.inval_inode(self.ino, -1, 0));
    }

    fn note(&self, invalidated: io::Result<()>) {
        if let Err(e) = invalidated {
            // The kernel had nothing in its cache, or the mount has ended.
            tracing::debug!(ino = self.ino.0, error = %e, "nothing to invalidate");
        }
    }
}

impl<E: Storage> Server<E> {
    fn cached_file(&self, ino: INodeNo) -> CachedFile {
        CachedFile { notifier: Arc::clone(&self.context.connection.notifier), ino }
    }

    /// Whether a change of the file's content by this caller takes set-user-ID or set-group-ID bits from it.
    fn takes_set_id(&self, caller: &Caller<'_>, node: &NodeRef) -> bool {
        !caller.is_root() && self.fs.unseen_attributes(node).mode & SET_ID != 0
    }

    /// Runs `change`, which changes the content of a file for a caller, and then `answer` with its outcome:
    /// at once, or after the kernel has dropped the file's attributes, if the change takes set-id bits.
    pub(super) fn answer_change<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        change: impl FnOnce() -> Result<T, FsError>,
        answer: impl FnOnce(RequestResult<T>) + Send + 'static,
    ) {
        let takes_set_id = self.takes_set_id(caller, node);
        let changed = change().map_err(Refusal::from);
        self.context.changes.mark();
        if !takes_set_id {
            return answer(changed);
        }
        let cached = self.cached_file(INodeNo(self.number_of(node.ino())));
        self.context.blocking_threads.spawn_elsewhere(move || {
            cached.drop_attributes();
            answer(changed);
        });
    }

    /// The handle of a file that OPEN opens with these flags, and how the kernel treats it. Appends go past
    /// the pages, because as a rule nobody reads the new bytes in the same transaction.
    pub(super) fn opened(&self, flags: OpenFlags) -> (FileHandle, FopenFlags) {
        self.handle(only_writes(flags) && appends(flags))
    }

    /// As `opened`, for CREATE. All writes of a program that cannot read its new file go past the pages. The
    /// exception are appends outside of a view: a log is often read while it grows, and a write past the
    /// pages takes twice the time then.
    pub(super) fn created(&self, flags: OpenFlags) -> (FileHandle, FopenFlags) {
        self.handle(only_writes(flags) && (self.in_view() || !appends(flags)))
    }

    fn handle(&self, past_pages: bool) -> (FileHandle, FopenFlags) {
        if past_pages && self.context.connection.drops_pages_before_writes() {
            (PAST_PAGES, FopenFlags::KEEP_CACHE.union(FopenFlags::DIRECT_IO))
        } else {
            (FileHandle(0), FopenFlags::KEEP_CACHE)
        }
    }

    /// The node of a request on content, and whether the kernel may have pages of the file. The request fills
    /// pages unless it is direct.
    pub(super) fn content_node(&self, ino: INodeNo, is_direct: bool) -> RequestResult<(NodeRef, bool)> {
        self.context.requests.count();
        let known = || self.context.nodes.get_content(ino.0, !is_direct);
        known().map_or_else(|| self.find_carried(ino).and_then(|_| known().ok_or(STALE)), Ok)
    }

    pub(super) fn write_content(
        &self,
        req: &Request,
        ino: INodeNo,
        write: WriteRequest<'_>,
        reply: ReplyWrite,
    ) {
        let WriteRequest { handle, offset, data, write_flags, flags } = write;
        let is_direct = is_direct(flags) || handle == PAST_PAGES;
        let pass = self.pass();
        let len = data.len() as u64;
        pass.note_data(ino.0, offset..offset.saturating_add(len));
        let groups = CallerGroups::of(req.pid());
        let caller = set_id_caller(caller(req, &groups), write_flags.kills_set_id());
        let written = self.content_node(ino, is_direct).and_then(|(node, _)| {
            if let Some(stale) = pass.stale_pages() {
                let size = self.fs.getattr(&node).size_bytes;
                let write = |at, run: &[u8]| self.fs.write(&caller, &node, Position::At(at), run).map(drop);
                if !write_flags.is_write_back() {
                    // A direct write does not change the kernel's pages.
                    if !is_direct {
                        stale.note_write(ino.0, offset, data)?;
                    }
                } else if stale.merge(ino.0, offset, data, size, write)? {
                    return Ok((node, offset, false));
                }
            }
            let takes_set_id = self.takes_set_id(&caller, &node);
            let position = self.write_position(&node, &write);
            // In a view the program did not ask for the end: the append goes to the end at the commit.
            if position == Position::End && self.in_view() {
                self.fs.append(&caller, &node, data)?;
                // The kernel may know another end, and has the bytes in its pages there.
                let end = self.fs.unseen_attributes(&node).size_bytes;
                let at = if is_direct { offset } else { end.saturating_sub(len) };
                return Ok((node, at, takes_set_id));
            }
            let at = self.fs.write(&caller, &node, position, data)?;
            Ok((node, at, takes_set_id))
        });
        self.context.changes.mark();
        let (node, at, takes_set_id) = match written {
            Ok(written) => written,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        // After the write: a READ that another thread answered beside it with the bytes from before has
        // noted by now that the kernel has pages.
        let has_pages = || self.context.nodes.get_content(ino.0, false).is_some_and(|(_, pages)| pages);
        let count = u32::try_from(len).expect("the kernel writes at most 1 MiB at a time");
        let cached = self.cached_file(ino);
        let is_moved = at != offset;
        // Where the write went, and where the kernel thinks that it went.
        let (from, to) = (offset.min(at), offset.max(at).saturating_add(len));
        let drops_first = is_direct && (is_moved || has_pages());
        // The kernel sends an FSYNC after a durable write through its pages. It sends none after an
        // asynchronous direct one, nor after one past the pages.
        let syncs = is_direct && is_durable(flags);
        if !drops_first && !syncs && !takes_set_id {
            reply.written(count);
            if is_moved {
                // After the answer: until then the kernel keeps a page of the write locked.
                let drop_pages = move || cached.drop_pages(from, to - from);
                self.context.blocking_threads.spawn_elsewhere(drop_pages);
            }
            return;
        }
        let fs = Arc::clone(&self.fs);
        self.context.blocking_threads.spawn_elsewhere(move || {
            if drops_first {
                cached.drop_pages(from, to - from);
            } else if takes_set_id {
                cached.drop_attributes();
            }
            let synced = if syncs { fs.fsync(&node) } else { Ok(()) };
            match synced {
                Ok(()) => reply.written(count),
                Err(e) => reply.error(Refusal::from(e).0),
            }
            if is_moved && !drops_first {
                // After the answer, as above.
                cached.drop_pages(from, to - from);
            }
        });
    }

    fn in_view(&self) -> bool {
        matches!(self.context.mount_kind, MountKind::View(..))
    }

    /// The position of a write. The kernel's offset of an append is the end of the file as the kernel knows
    /// it, which a commit or an ioctl may have moved since.
    fn write_position(&self, node: &NodeRef, write: &WriteRequest<'_>) -> Position {
        let WriteRequest { handle, offset, data, write_flags, flags } = *write;
        if !appends(flags) || write_flags.is_write_back() {
            return Position::At(offset);
        }
        if self.in_view() {
            return Position::End;
        }
        // On the main mount the kernel sends a long direct write as several requests at once. Several threads
        // may take them in any order, so a part of a long write stays at its offset: a whole part, or one
        // behind the end.
        let is_part = || data.len() == WRITE_BYTES_MAX as usize || offset > self.fs.getattr(node).size_bytes;
        let is_direct = is_direct(flags) || handle == PAST_PAGES;
        if is_direct && !self.context.connection.has_one_thread() && is_part() {
            return Position::At(offset);
        }
        Position::End
    }

    pub(super) fn seek_content(
        &self,
        req: &Request,
        ino: INodeNo,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let sought = self.node(ino).and_then(|node| {
            let what = match whence {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                _ => return Err(Refusal(Errno::INVAL)),
            };
            let from = u64::try_from(offset).map_err(|_| Refusal(Errno::NXIO))?;
            let found = self.fs.seek(&node, what, from);
            let has_pages = self.context.nodes.get_content(ino.0, false).is_some_and(|(_, pages)| pages);
            let is_hole = !hole_of_answer(&self.fs, &node, what, from, &found).is_empty();
            Ok((node, what, from, found, has_pages && is_hole))
        });
        let (node, what, from, found, may_be_dirty) = match sought {
            Ok(sought) => sought,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        if !may_be_dirty {
            return reply_offset(found, reply);
        }
        let (fs, range) = (Arc::clone(&self.fs), self.cached_file(ino));
        let id = req.unique();
        self.context.blocking_threads.spawn_elsewhere(move || {
            tracing::debug!(id, ino = ino.0, "hole written back before it is answered");
            reply_offset(seek_written_back(&fs, &node, what, from, &range), reply);
        });
    }
}

fn is_direct(flags: OpenFlags) -> bool {
    flags.0 & libc::O_DIRECT != 0
}

/// Seeks again until the hole that the answer depends on has been written back: bytes that were stored
/// through a mapping are data.
fn seek_written_back<E: Storage>(
    fs: &Fs<E>,
    node: &NodeRef,
    what: Seek,
    from: u64,
    range: &CachedFile,
) -> Result<u64, FsError> {
    let mut clean = 0..0;
    for _ in 0..SEEK_ROUNDS_MAX {
        let found = fs.seek(node, what, from);
        let hole = hole_of_answer(fs, node, what, from, &found);
        if hole.is_empty() || (clean.contains(&hole.start) && hole.end <= clean.end) {
            return found;
        }
        range.drop_pages(hole.start, hole.end - hole.start);
        clean = hole;
    }
    fs.seek(node, what, from)
}

/// The hole that an answer depends on: the one that it skips, or the one that it finds.
fn hole_of_answer<E: Storage>(
    fs: &Fs<E>,
    node: &NodeRef,
    what: Seek,
    from: u64,
    found: &Result<u64, FsError>,
) -> std::ops::Range<u64> {
    let size = || fs.getattr(node).size_bytes;
    match (what, found) {
        (Seek::Data, Ok(at)) => from..*at,
        (Seek::Data, Err(FsError::NoSuchOffset)) => from..size(),
        (Seek::Hole, Ok(at)) => *at..fs.seek(node, Seek::Data, *at).unwrap_or_else(|_| size()),
        _ => 0..0,
    }
}

fn reply_offset(found: Result<u64, FsError>, reply: ReplyLseek) {
    let at = found.map_err(Refusal::from);
    match at.and_then(|at| i64::try_from(at).map(|_| at).map_err(|_| Refusal(Errno::OVERFLOW))) {
        Ok(at) => reply.offset(at),
        Err(Refusal(errno)) => reply.error(errno),
    }
}
