//! A mount for one test.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Gid, Uid};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use warpfire_env::{Clock, Device, MemDevice, SystemClock, SystemRandom};
use warpfire_fs::{Fs, FsOptions, FsSchema};
use warpfire_log::Log;
use warpfire_meta::{Engine, EngineOptions, MemoryLimits};
use warpfire_mount::{MountError, MountOptions, Session, mount};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_test_needs::{Need, skip};
use warpfire_units::BLOCK_BYTES;

/// How often an unmount is tried again while the mount is in use: for about ten seconds.
const UNMOUNT_TRIES_MAX: u32 = 5000;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(2);

/// A mounted filesystem in memory, unmounted when dropped.
pub struct MountFixture {
    session: Option<Session>,
    directory: tempfile::TempDir,
    views: tempfile::TempDir,
    pool: Pool,
    device: Arc<dyn Device>,
    fs: Arc<Fs<Engine<Log, FsSchema>>>,
}

impl MountFixture {
    /// Mounted for the user that runs the tests; `None`, with a message, where mounting is not possible.
    pub fn new() -> Option<MountFixture> {
        MountFixture::mounted(&MountOptions::default())
    }

    /// Mounted for all users. Needs root: only root can run a command as another user.
    pub fn shared() -> Option<MountFixture> {
        MountFixture::shared_with(MemoryLimits::default())
    }

    /// As `shared`, with these limits of memory.
    pub fn shared_with(memory: MemoryLimits) -> Option<MountFixture> {
        if !rustix::process::geteuid().is_root() {
            skip(Need::Root, "only root can run a command as another user");
            return None;
        }
        let options = MountOptions { allow_other: true, ..MountOptions::default() };
        MountFixture::mounted_with(&options, EngineOptions::default(), memory)
    }

    /// Mounted with these options.
    pub fn mounted(options: &MountOptions) -> Option<MountFixture> {
        MountFixture::mounted_with(options, EngineOptions::default(), MemoryLimits::default())
    }

    /// Mounted with a cache of so many bytes.
    pub fn with_cache(block_cache_bytes: u64) -> Option<MountFixture> {
        let engine = EngineOptions { block_cache_bytes, ..EngineOptions::default() };
        MountFixture::mounted_with(&MountOptions::default(), engine, MemoryLimits::default())
    }

    fn mounted_with(
        options: &MountOptions,
        engine: EngineOptions,
        memory: MemoryLimits,
    ) -> Option<MountFixture> {
        let (directory, views) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // Temporary directories are closed to other users. What others may not see here, the mount has to
        // keep from them.
        for open_to_all in [&directory, &views] {
            std::fs::set_permissions(open_to_all, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let options = MountOptions {
            unmount_on_signals: false,
            fsname: "test".to_owned(),
            views_at: options.views_at.clone().or_else(|| Some(views.path().join("warpfire"))),
            ..options.clone()
        };
        let device: Arc<dyn Device> = Arc::new(MemDevice::new("memory", 256 << 20));
        let (fs, pool) = filesystem_on(Arc::clone(&device), engine, memory);
        let session = mounted(Arc::clone(&fs), directory.path(), &options)?;
        Some(MountFixture { session: Some(session), directory, views, pool, device, fs })
    }

    /// Destroys each block of the device that has this content. Returns how many there were.
    pub fn destroy_blocks(&self, content: &[u8; BLOCK_BYTES]) -> usize {
        let mut block = vec![0; BLOCK_BYTES];
        let is_destroyed = |at: &u64| {
            self.device.read(*at, &mut block).unwrap();
            let is_hit = block == content;
            if is_hit {
                self.device.write(*at, &[0x5A; BLOCK_BYTES]).unwrap();
            }
            is_hit
        };
        (0..self.device.info().size_bytes).step_by(BLOCK_BYTES).filter(is_destroyed).count()
    }

    /// Rolls the mounted filesystem back, as its server does.
    pub fn roll_back(&self, name: &[u8], kept_as: &[u8]) {
        let session = self.session.as_ref().expect("it is mounted");
        session.rollback()(name, kept_as).unwrap();
    }

    /// The filesystem that is mounted.
    pub fn fs(&self) -> &Fs<Engine<Log, FsSchema>> {
        &self.fs
    }

    /// The mountpoint.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The directory that views are mounted in.
    pub fn base_of_views(&self) -> PathBuf {
        self.views.path().join("warpfire")
    }

    /// Number of views that have a directory. Some may be kept for later transactions.
    pub fn views(&self) -> usize {
        std::fs::read_dir(self.base_of_views()).map_or(0, Iterator::count)
    }

    /// Ids of the transactions that views show.
    pub fn shown(&self) -> Vec<String> {
        let views = std::fs::read_dir(self.base_of_views()).into_iter().flatten();
        let shown = views.flat_map(|view| std::fs::read_dir(view.unwrap().path().join("view")).unwrap());
        shown.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Number of inodes that the kernel remembers.
    pub fn remembered_inodes(&self) -> usize {
        self.session.as_ref().expect("it is mounted").remembered_inodes()
    }

    /// Ends the mount, also while views are open.
    pub fn end(&mut self) {
        self.session.take().expect("a mount ends once").detach().unwrap();
    }

    /// Tries to unmount. The mount stays if that fails.
    pub fn try_unmount(&mut self) -> Result<(), MountError> {
        self.session.as_mut().expect("it is mounted").unmount()
    }

    /// Payload bytes, of data and metadata alike, that have been written to the pool.
    pub fn written_bytes(&self) -> u64 {
        self.pool.counters().payload_bytes
    }

    /// Reads of the device.
    pub fn device_reads(&self) -> u64 {
        self.pool.counters().total.reads
    }

    /// Flushes of the device.
    pub fn flushes(&self) -> u64 {
        self.pool.counters().total.flushes
    }

    /// A path in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Whether a shell command succeeds as another user.
    pub fn as_user(&self, uid: u32, command: &str) -> bool {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir("/").uid(uid).gid(uid);
        // Readers of the test runner's output find the name of a test at the beginning of a line.
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        shell.status().unwrap().success()
    }

    /// Whether another user can read a file.
    pub fn can_read(&self, path: &Path, uid: u32) -> bool {
        self.as_user(uid, &format!("cat {} > /dev/null", path.display()))
    }
}

/// Runs some work on a thread of its own as another user, without groups and capabilities. Needs root.
pub fn run_as<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let as_user = move || {
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join()).unwrap()
}

impl Drop for MountFixture {
    fn drop(&mut self) {
        if let Some(mut session) = self.session.take() {
            let ended = unmount(&mut session);
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// Unmounts after the test has closed its files. A child process that another test is just starting has
/// copies of all descriptors of this process until it runs its own program, and keeps the mount in use as
/// long.
pub fn unmount(session: &mut Session) -> Result<(), MountError> {
    let ended = (0..UNMOUNT_TRIES_MAX).find_map(|_| match session.unmount() {
        Err(MountError::InUse(_)) => {
            std::thread::park_timeout(UNMOUNT_PAUSE);
            None
        }
        ended => Some(ended),
    });
    ended.unwrap_or_else(|| session.unmount())
}

/// An access control list as an extended attribute: owner rw-, this user r--, group ---, mask r--, other ---.
pub fn access_list_for(user: u32) -> Vec<u8> {
    let list = [(1u16, 6u16, u32::MAX), (2, 4, user), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in list {
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

/// An empty filesystem on a device in memory.
pub fn filesystem() -> Arc<Fs<Engine<Log, FsSchema>>> {
    let device = Arc::new(MemDevice::new("memory", 256 << 20));
    filesystem_on(device, EngineOptions::default(), MemoryLimits::default()).0
}

fn filesystem_on(
    device: Arc<dyn Device>,
    options: EngineOptions,
    memory: MemoryLimits,
) -> (Arc<Fs<Engine<Log, FsSchema>>>, Pool) {
    let alone = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let pool = Pool::create(vec![device], &alone, &SystemRandom, SystemClock.now()).unwrap();
    let (log, recovered) = Log::create(pool.clone()).unwrap();
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options).unwrap());
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Fs::format(&*engine, &SystemClock, uid, gid).unwrap();
    let options = FsOptions { memory, ..FsOptions::default() };
    (Arc::new(Fs::open(engine, Arc::new(SystemClock), options).unwrap()), pool)
}

/// Compiles a C program into `directory`, and lets all users enter it. `None`, with a message, without a C
/// compiler.
pub fn c_program(name: &str, directory: &Path) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = directory.join(name);
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(here.join("../../include"))
        .arg("-o")
        .arg(&made)
        .arg(here.join("tests/mount").join(name).with_extension("c"))
        .status();
    match built {
        Ok(status) => {
            assert!(status.success(), "the program compiles");
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
            Some(made)
        }
        Err(e) => {
            skip(Need::CCompiler, e);
            None
        }
    }
}

/// A mounted filesystem; `None`, and the test counts as skipped, where mounting is not possible.
pub fn mounted(
    fs: Arc<Fs<Engine<Log, FsSchema>>>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Option<Session> {
    match mount(fs, mountpoint, options) {
        Ok(session) => Some(session),
        Err(e @ (MountError::NoFuse | MountError::NotPermitted { .. })) => {
            skip(Need::Fuse, e);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A shared mapping of the first bytes of a file.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, len: usize) -> Mapping {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the mapping replaces no other.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) };
        Mapping { start: start.unwrap().cast(), len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped in `new` for `len` bytes, readable and writable; the tests change the file only
        // between uses.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    pub fn sync(&self) {
        // SAFETY: the range is the one mapped in `new`.
        unsafe { rustix::mm::msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { rustix::mm::munmap(self.start.cast(), self.len) }.unwrap();
    }
}
