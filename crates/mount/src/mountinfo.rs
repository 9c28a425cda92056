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
    /// The directory of the filesystem that it shows: `/`, or another for a bind mount of a part.
    pub shown: PathBuf,
    /// The type of the filesystem: `ext4`, `fuse.warpfire`.
    pub filesystem: OsString,
    /// The device, as the filesystem calls it.
    pub source: OsString,
    /// The major and minor number of the filesystem, which `stat` shows too. All mounts of one filesystem
    /// have the same.
    pub device: (u32, u32),
    /// The user that the kernel has recorded as the owner of a FUSE mount: the one that its server runs as.
    pub owner: Option<u32>,
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
        let device_number = words.nth(2)?;
        let (shown, mountpoint) = (words.next()?, words.next()?);
        // A single dash ends the optional fields, of which there may be none.
        let mut device = words.skip_while(|word| *word != b"-").skip(1);
        let (filesystem, source) = (device.next()?, device.next()?);
        let options = device.next().unwrap_or_default().split(|&b| b == b',');
        let plain = |word| OsString::from_vec(unescape(word));
        Some(MountEntry {
            mountpoint: PathBuf::from(plain(mountpoint)),
            shown: PathBuf::from(plain(shown)),
            filesystem: plain(filesystem),
            source: plain(source),
            device: parse_device(device_number)?,
            owner: options.filter_map(|option| number(option.strip_prefix(b"user_id=")?)).next(),
        })
    }

    /// Whether the filesystem is a FUSE filesystem: served by a program.
    pub(crate) fn is_fuse(&self) -> bool {
        let filesystem = self.filesystem.as_encoded_bytes();
        filesystem == b"fuse" || filesystem.starts_with(b"fuse.") || filesystem == b"fuseblk"
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A device number as the table has it: `98:0`.
fn parse_device(word: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = word.split_at(word.iter().position(|&b| b == b':')?);
    Some((number(major)?, number(&minor[1..])?))
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
        assert_eq!((mount.device, mount.owner), ((0, 40), Some(0)));
        assert!(mount.is_fuse());
        let disk = MountEntry::parse(b"36 35 8:1 / /mnt rw - ext4 /dev/sda1 rw").unwrap();
        assert!(!disk.is_fuse());
        assert_eq!((disk.device, disk.owner), ((8, 1), None));
        let part = MountEntry::parse(br"36 35 8:1 /a\040b /mnt rw - ext4 /dev/sda1 rw").unwrap();
        assert_eq!((part.shown, part.mountpoint), ("/a b".into(), "/mnt".into()));
        assert_eq!(MountEntry::parse(b""), None);
    }

    #[test]
    fn only_whole_octal_escapes_are_undone() {
        assert_eq!(unescape(br"a\040b\134c\0"), br"a b\c\0");
    }
}
