//! The kernel's table of mounts, `/proc/self/mountinfo`, as proc_pid_mountinfo(5) describes it:
//! `36 35 98:0 /root /mountpoint options shared:1 - type source options`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount that this process sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// The directory that it is on.
    pub mountpoint: PathBuf,
    /// The type of the filesystem: `ext4`, `fuse.warpfire`.
    pub filesystem: OsString,
    /// The device, as the filesystem calls it.
    pub source: OsString,
}

/// The mounts that this process sees. Of two on one directory the later hides the earlier.
///
/// # Errors
/// The error of reading `/proc/self/mountinfo`.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&b| b == b'\n').filter_map(MountEntry::parse).collect())
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut words = line.split(|&b| b == b' ');
        let mountpoint = words.nth(4)?;
        // A single dash ends the optional fields, of which there may be none.
        let mut device = words.skip_while(|word| *word != b"-").skip(1);
        let (filesystem, source) = (device.next()?, device.next()?);
        let plain = |word| OsString::from_vec(unescape(word));
        Some(MountEntry {
            mountpoint: PathBuf::from(plain(mountpoint)),
            filesystem: plain(filesystem),
            source: plain(source),
        })
    }

    /// Whether the filesystem is a FUSE filesystem: served by a program.
    pub(crate) fn is_fuse(&self) -> bool {
        let filesystem = self.filesystem.as_encoded_bytes();
        filesystem == b"fuse" || filesystem.starts_with(b"fuse.") || filesystem == b"fuseblk"
    }
}

/// Undoes the octal escapes (`\040` for a space) of the mount table.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let escape = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match escape {
            Some(digits) => {
                plain.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_mount() {
        let fuse = br"36 35 0:40 / /mnt/my\040disk rw,nosuid shared:7 master:1 - fuse.warpfire pool.img rw,user_id=0";
        let mount = MountEntry::parse(fuse).unwrap();
        assert_eq!(mount.mountpoint, PathBuf::from("/mnt/my disk"));
        assert_eq!(
            (mount.filesystem.as_os_str(), mount.source.as_os_str()),
            ("fuse.warpfire".as_ref(), "pool.img".as_ref())
        );
        assert!(mount.is_fuse());
        assert!(!MountEntry::parse(b"36 35 8:1 / /mnt rw - ext4 /dev/sda1 rw").unwrap().is_fuse());
        assert_eq!(MountEntry::parse(b""), None);
    }

    #[test]
    fn only_whole_octal_escapes_are_undone() {
        assert_eq!(unescape(br"a\040b\134c\0"), br"a b\c\0");
    }
}
