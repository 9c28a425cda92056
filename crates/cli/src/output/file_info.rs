//! One file as `ls` and `stat` show it.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use warpfire::FileType;
use warpfire_terminal::{path_bytes, path_text};

use super::Rfc3339;
use crate::tree::Attributes;

/// The metadata of a file, as JSON.
#[derive(Debug, Serialize)]
pub struct FileInfo {
    /// The name or path, as the filesystem has it.
    #[serde(skip)]
    pub raw_name: OsString,
    /// The target of a symbolic link, as the filesystem has it.
    #[serde(skip)]
    pub raw_target: Option<OsString>,
    /// Its name in a listing, or its path on the command line.
    pub name: String,
    /// The bytes of a name that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `block device` or `character device`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Permission bits, in octal.
    pub mode: String,
    /// The number of its names.
    pub links: u64,
    /// The number of the owning user.
    pub uid: u32,
    /// The number of the owning group.
    pub gid: u32,
    /// Its length.
    pub size_bytes: u64,
    /// Bytes of data, holes not included.
    pub allocated_bytes: u64,
    /// Its number in the pool.
    pub inode: u64,
    /// The major and minor number of a device node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// When it was last read.
    pub accessed: Rfc3339,
    /// When its content last changed.
    pub modified: Rfc3339,
    /// When its content or its attributes last changed.
    pub changed: Rfc3339,
    /// When it was made. Absent on a mount: Linux does not ask FUSE servers for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Rfc3339>,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The bytes of a target that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<String>,
}

impl FileInfo {
    /// The metadata of a file; `target` is the target of a symbolic link.
    #[must_use]
    pub fn new(name: &Path, metadata: &Attributes, target: Option<&Path>) -> Self {
        let is_device = matches!(metadata.file_type, FileType::BlockDevice | FileType::CharDevice);
        FileInfo {
            raw_name: name.as_os_str().to_owned(),
            raw_target: target.map(|target| target.as_os_str().to_owned()),
            name: path_text(name),
            name_bytes: path_bytes(name),
            kind: kind(metadata.file_type),
            mode: format!("{:04o}", metadata.mode),
            links: metadata.nlink,
            uid: metadata.uid,
            gid: metadata.gid,
            size_bytes: metadata.len,
            allocated_bytes: metadata.allocated_bytes,
            inode: metadata.ino,
            device: is_device.then_some(metadata.device_numbers),
            accessed: Rfc3339(metadata.accessed),
            modified: Rfc3339(metadata.modified),
            changed: Rfc3339(metadata.changed),
            created: metadata.created.map(Rfc3339),
            target: target.map(path_text),
            target_bytes: target.and_then(path_bytes),
        }
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::File => "file",
        FileType::Dir => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::BlockDevice => "block device",
        FileType::CharDevice => "character device",
    }
}

/// Type and permissions as `ls -l` writes them: `drwxr-xr-t`.
#[must_use]
pub fn mode_letters(metadata: &Attributes) -> String {
    let first = match metadata.file_type {
        FileType::File => '-',
        FileType::Dir => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
    };
    let mode = metadata.mode;
    let mut text = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}
