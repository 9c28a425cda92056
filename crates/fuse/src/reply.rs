//! Answers to requests. A reply that is dropped unsent, for instance by a panic, answers `EIO`, so that no
//! program waits for ever.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::attr::FileAttr;
use crate::connection::{Connection, OUT_HEADER_BYTES};
use crate::fields::Answer;
use crate::queue::QueueReply;
use crate::request::{FileHandle, INodeNo};

/// Bytes of `struct fuse_entry_out`, which comes before each name in an answer to READDIRPLUS.
const ENTRY_BYTES: usize = 128;

/// Bytes of `struct fuse_dirent` before the name.
const DIRENT_BYTES: usize = 24;

/// Inode numbers are never used again, so the generation that would distinguish their uses is constant.
const GENERATION: u64 = 0;

/// Where an answer goes: back where its request came from.
pub(crate) enum AnswerTo {
    Connection(Arc<Connection>),
    Queue(QueueReply),
}

/// The answer that a request waits for.
pub(crate) struct Reply {
    to: AnswerTo,
    unique: u64,
    is_sent: bool,
}

impl Reply {
    pub(crate) fn new(to: AnswerTo, unique: u64) -> Reply {
        Reply { to, unique, is_sent: false }
    }

    fn send(&mut self, error: i32, fill: impl FnOnce(&mut Answer), data: &[u8]) {
        self.is_sent = true;
        let mut message = Answer::default();
        let connection = match &self.to {
            AnswerTo::Connection(connection) => connection,
            AnswerTo::Queue(queue) => {
                fill(&mut message);
                return queue.send(self.unique, error, message.as_slice(), data);
            }
        };
        message.zeros(OUT_HEADER_BYTES);
        fill(&mut message);
        let len = message.as_slice().len() + data.len();
        let mut header = Answer::default();
        header
            .u32(u32::try_from(len).expect("an answer is at most as long as the kernel asked for"))
            .u32(error.cast_unsigned())
            .u64(self.unique);
        message.set_start(header.as_slice());
        let parts = [IoSlice::new(message.as_slice()), IoSlice::new(data)];
        let parts = if data.is_empty() { &parts[..1] } else { &parts };
        match connection.send(parts) {
            // `NOENT`: the program was killed. `NODEV`: the mount has ended.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(e) => tracing::error!(id = self.unique, error = %e, "the kernel refused an answer"),
        }
    }

    /// Answers with a structure.
    pub(crate) fn fields(mut self, fill: impl FnOnce(&mut Answer)) {
        self.send(0, fill, &[]);
    }

    /// Answers with bytes.
    fn data(mut self, data: &[u8]) {
        self.send(0, |_| (), data);
    }

    pub(crate) fn error(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), |_| (), &[]);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.send(-Errno::IO.raw_os_error(), |_| (), &[]);
        }
    }
}

/// Makes the types of replies, each of which can be an error.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub struct $name(pub(crate) Reply);

            impl $name {
                /// Answers with an error.
                pub fn error(self, errno: Errno) {
                    self.0.error(errno);
                }
            }
        )*
    };
}

replies! {
    /// Attributes.
    ReplyAttr;
    /// A new file and its handle.
    ReplyCreate;
    /// Bytes.
    ReplyData;
    /// Nothing.
    ReplyEmpty;
    /// An inode by its name.
    ReplyEntry;
    /// The outcome of an ioctl.
    ReplyIoctl;
    /// An offset.
    ReplyLseek;
    /// A handle.
    ReplyOpen;
    /// The space of a filesystem.
    ReplyStatfs;
    /// Attributes with the time of birth.
    ReplyStatx;
    /// A number of bytes that were written.
    ReplyWrite;
    /// An extended attribute or the list of their names, or its length.
    ReplyXattr;
}

/// Flags of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FopenFlags(u32);

impl FopenFlags {
    /// None.
    pub const NONE: FopenFlags = FopenFlags(0);
    /// Reads and writes go around the kernel's pages of the file.
    pub const DIRECT_IO: FopenFlags = FopenFlags(1 << 0);
    /// The kernel keeps its pages of the file.
    pub const KEEP_CACHE: FopenFlags = FopenFlags(1 << 1);

    /// The flags in either.
    #[must_use]
    pub const fn union(self, other: FopenFlags) -> FopenFlags {
        FopenFlags(self.0 | other.0)
    }
}

/// The space of a filesystem, as statfs(2) answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statfs {
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks that users can have.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
}

/// Adds `struct fuse_entry_out`: an inode, and how long its name and its attributes may be cached.
fn entry(answer: &mut Answer, attr: &FileAttr, name_ttl: Duration, attr_ttl: Duration) {
    answer.u64(attr.ino.0).u64(GENERATION).u64(name_ttl.as_secs()).u64(attr_ttl.as_secs());
    answer.u32(name_ttl.subsec_nanos()).u32(attr_ttl.subsec_nanos());
    attr.encode(answer);
}

fn opened(answer: &mut Answer, handle: FileHandle, flags: FopenFlags) {
    answer.u64(handle.0).u32(flags.0).zeros(4);
}

impl ReplyEntry {
    /// Answers with an inode. The kernel may cache its name and its attributes for `ttl`.
    pub fn entry(self, ttl: Duration, attr: &FileAttr) {
        self.entry_with_ttls(ttl, ttl, attr);
    }

    /// As `entry`, with a time for the name and one for the attributes.
    pub fn entry_with_ttls(self, name_ttl: Duration, attr_ttl: Duration, attr: &FileAttr) {
        self.0.fields(|answer| entry(answer, attr, name_ttl, attr_ttl));
    }

    /// Answers that the name does not exist. The kernel may cache that for `ttl`.
    pub fn absent(self, ttl: Duration) {
        self.0.fields(|answer| {
            // Inode 0.
            answer.zeros(16).u64(ttl.as_secs()).zeros(8).u32(ttl.subsec_nanos()).zeros(4 + 88);
        });
    }
}

impl ReplyAttr {
    /// Answers with attributes that the kernel may cache for `ttl`.
    pub fn attr(self, ttl: Duration, attr: &FileAttr) {
        self.0.fields(|answer| {
            answer.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).zeros(4);
            attr.encode(answer);
        });
    }
}

impl ReplyStatx {
    /// Answers with attributes that the kernel may cache for `ttl`.
    pub fn attr(self, ttl: Duration, attr: &FileAttr) {
        self.0.fields(|answer| {
            let flags = 0;
            answer.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(flags).zeros(16);
            attr.encode_statx(answer);
        });
    }
}

impl ReplyData {
    /// Answers with bytes, at most as many as the request has room for.
    pub fn data(self, data: &[u8]) {
        self.0.data(data);
    }
}

impl ReplyEmpty {
    /// Answers that the request is done.
    pub fn ok(self) {
        self.0.data(&[]);
    }
}

impl ReplyOpen {
    /// Answers with the handle of an open file or directory.
    pub fn opened(self, handle: FileHandle, flags: FopenFlags) {
        self.0.fields(|answer| opened(answer, handle, flags));
    }
}

impl ReplyCreate {
    /// Answers with a new file that is open. The kernel may cache its name and its attributes for `ttl`.
    pub fn created(self, ttl: Duration, attr: &FileAttr, handle: FileHandle, flags: FopenFlags) {
        self.0.fields(|answer| {
            entry(answer, attr, ttl, ttl);
            opened(answer, handle, flags);
        });
    }
}

impl ReplyWrite {
    /// Answers with a number of bytes.
    pub fn written(self, count: u32) {
        self.0.fields(|answer| _ = answer.u32(count).zeros(4));
    }
}

impl ReplyLseek {
    /// Answers with an offset.
    pub fn offset(self, at: u64) {
        self.0.fields(|answer| _ = answer.u64(at));
    }
}

impl ReplyStatfs {
    /// Answers with the space of the filesystem.
    pub fn statfs(self, space: &Statfs) {
        self.0.fields(|answer| {
            answer.u64(space.blocks).u64(space.free).u64(space.available);
            answer.u64(space.files).u64(space.free_files);
            answer.u32(space.block_bytes).u32(space.name_bytes_max).u32(space.block_bytes);
            let spare = 7 * 4;
            answer.zeros(spare);
        });
    }
}

impl ReplyXattr {
    /// Answers with the length of the value.
    pub fn size(self, bytes: u32) {
        self.0.fields(|answer| _ = answer.u32(bytes).zeros(4));
    }

    /// Answers with the value.
    pub fn data(self, value: &[u8]) {
        self.0.data(value);
    }
}

impl ReplyIoctl {
    /// Answers with the result of the call and the bytes that it returns in its argument.
    pub fn ioctl(mut self, result: i32, data: &[u8]) {
        let fill = |answer: &mut Answer| {
            let (flags, parts) = (0, 0);
            answer.u32(result.cast_unsigned()).u32(flags).u32(parts).u32(parts);
        };
        self.0.send(0, fill, data);
    }
}

/// Entries of a directory, as many as the request has room for.
struct Entries {
    reply: Reply,
    room: usize,
    bytes: Vec<u8>,
}

impl Entries {
    fn new(reply: Reply, room: u32) -> Entries {
        Entries { reply, room: room as usize, bytes: Vec::new() }
    }

    /// Adds an entry behind `head`, padded to 8 bytes. Returns whether it had no room.
    fn add(&mut self, head: &[u8], ino: INodeNo, cookie: u64, kind: u8, name: &[u8]) -> bool {
        let len = (head.len() + DIRENT_BYTES + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return true;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(self.room);
        }
        let end = self.bytes.len() + len;
        let name_len = u32::try_from(name.len()).expect("a name fits the room of an answer");
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(&ino.0.to_ne_bytes());
        self.bytes.extend_from_slice(&cookie.to_ne_bytes());
        self.bytes.extend_from_slice(&name_len.to_ne_bytes());
        self.bytes.extend_from_slice(&u32::from(kind).to_ne_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        false
    }
}

/// Names in a directory.
pub struct ReplyDirectory(Entries);

impl ReplyDirectory {
    pub(crate) fn new(reply: Reply, room: u32) -> Self {
        ReplyDirectory(Entries::new(reply, room))
    }

    /// Adds a name. `cookie` is the position behind it; `kind` is the type of the file, bits 12 to 15 of its
    /// mode. Returns whether it had no room.
    pub fn add(&mut self, ino: INodeNo, cookie: u64, kind: u8, name: &[u8]) -> bool {
        self.0.add(&[], ino, cookie, kind, name)
    }

    /// Answers with the names that were added; none means the end.
    pub fn ok(self) {
        self.0.reply.data(&self.0.bytes);
    }

    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.0.reply.error(errno);
    }
}

/// Names in a directory with the attributes of their files.
pub struct ReplyDirectoryPlus(Entries);

impl ReplyDirectoryPlus {
    pub(crate) fn new(reply: Reply, room: u32) -> Self {
        ReplyDirectoryPlus(Entries::new(reply, room))
    }

    /// As [`ReplyDirectory::add`]. The kernel may cache the name and the attributes for `ttl`, and counts a
    /// lookup, except for `.` and `..`.
    pub fn add(&mut self, cookie: u64, name: &[u8], ttl: Duration, attr: &FileAttr) -> bool {
        let mut head = Answer::default();
        entry(&mut head, attr, ttl, ttl);
        debug_assert_eq!(head.as_slice().len(), ENTRY_BYTES, "the kernel expects this length");
        let kind = (attr.mode >> 12) as u8 & 0o17;
        self.0.add(head.as_slice(), attr.ino, cookie, kind, name)
    }

    /// As [`ReplyDirectory::add`]: a name without attributes. The kernel counts no lookup.
    pub fn add_name(&mut self, ino: INodeNo, cookie: u64, kind: u8, name: &[u8]) -> bool {
        self.0.add(&[0; ENTRY_BYTES], ino, cookie, kind, name)
    }

    /// Answers with the names that were added; none means the end.
    pub fn ok(self) {
        self.0.reply.data(&self.0.bytes);
    }

    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.0.reply.error(errno);
    }
}
