//! Making the mount: by mount(2) as root, by the set-user-id helper `fusermount3` as any other user.
//!
//! Either way the result is an open `/dev/fuse`, the connection to the kernel. The mount lives until it is
//! unmounted. If the last descriptor of the connection is closed first, the mount stays in the tree, dead:
//! every request fails.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::MountError;
use crate::mountpoint::{Mounted, Mountpoint, descriptor_path, helper_refused, not_permitted, system_error};
use crate::options::{MountOptions, PermissionChecks};

/// The type in the mount table, after `fuse.`.
const SUBTYPE: &str = "warpfire";

/// Mounts on `at`, and returns the mount and the connection that requests come from.
pub(crate) fn attach(at: Mountpoint, options: &MountOptions) -> Result<(OwnedFd, Mounted), MountError> {
    let device = if rustix::process::geteuid().is_root() {
        attach_as_root(&at, options)?
    } else {
        if options.suid || options.dev {
            return Err(not_permitted(
                at.path(),
                "only root can mount with set-user-id programs or with device files; mount without 'suid' and 'dev'"
                    .to_owned(),
            ));
        }
        attach_by_helper(at.path(), options)?
    };
    Ok((device, Mounted::topmost(at)?))
}

fn attach_as_root(at: &Mountpoint, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let path = at.path();
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => not_permitted(path, format!("/dev/fuse: {e}")),
        _ => system_error(path, "open /dev/fuse", e),
    })?;
    let data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0{}", device.as_raw_fd(), shared_options(options));
    let data = CString::new(data).expect("numbers and words hold no NUL");
    let kind = format!("fuse.{SUBTYPE}");
    let directory = at.open().map_err(|e| system_error(path, "open the mountpoint", e))?;
    // The link in /proc leads to the opened directory: no name is resolved any more.
    let target = descriptor_path(&directory);
    let mounted = rustix::mount::mount(
        options.fsname.as_str(),
        target,
        kind.as_str(),
        flags_of_root(options),
        Some(data.as_c_str()),
    );
    match mounted {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM | Errno::ACCESS) => Err(not_permitted(
            path,
            "mount(2) needs CAP_SYS_ADMIN; if this is a container, start it with that capability".to_owned(),
        )),
        Err(e) => Err(system_error(path, "mount", e.into())),
    }
}

/// A pool may come from somebody else, so by default its programs get no other user's rights and its device
/// files are no devices. The helper of ordinary users always mounts so.
fn flags_of_root(options: &MountOptions) -> MountFlags {
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

/// Options of the kernel that root and the helper write alike, each after a comma.
fn shared_options(options: &MountOptions) -> &'static str {
    match (options.allow_other, PermissionChecks::of_this_process(options)) {
        (_, PermissionChecks::RootOnly) => "",
        (false, PermissionChecks::Kernel) => ",default_permissions",
        (true, PermissionChecks::Kernel) => ",default_permissions,allow_other",
    }
}

/// The helper mounts and sends the connection over a socket. It takes the number of the socket from its
/// environment: here 0, its standard input.
fn attach_by_helper(at: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| system_error(at, "make a socket", e))?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(at)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => not_permitted(
                at,
                "only root can mount without fusermount3; install the package fuse3".to_owned(),
            ),
            _ => system_error(at, "run fusermount3", e),
        })?;
    // The helper has the only descriptor of the other end, so this returns also if the helper fails.
    let received = receive_descriptor(&ours);
    let mut message = String::new();
    if let Some(stderr) = &mut child.stderr {
        // The text only explains a failure. The exit status and the missing descriptor show that there is
        // one.
        let _ = stderr.read_to_string(&mut message);
    }
    let ended = child.wait().map_err(|e| system_error(at, "wait for fusermount3", e))?;
    match received {
        Ok(Some(device)) if ended.success() => Ok(device),
        Ok(_) => Err(helper_refused(at, &message)),
        Err(e) => Err(system_error(at, "receive from fusermount3", e)),
    }
}

fn helper_options(options: &MountOptions) -> String {
    let source = options.fsname.replace('\\', "\\\\").replace(',', "\\,");
    let write = if options.read_only { "ro" } else { "rw" };
    let exec = if options.exec { "exec" } else { "noexec" };
    format!("fsname={source},subtype={SUBTYPE},{write},{exec}{}", shared_options(options))
}

/// The descriptor that the other side sends; `None` if the other side closes the socket without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(descriptors.next().and_then(|mut fds| fds.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_commas_stays_one_option() {
        let options = MountOptions {
            fsname: r"a,b\c".to_owned(),
            allow_other: true,
            read_only: true,
            ..MountOptions::default()
        };
        assert_eq!(
            helper_options(&options),
            r"fsname=a\,b\\c,subtype=warpfire,ro,exec,default_permissions,allow_other"
        );
    }

    #[test]
    fn set_user_id_programs_and_devices_are_off_unless_asked_for() {
        let plain = flags_of_root(&MountOptions::default());
        assert_eq!(plain, MountFlags::NOSUID | MountFlags::NODEV);
        let all = MountOptions { suid: true, dev: true, read_only: true, ..MountOptions::default() };
        assert_eq!(flags_of_root(&all), MountFlags::RDONLY);
    }
}
