//! Privileges in a shared mount: set-id bits and capabilities that a change of content takes away, and roots
//! of user namespaces.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{FallocateFlags, XattrFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use warpfire_mount::{MountedSlice, TransactionClient, TransactionState, remove_range};
use warpfire_test_needs::{Need, skip};

use crate::fixture::{MountFixture, access_list_for};
use crate::views::commit;

const USER: u32 = 1000;

/// The value of `security.capability` that grants nothing.
const NO_CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A page at an aligned address, as direct I/O may need it.
#[repr(align(4096))]
struct Page([u8; 4096]);

type Call = (&'static str, fn(&Path) -> std::io::Result<()>);

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn allocated(path: &Path, flags: FallocateFlags, len: u64) -> std::io::Result<()> {
    Ok(fallocate(open(path)?, flags, 0, len)?)
}

fn yanked(path: &Path) -> std::io::Result<(File, MountedSlice)> {
    let file = open(path)?;
    let slice = MountedSlice::yank(&file, 0..100)?;
    Ok((file, slice))
}

/// Every call that changes the content of a file.
const CALLS: [Call; 18] = [
    ("write", |path| open(path)?.write_all_at(b"x", 0)),
    ("append", |path| File::options().append(true).open(path)?.write_all(b"x")),
    ("direct write", |path| {
        let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(path)?;
        direct.write_all_at(&Page([1; 4096]).0, 0)
    }),
    ("truncate", |path| open(path)?.set_len(100)),
    ("truncate up", |path| open(path)?.set_len(30_000)),
    ("open with truncation", |path| File::options().write(true).truncate(true).open(path).map(drop)),
    ("allocate", |path| allocated(path, FallocateFlags::empty(), 30_000)),
    ("allocate, same size", |path| allocated(path, FallocateFlags::KEEP_SIZE, 30_000)),
    ("allocate bytes that are there", |path| allocated(path, FallocateFlags::empty(), 100)),
    ("punch", |path| allocated(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096)),
    ("zero", |path| allocated(path, FallocateFlags::ZERO_RANGE, 30_000)),
    ("zero, same size", |path| allocated(path, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 4096)),
    ("copy_file_range", |path| {
        let source = File::open(path.parent().unwrap().join("source"))?;
        rustix::fs::copy_file_range(source, Some(&mut 0), open(path)?, Some(&mut 0), 4096)?;
        Ok(())
    }),
    ("paste", |path| yanked(path).and_then(|(file, slice)| slice.paste(&file, Some(7)).map(drop))),
    ("paste at the end", |path| yanked(path).and_then(|(file, slice)| slice.paste(&file, None).map(drop))),
    ("insert", |path| yanked(path).and_then(|(file, slice)| slice.insert(&file, 7))),
    ("replace", |path| yanked(path).and_then(|(file, slice)| slice.replace(&file))),
    ("remove", |path| remove_range(&open(path)?, 3..10)),
];

/// Runs on a thread of this user.
fn as_user<T: Send>(uid: u32, run: impl FnOnce() -> T + Send) -> T {
    let on_thread = || {
        if uid != 0 {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
        }
        run()
    };
    thread::scope(|scope| scope.spawn(on_thread).join().unwrap())
}

/// A file of the user with set-id bits and, if asked for, capabilities.
fn privileged_file(path: &Path, with_capabilities: bool) {
    fs::write(path, [b'a'; 8192]).unwrap();
    chown(path, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o6777)).unwrap();
    if with_capabilities {
        rustix::fs::setxattr(path, "security.capability", &NO_CAPABILITIES, XattrFlags::empty()).unwrap();
    }
}

fn capabilities(path: &Path) -> Option<Errno> {
    rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).err()
}

#[test]
fn every_change_of_content_takes_set_id_bits_and_capabilities_from_a_file() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(fixture.at("source"), [b's'; 8192]).unwrap();
    let control = TransactionClient::open(fixture.path()).unwrap();
    for uid in [0, USER] {
        for with_capabilities in [false, true] {
            for (name, call) in CALLS {
                for in_view in [false, true] {
                    let case = format!("{name} as {uid}, capabilities: {with_capabilities}, view: {in_view}");
                    let path = fixture.at("file");
                    privileged_file(&path, with_capabilities);
                    if in_view {
                        let begun = as_user(uid, || control.begin(false)).unwrap();
                        as_user(uid, || call(&begun.path.join("file"))).expect(&case);
                        assert_eq!(commit(&control, begun.id).state, TransactionState::Committed, "{case}");
                    } else {
                        as_user(uid, || call(&path)).expect(&case);
                    }
                    let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
                    assert_eq!(mode, if uid == 0 { 0o6777 } else { 0o777 }, "{case}");
                    assert_eq!(capabilities(&path), Some(Errno::NODATA), "{case}");
                }
            }
        }
    }
}

/// Calls that change the content of a program, which still runs afterwards.
const CHANGES: [Call; 5] = [
    ("append past the pages", |path| File::options().append(true).open(path)?.write_all(b"x")),
    ("append", |path| File::options().read(true).append(true).open(path)?.write_all(b"x")),
    ("write", |path| open(path)?.write_all_at(b"\x7f", 0)),
    ("allocate", |path| {
        let len = fs::metadata(path)?.len();
        Ok(fallocate(open(path)?, FallocateFlags::KEEP_SIZE, len, 4096)?)
    }),
    ("copy_file_range", |path| {
        let mut len = fs::metadata(path)?.len();
        rustix::fs::copy_file_range(File::open(path)?, Some(&mut 0), open(path)?, Some(&mut len), 100)?;
        Ok(())
    }),
];

/// The kernel takes the bits of a program that it runs from its cache.
#[test]
fn a_program_that_was_changed_does_not_run_with_its_set_user_id_bit() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,bind,suid"]).arg(fixture.path());
    assert!(remount.status().unwrap().success());
    for (name, change) in CHANGES {
        let path = fixture.at("program");
        fs::copy("/usr/bin/id", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let runs_as = || {
            let output = as_user(USER, || Command::new(&path).arg("-u").output()).unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
        };
        assert_eq!(runs_as(), 0, "{name}: the mount honours the bit");
        as_user(USER, || change(&path)).expect(name);
        assert_eq!(runs_as(), USER, "{name}");
    }
}

#[test]
fn a_write_by_the_descriptor_that_made_a_file_takes_its_privileges() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for uid in [0, USER] {
        let path = fixture.at(&format!("file-of-{uid}"));
        let made = as_user(uid, || File::create(&path)).unwrap();
        as_user(uid, || (&made).write_all(b"first")).unwrap();
        privileged_file(&path, true);
        as_user(uid, || (&made).write_all(b"second")).unwrap();
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, if uid == 0 { 0o6777 } else { 0o777 }, "{uid}");
        assert_eq!(capabilities(&path), Some(Errno::NODATA), "{uid}");
    }
}

#[test]
fn an_ordinary_user_cannot_set_or_remove_the_capabilities_of_a_file() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = fixture.at("file");
    privileged_file(&path, true);
    let refused = as_user(USER, || {
        let name = "security.capability";
        [
            rustix::fs::removexattr(&path, name),
            rustix::fs::setxattr(&path, name, &NO_CAPABILITIES, XattrFlags::empty()),
            rustix::fs::setxattr(&path, "trusted.x", b"", XattrFlags::empty()),
        ]
    });
    assert_eq!(refused, [Err(Errno::PERM); 3]);
    assert_eq!(capabilities(&path), None);
}

/// A shell command as root of a user namespace of the user, in which 0 is the user and 1 to 1000 are 100,001
/// to 101,000. `None` where there are no user namespaces.
fn as_root_of_a_namespace(command: &str) -> Option<bool> {
    let mut shell = Command::new("unshare");
    shell.args(["-U", "sh", "-c", "echo ready; read go; exec sh -c \"$0\"", command]);
    shell.uid(USER).gid(USER).stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
    let Ok(mut shell) = shell.spawn() else {
        skip(Need::Namespaces, "there is no unshare");
        return None;
    };
    let mut ready = [0; 6];
    if std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).is_err() {
        skip(Need::Namespaces, "unshare failed");
        shell.wait().unwrap();
        return None;
    }
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", shell.id()), "0 1000 1\n1 100001 1000\n").unwrap();
    }
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    Some(shell.wait().unwrap().success())
}

#[test]
fn the_root_of_a_user_namespace_changes_owners_and_modes_of_its_files() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for name in ["own", "of-another"] {
        fs::write(fixture.at(name), b"x").unwrap();
    }
    chown(fixture.at("own"), Some(USER), Some(USER)).unwrap();
    let at = fixture.path().display();
    let command = format!(
        "chown 5:7 {at}/own && chmod 2755 {at}/own && mkdir {at}/d && chown 0:9 {at}/d && chmod 2777 {at}/d \
         && touch {at}/d/f && chmod 2711 {at}/d/f && chgrp 3 {at}/d/f"
    );
    let Some(done) = as_root_of_a_namespace(&command) else { return };
    assert!(done);
    let of = |name: &str| {
        let metadata = fs::metadata(fixture.at(name)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(of("own"), (100_005, 100_007, 0o2755));
    assert_eq!(of("d"), (USER, 100_009, 0o2777));
    assert_eq!(of("d/f"), (USER, 100_003, 0o711));
    assert_eq!(as_root_of_a_namespace(&format!("chown 5 {at}/of-another")), Some(false));
    assert_eq!(as_root_of_a_namespace(&format!("chmod 777 {at}/of-another")), Some(false));
}

#[test]
fn an_access_list_set_from_outside_of_the_group_clears_the_set_group_id_bit() {
    let Some(fixture) = MountFixture::shared() else { return };
    let path = fixture.at("file");
    let list = access_list_for(4321);
    for (uid, gid, mode) in [(USER, 77, 0o640), (USER, USER, 0o2640), (0, 77, 0o2640)] {
        fs::write(&path, b"x").unwrap();
        chown(&path, Some(USER), Some(gid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2640)).unwrap();
        as_user(uid, || rustix::fs::setxattr(&path, "system.posix_acl_access", &list, XattrFlags::empty()))
            .unwrap();
        let seen = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(seen, mode, "user {uid} and a file of group {gid}");
        fs::remove_file(&path).unwrap();
    }
    // The root of a user namespace has the capability to keep it.
    fs::write(&path, b"x").unwrap();
    chown(&path, Some(USER), Some(100_003)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2640)).unwrap();
    let Some(done) = as_root_of_a_namespace(&format!("setfacl -m u:5:r {}", path.display())) else { return };
    if done {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o2640);
    }
}

#[test]
fn renaming_with_a_whiteout_leaves_a_device_with_number_0() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("from"), b"new").unwrap();
    fs::write(fixture.at("to"), b"old").unwrap();
    let flags = rustix::fs::RenameFlags::WHITEOUT;
    let here = rustix::fs::CWD;
    rustix::fs::renameat_with(here, fixture.at("from"), here, fixture.at("to"), flags).unwrap();
    assert_eq!(fs::read(fixture.at("to")).unwrap(), b"new");
    let whiteout = fs::metadata(fixture.at("from")).unwrap();
    let char_device = rustix::fs::FileType::CharacterDevice.as_raw_mode();
    assert_eq!((whiteout.mode(), whiteout.rdev(), whiteout.nlink()), (char_device, 0, 1));
    fs::remove_file(fixture.at("from")).unwrap();
}
