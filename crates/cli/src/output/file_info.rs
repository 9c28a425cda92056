//! One file as `ls` and `stat` show it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use warpfire::FileType;

use super::time::exact_moment;
use crate::tree::Attributes;

/// The metadata of a file, as JSON.
#[derive(Debug, Serialize)]
pub struct FileInfo {
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
    pub links: u64,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    pub accessed: String,
    pub modified: String,
    pub changed: String,
    /// Absent on a mount: Linux does not ask FUSE servers for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
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
            name: name.display().to_string(),
            name_bytes: bytes_of(name),
            kind: kind(metadata.file_type),
            mode: format!("{:04o}", metadata.mode),
            links: metadata.nlink,
            uid: metadata.uid,
            gid: metadata.gid,
            size_bytes: metadata.len,
            allocated_bytes: metadata.allocated_bytes,
            inode: metadata.ino,
            device: is_device.then_some(metadata.device_numbers),
            accessed: exact_moment(metadata.accessed),
            modified: exact_moment(metadata.modified),
            changed: exact_moment(metadata.changed),
            created: metadata.created.map(exact_moment),
            target: target.map(|target| target.display().to_string()),
            target_bytes: target.and_then(bytes_of),
        }
    }
}

/// The bytes of a path that is no UTF-8, in base64. JSON is text and cannot hold them otherwise.
#[must_use]
pub fn bytes_of(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().as_bytes();
    std::str::from_utf8(bytes).is_err().then(|| base64(bytes))
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > group.len() { '=' } else { char::from(letter) });
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(b"\xff\xfe\xfd"), "//79");
        assert_eq!(bytes_of(Path::new("text")), None);
    }
}
