//! How mounts begin and end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal};
use warpfire_fs::NewMode;
use warpfire_fs::acl::Caller;
use warpfire_mount::{MountError, MountOptions, TransactionClient, mount};
use warpfire_test_needs::{Need, skip};

use crate::fixture;
use crate::views::wait_until;

/// The example `memory`, in a process of its own.
struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// `None`, with a message, where mounting is not possible.
    fn start(mountpoint: &Path) -> Option<ServerProcess> {
        ServerProcess::start_by(Command::new(ServerProcess::program()), mountpoint)
    }

    fn program() -> PathBuf {
        let tests = std::env::current_exe().unwrap();
        tests.parent().and_then(Path::parent).unwrap().join("examples/memory")
    }

    /// As `start`, by a command that ends with the program.
    fn start_by(mut command: Command, mountpoint: &Path) -> Option<ServerProcess> {
        let mut child = command
            .arg(mountpoint)
            .arg("--views-at")
            .arg(mountpoint.with_extension("views"))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("cargo builds examples with tests");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("mounted") {
            return Some(ServerProcess { child });
        }
        child.wait().unwrap();
        skip(Need::Fuse, "the server of the test does not mount");
        None
    }

    /// How many of its threads have this name.
    fn threads_named(&self, name: &str) -> usize {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
        names.filter(|found| found.trim() == name).count()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

fn is_mounted(path: &Path) -> bool {
    let path = path.to_str().unwrap();
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().any(|l| l.split(' ').nth(4) == Some(path))
}

fn quiet() -> MountOptions {
    MountOptions { unmount_on_signals: false, ..MountOptions::default() }
}

#[test]
fn sigterm_unmounts_and_ends_without_error() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = ServerProcess::start(dir.path()) else { return };
    fs::write(dir.path().join("file"), b"x").unwrap();
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    assert!(!is_mounted(dir.path()));
}

/// Makes a file in a mount, and lets its server end.
fn use_and_end(mut server: ServerProcess, at: &Path) {
    fs::write(at.join("file"), b"x").unwrap();
    assert_eq!(fs::read(at.join("file")).unwrap(), b"x");
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn requests_come_by_queues_where_the_kernel_has_them() {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    if parameter.trim() != "Y" {
        return skip(Need::FuseQueues, "fuse.enable_uring is not set");
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = ServerProcess::start(dir.path()) else { return };
    // After the first answer, all threads are there. A new one has its name a moment later.
    fs::write(dir.path().join("first"), b"x").unwrap();
    let processors = thread::available_parallelism().unwrap().get().min(16);
    wait_until("each queue has one thread that works and one that stands by", || {
        ["warpfire-queue", "warpfire-relief"].iter().all(|name| server.threads_named(name) == processors)
    });
    use_and_end(server, dir.path());

    let mut command = Command::new(ServerProcess::program());
    command.arg("--no-queues");
    let server = ServerProcess::start_by(command, dir.path()).unwrap();
    fs::write(dir.path().join("first"), b"x").unwrap();
    assert_eq!(server.threads_named("warpfire-queue"), 0);
    use_and_end(server, dir.path());
}

/// Containers forbid io_uring.
#[test]
fn a_server_that_may_not_use_io_uring_takes_requests_by_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let Some(forbid) = fixture::c_program("forbid", dir.path()) else { return };
    let mut command = Command::new(forbid);
    command.arg(ServerProcess::program());
    let Some(server) = ServerProcess::start_by(command, &at) else { return };
    fs::write(at.join("first"), b"x").unwrap();
    assert_eq!(server.threads_named("warpfire-queue"), 0);
    use_and_end(server, &at);
}

/// As an administrator ends a mount that hangs.
#[test]
fn a_forced_unmount_ends_the_server_while_programs_write() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = ServerProcess::start(dir.path()) else { return };
    if !rustix::process::geteuid().is_root() {
        server.signal(Signal::TERM);
        server.child.wait().unwrap();
        return skip(Need::Root, "only root can force an unmount");
    }
    thread::scope(|scope| {
        for program in 0..4 {
            let path = dir.path().join(program.to_string());
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                let error =
                    (0..).find_map(|_| file.write_all(&[1; 100_000]).and_then(|()| file.sync_data()).err());
                let error = error.expect("it writes until the mount ends");
                let known = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO].map(Some);
                assert!(known.contains(&error.raw_os_error()), "{error}");
            });
        }
        let has_written = |program: &i32| {
            fs::metadata(dir.path().join(program.to_string())).is_ok_and(|file| file.len() > 1_000_000)
        };
        wait_until("all programs write", || (0..4).all(|program| has_written(&program)));
        // Aborts the connection; the mount itself is in use.
        let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::FORCE);
    });
    server.child.wait().unwrap();
    let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn sigterm_with_an_open_file_detaches() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = ServerProcess::start(dir.path()) else { return };
    let mut open = File::create(dir.path().join("file")).unwrap();
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    assert!(!is_mounted(dir.path()));
    assert!(open.write_all(b"there is no server").is_err());
}

#[test]
fn a_mount_whose_server_was_killed_is_replaced_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = ServerProcess::start(dir.path()) else { return };
    fs::write(dir.path().join("file"), b"x").unwrap();
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    assert!(fs::metadata(dir.path()).is_err(), "the mount is dead");
    let mut next = ServerProcess::start(dir.path()).expect("a dead mount does not stand in the way");
    fs::write(dir.path().join("file"), b"y").unwrap();
    next.signal(Signal::TERM);
    assert!(next.child.wait().unwrap().success());
    assert!(!is_mounted(dir.path()));
}

#[test]
fn views_of_a_server_that_was_killed_are_taken_away_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (mountpoint, views) = (dir.path().join("mnt"), dir.path().join("mnt.views"));
    fs::create_dir(&mountpoint).unwrap();
    let Some(mut server) = ServerProcess::start(&mountpoint) else { return };
    let begun = TransactionClient::open(&mountpoint).unwrap().begin(false).unwrap();
    fs::write(begun.path.join("file"), b"x").unwrap();
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    assert!(fs::read(begun.path.join("file")).is_err(), "the view is dead");
    assert_eq!(fs::read_dir(&views).unwrap().count(), 1);
    let mut next = ServerProcess::start(&mountpoint).expect("a dead mount does not stand in the way");
    assert_eq!(fs::read_dir(&views).unwrap().count(), 0);
    assert!(!mountpoint.join("file").exists());
    next.signal(Signal::TERM);
    assert!(next.child.wait().unwrap().success());
}

/// Regression: the kernel answered `stat` of the dead mount from its cache, so the mount seemed alive.
#[test]
fn a_dead_mount_that_still_shows_attributes_is_replaced_too() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = ServerProcess::start(dir.path()) else { return };
    fs::metadata(dir.path()).unwrap();
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    assert!(fs::metadata(dir.path()).is_ok(), "the kernel remembers");
    let mut next = ServerProcess::start(dir.path()).expect("a dead mount does not stand in the way");
    next.signal(Signal::TERM);
    assert!(next.child.wait().unwrap().success());
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_directory_with_the_name_that_a_mount_opens_once_is_shown() {
    let name = ".warpfire-opened-once";
    let (dir, fs) = (tempfile::tempdir().unwrap(), fixture::filesystem());
    fs.mkdir(&Caller::ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o755)).unwrap();
    let Some(mut session) = fixture::mounted(fs, dir.path(), &quiet()) else { return };
    assert!(dir.path().join(name).is_dir());
    fixture::unmount(&mut session).unwrap();
}

#[test]
fn a_live_mount_is_not_mounted_over() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut first) = fixture::mounted(fixture::filesystem(), dir.path(), &quiet()) else { return };
    let second = mount(fixture::filesystem(), dir.path(), &quiet());
    assert!(matches!(second, Err(MountError::AlreadyMounted(_))));
    first.unmount().unwrap();
}

#[test]
fn a_mount_in_use_says_so_and_unmounts_later() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut session) = fixture::mounted(fixture::filesystem(), dir.path(), &quiet()) else { return };
    let open = File::create(dir.path().join("file")).unwrap();
    assert!(matches!(session.unmount(), Err(MountError::InUse(_))));
    drop(open);
    fixture::unmount(&mut session).unwrap();
    assert!(!is_mounted(dir.path()));
}

#[test]
fn wait_returns_when_someone_else_unmounts() {
    let dir = tempfile::tempdir().unwrap();
    let Some(session) = fixture::mounted(fixture::filesystem(), dir.path(), &quiet()) else { return };
    let path: PathBuf = session.mountpoint().to_owned();
    let waiting = thread::spawn(move || session.wait());
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    waiting.join().unwrap().unwrap();
}

#[test]
fn dropping_a_session_unmounts() {
    let dir = tempfile::tempdir().unwrap();
    let Some(session) = fixture::mounted(fixture::filesystem(), dir.path(), &quiet()) else { return };
    drop(session);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { read_only: true, ..quiet() };
    let Some(mut session) = fixture::mounted(fixture::filesystem(), dir.path(), &options) else { return };
    let refused = fs::write(dir.path().join("file"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    session.unmount().unwrap();
}

#[test]
fn a_path_that_cannot_be_mounted_on_is_named() {
    let dir = tempfile::tempdir().unwrap();
    if !Path::new("/dev/fuse").exists() {
        return skip(Need::Fuse, "there is no /dev/fuse");
    }
    let missing = mount(fixture::filesystem(), &dir.path().join("nowhere"), &quiet());
    assert!(matches!(missing, Err(MountError::Missing(_))));
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(mount(fixture::filesystem(), &file, &quiet()), Err(MountError::NotADirectory(_))));
}
