//! Requests of the kernel.

use crate::fields::{Fields, Malformed};

/// The kernel's number of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct INodeNo(pub u64);

impl INodeNo {
    /// The root directory of the mount.
    pub const ROOT: INodeNo = INodeNo(1);
}

/// The number of an open file or directory, which the answer to OPEN or OPENDIR chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHandle(pub u64);

/// The flags of open(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFlags(pub i32);

/// The header of a request: the process that asks, and the number that its answer carries.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: INodeNo,
    uid: u32,
    gid: u32,
    pid: u32,
    /// Bytes of the message.
    pub(crate) len: u32,
}

/// Flags of a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteFlags(pub(crate) u32);

impl WriteFlags {
    /// The kernel writes pages back; no program waits, and the handle and the user are guesses.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        self.0 & 1 != 0
    }

    /// The write clears set-user-id and set-group-id bits.
    #[must_use]
    pub fn kills_set_id(self) -> bool {
        self.0 & 1 << 2 != 0
    }
}

/// A READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Where to begin.
    pub offset: u64,
    /// Most bytes to answer.
    pub size: u32,
    /// Flags of the descriptor.
    pub flags: OpenFlags,
    /// Whether the request names the owner of locks. Direct reads do; reads that fill pages do not.
    pub has_lock_owner: bool,
}

/// A WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteRequest<'a> {
    /// The handle of the open file; 0 if the kernel has opened it by itself.
    pub handle: FileHandle,
    /// Where to begin.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Flags of the write.
    pub write_flags: WriteFlags,
    /// Flags of the descriptor.
    pub flags: OpenFlags,
}

/// A file to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// The bits that the process takes from the permissions. The kernel has applied it already, unless the
    /// feature `DONT_MASK` was chosen.
    pub umask: u32,
    /// The number of a device file.
    pub rdev: u32,
}

/// A SETXATTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetXattr<'a> {
    /// Name of the attribute.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// `XATTR_CREATE` or `XATTR_REPLACE` or neither.
    pub flags: u32,
    /// Whether the change of an access control list clears the set-group-id bit. `None` without the feature
    /// `SETXATTR_EXT`.
    pub kills_set_group_id: Option<bool>,
}

impl Request {
    /// Splits a message into its header and its body.
    pub(crate) fn decode(message: &[u8]) -> Result<(Request, Fields<'_>), Malformed> {
        let mut fields = Fields::new(message);
        let request = Request::decode_header(&mut fields)?;
        if request.len as usize != message.len() {
            return Err(Malformed);
        }
        Ok((request, fields))
    }

    /// Reads a header.
    pub(crate) fn decode_header(fields: &mut Fields<'_>) -> Result<Request, Malformed> {
        let len = fields.u32()?;
        let opcode = fields.u32()?;
        let unique = fields.u64()?;
        let node = INodeNo(fields.u64()?);
        let [uid, gid, pid] = [fields.u32()?, fields.u32()?, fields.u32()?];
        let _extensions = fields.u32()?;
        Ok(Request { opcode, unique, node, uid, gid, pid, len })
    }

    /// The kernel's number of the request.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The user of the process that asks.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group of the process that asks.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The thread that asks; 0 if it is outside the process namespace of the session.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl ReadRequest {
    pub(crate) fn decode(body: &mut Fields<'_>) -> Result<ReadRequest, Malformed> {
        let _handle = body.u64()?;
        let (offset, size, read_flags) = (body.u64()?, body.u32()?, body.u32()?);
        let _lock_owner = body.u64()?;
        let flags = OpenFlags(body.u32()?.cast_signed());
        Ok(ReadRequest { offset, size, flags, has_lock_owner: read_flags & 1 << 1 != 0 })
    }
}

impl<'a> WriteRequest<'a> {
    pub(crate) fn decode(body: &mut Fields<'a>) -> Result<WriteRequest<'a>, Malformed> {
        let handle = FileHandle(body.u64()?);
        let (offset, size, write_flags) = (body.u64()?, body.u32()?, WriteFlags(body.u32()?));
        let _lock_owner = body.u64()?;
        let flags = OpenFlags(body.u32()?.cast_signed());
        let _padding = body.u32()?;
        Ok(WriteRequest { handle, offset, data: body.bytes(size)?, write_flags, flags })
    }
}
