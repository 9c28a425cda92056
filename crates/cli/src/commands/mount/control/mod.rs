//! The socket by which other processes reach the server of a mounted pool.
//!
//! ```text
//!   /run/warpfire/POOL.0.57     the server of the filesystem 0:57, run by root
//!   $XDG_RUNTIME_DIR/warpfire   the directory for servers of other users, or /tmp/warpfire-UID
//! ```
//!
//! A client sends one request, the server answers with progress and one result (`wire`). A path is found from
//! every network namespace, and the number of the filesystem from every mount of it.
//!
//! | file | holds |
//! |---|---|
//! | `wire` | requests and answers |
//! | `chunks` | streams of snapshots between both |
//! | `socket` | the server's side: which clients are admitted, how many, and how slow ones end |
//! | `client` | a client as its work sees it: progress, streams, and whether it is still there |
//! | `served_pool` | the work: status, trim and scrub |
//! | `frozen_check` | the check of a frozen state, while the pool is in use |
//! | this file | the client's side: how a server is found and believed |
//!
//! Invariants
//! 1. Only the server's user and root can make a socket at its path: the directory is the server's runtime
//!    directory (`warpfire_mount::prepare_runtime_directory`).
//! 2. A client believes only a server that the kernel proves. The server of a mount runs as the user that the
//!    kernel has recorded for the mount (`tests::a_server_of_another_user_is_not_believed`). The server of
//!    devices runs as root or as the client's user, or holds one of the devices
//!    (`status::a_stranger_that_answers_for_a_pool_is_ignored` in `tests/cli`).
//! 3. A server answers its own user and root only (`socket`).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Uid, geteuid, pidfd_open};
use warpfire::device_label;
use warpfire_mount::runtime_directory;
use warpfire_terminal::Failure;

use self::chunks::{ChunkReader, ChunkWriter};
use self::wire::{Answer, Request, RequestLine};
use super::mounted_pool::{MountedPool, mounted_pools, pool_mounted_at};
use crate::commands::status::StatusReport;
use crate::location::PoolName;

mod chunks;
pub mod client;
mod frozen_check;
pub mod served_pool;
pub mod socket;
pub mod wire;
mod work;

/// The runtime directory of root.
const ROOT_DIRECTORY: &str = "/run/warpfire";

/// Longest wait for a connection, a request, a status, and a client that takes a result.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of an answer. The status of a pool of 250 devices takes some 100 KB. The damage in the report
/// of a check takes 3 MiB at most (`frozen_check`), and its words about as much.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A connection to the server of a mounted pool, proved to be that.
#[derive(Debug)]
pub struct ServerConnection {
    stream: UnixStream,
    peer: UCred,
}

/// A connection to the server of a mounted pool on which a stream flows.
#[derive(Debug)]
pub struct ServerStream {
    answers: BufReader<UnixStream>,
}

/// A server that sends the end of its mount.
#[derive(Debug)]
pub struct AwaitedEnd {
    answers: BufReader<UnixStream>,
    /// Becomes readable when the server ends.
    server: OwnedFd,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoServer {
    /// No server runs.
    NotRunning,
    /// The server does not admit this user.
    NotAdmitted,
    /// The process that answers runs as this user, and not as the server's.
    Stranger(Uid),
}

fn socket_name(pool: &str, (major, minor): (u32, u32)) -> String {
    format!("{pool}.{major}.{minor}")
}

impl ServerConnection {
    /// Connects to the server of a mount.
    pub fn of_mount(mounted: &MountedPool) -> Result<ServerConnection, NoServer> {
        let name = socket_name(&mounted.id, mounted.device);
        let owner = Uid::from_raw(mounted.owner);
        let mut reason = NoServer::NotRunning;
        for directory in directories_of(owner) {
            match ServerConnection::connect(&directory.join(&name), owner) {
                Err(NoServer::NotRunning) => {}
                Err(found) => reason = found,
                connected => return connected,
            }
        }
        Err(reason)
    }

    /// Connects to the server that has these devices of a pool open; `None` if this process finds none.
    #[must_use]
    pub fn of_devices(pool: &str, devices: &[PathBuf]) -> Option<ServerConnection> {
        let mut users = BTreeSet::from([geteuid().as_raw(), Uid::ROOT.as_raw()]);
        if geteuid().is_root() {
            users.extend(mounted_pools().iter().filter(|mounted| mounted.id == pool).map(|m| m.owner));
        }
        let prefix = format!("{pool}.");
        for user in users.into_iter().map(Uid::from_raw) {
            for entry in directories_of(user).iter().flat_map(fs::read_dir).flatten().flatten() {
                if !entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
                    continue;
                }
                let Ok(server) = ServerConnection::connect(&entry.path(), user) else { continue };
                // Root and this user are believed where the devices cannot be seen.
                let believed = user.is_root() || user == geteuid();
                if holds_one_of(server.peer.pid, devices).unwrap_or(believed) {
                    return Some(server);
                }
            }
        }
        None
    }

    /// Connects to the socket at a path, if a process of this user serves it.
    fn connect(path: &Path, user: Uid) -> Result<ServerConnection, NoServer> {
        let address = SocketAddrUnix::new(path).map_err(|_| NoServer::NotRunning)?;
        let connected = || -> rustix::io::Result<_> {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            connect(&socket, &address)?;
            let peer = socket_peercred(&socket)?;
            Ok((UnixStream::from(socket), peer))
        };
        match connected() {
            Ok((stream, peer)) if peer.uid == user => Ok(ServerConnection { stream, peer }),
            Ok((_, peer)) => Err(NoServer::Stranger(peer.uid)),
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => Err(NoServer::NotAdmitted),
            Err(_) => Err(NoServer::NotRunning),
        }
    }

    /// The server of a mounted pool that the command line names, by its directory, one below
    /// that, or its devices. `None` if no server has it open.
    ///
    /// # Errors
    /// The pool is mounted and its server cannot be asked; the pool is not there.
    pub fn of_pool(name: &PoolName) -> Result<Option<ServerConnection>, Failure> {
        if let Some(mountpoint) = name.mountpoint_around() {
            let Some(mounted) = pool_mounted_at(&mountpoint) else { return Ok(None) };
            let server = ServerConnection::of_mount(&mounted);
            return server.map(Some).map_err(|reason| reason.failure(&mountpoint));
        }
        let devices = name.devices()?;
        // A device without a readable label is passed over: opening the pool reports its error.
        let mut labels = devices.iter().filter_map(|device| device_label(device).ok().flatten());
        Ok(labels.find_map(|label| ServerConnection::of_devices(&label.pool, &devices)))
    }

    /// Begins to wait for the end of its mount.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn await_end(self) -> Result<AwaitedEnd, Failure> {
        let server = self.watch().ok_or_else(|| Failure::new("the server of the pool has ended"))?;
        let mut awaited = AwaitedEnd { answers: BufReader::new(self.stream), server };
        // A server that refuses closes without reading. Its answer says why.
        let _ = awaited.answers.get_mut().write_all(&RequestLine::new(Request::AwaitEnd).to_line());
        match next_answer(&mut awaited.answers)? {
            Answer::Awaiting => Ok(awaited),
            Answer::Error(failure) => Err(failure.into()),
            _ => Err(foreign_answer()),
        }
    }

    /// The status of its pool.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn status(self) -> Result<StatusReport, Failure> {
        match self.ask(Request::Status, |_| ())? {
            Answer::Status(status) => Ok(*status),
            _ => Err(foreign_answer()),
        }
    }

    /// Sends a request, and returns its result. `progress` is called with the answers before it. The server
    /// ends the work if this process ends.
    ///
    /// # Errors
    /// The failure that the server sends; the server does not answer, or ends before the result.
    pub fn ask(mut self, request: Request, mut progress: impl FnMut(&Answer)) -> Result<Answer, Failure> {
        // Between two answers of long work there may be much to do.
        let patience = request.is_short().then_some(PATIENCE);
        set_socket_timeout(&self.stream, Timeout::Recv, patience).map_err(|error| silent(&error.into()))?;
        // A server that refuses closes without reading. Its answer says why.
        let _ = self.stream.write_all(&RequestLine::new(request).to_line());
        let mut answers = BufReader::new(self.stream);
        loop {
            match next_answer(&mut answers)? {
                Answer::Error(failure) => return Err(failure.into()),
                answer if answer.is_progress() => progress(&answer),
                answer => return Ok(answer),
            }
        }
    }

    /// Sends a request to which a stream belongs.
    ///
    /// # Errors
    /// As [`ask`](ServerConnection::ask).
    pub fn begin_stream(mut self, request: Request) -> Result<ServerStream, Failure> {
        for direction in [Timeout::Recv, Timeout::Send] {
            // A stream takes as long as the other end of the pipe.
            set_socket_timeout(&self.stream, direction, None).map_err(|error| silent(&error.into()))?;
        }
        // A server that refuses closes without reading. Its answer says why.
        let _ = self.stream.write_all(&RequestLine::new(request).to_line());
        let mut answers = BufReader::new(self.stream);
        match next_answer(&mut answers)? {
            Answer::Streaming => Ok(ServerStream { answers }),
            Answer::Error(failure) => Err(failure.into()),
            _ => Err(foreign_answer()),
        }
    }

    /// Whether both are connections to one server.
    #[must_use]
    pub fn is_same_process(&self, other: &ServerConnection) -> bool {
        self.peer.pid == other.peer.pid && self.peer.uid == other.peer.uid
    }

    /// The number of the server's process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.peer.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// A descriptor that becomes readable when the server ends.
    fn watch(&self) -> Option<OwnedFd> {
        pidfd_open(Pid::from_raw(self.peer.pid.as_raw_nonzero().get())?, PidfdFlags::empty()).ok()
    }
}

impl ServerStream {
    /// The stream of the server, up to its end.
    pub fn chunks(&mut self) -> impl Read {
        ChunkReader::new(&mut self.answers)
    }

    /// Sends everything that `input` has. When the server stops reading, its answer says why.
    ///
    /// # Errors
    /// `input` cannot be read.
    pub fn send_all(&mut self, input: &mut dyn Read) -> Result<(), Failure> {
        let mut writer = ChunkWriter::new(self.answers.get_mut());
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::local(Path::new("stdin"), &error)),
            };
            if writer.write_all(buffer.get(..read).expect("within the buffer")).is_err() {
                return Ok(());
            }
        }
        let _ = writer.finish();
        Ok(())
    }

    /// The answer after the stream.
    ///
    /// # Errors
    /// The failure that the server sends; the server ends before its answer.
    pub fn answer(mut self) -> Result<Answer, Failure> {
        match next_answer(&mut self.answers)? {
            Answer::Error(failure) => Err(failure.into()),
            answer => Ok(answer),
        }
    }
}

fn silent(error: &io::Error) -> Failure {
    Failure::new(format_args!("the server of the pool does not answer: {error}"))
}

fn next_answer(answers: &mut BufReader<UnixStream>) -> Result<Answer, Failure> {
    let mut line = Vec::new();
    let read = answers.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line);
    read.map_err(|error| silent(&error))?;
    if line.is_empty() {
        return Err(Failure::new("the server of the pool has ended before its answer")
            .hint("look with 'warpfire status', and run the command again"));
    }
    serde_json::from_slice(&line).map_err(|_| foreign_answer())
}

impl AwaitedEnd {
    /// Waits until the server has ended, at most for so many seconds. Returns how many transactions the end
    /// of the mount has aborted; `None` if the server ended without saying so.
    ///
    /// # Errors
    /// The server still runs.
    pub fn wait(mut self, seconds: i64) -> Result<Option<usize>, Failure> {
        let patience = Timespec { tv_sec: seconds, tv_nsec: 0 };
        if !poll(&mut [PollFd::new(&self.server, PollFlags::IN)], Some(&patience))
            .is_ok_and(|ended| ended > 0)
        {
            return Err(Failure::new("the server of the pool still runs"));
        }
        // The answer of a process that has ended is in the buffer of the socket.
        match next_answer(&mut self.answers) {
            Ok(Answer::Ended { aborted_transactions }) => Ok(Some(aborted_transactions)),
            _ => Ok(None),
        }
    }
}

/// The failure of a command that a server answers with anything else than the request asks for.
pub fn foreign_answer() -> Failure {
    Failure::new("the server of the pool sends an answer that this command does not know")
        .hint("mount the pool again with this version of warpfire")
}

impl NoServer {
    /// The failure of a command that needs the server of this mount.
    pub fn failure(&self, mountpoint: &Path) -> Failure {
        let mountpoint = mountpoint.display();
        match self {
            NoServer::NotRunning => Failure::new(format_args!("the server of {mountpoint} is not running"))
                .hint("unmount it with 'umount -l', then mount the pool again"),
            NoServer::NotAdmitted => {
                Failure::new(format_args!("the server of {mountpoint} does not admit this user"))
                    .hint("run the command as root or as the user that mounted the pool")
            }
            NoServer::Stranger(user) => Failure::new(format_args!(
                "the process that answers for {mountpoint} is a stranger: it runs as user {user}"
            ))
            .hint("end that process, then mount the pool again"),
        }
    }
}

/// Where the sockets of a user's servers may be. Another user's environment is not known here.
fn directories_of(user: Uid) -> Vec<PathBuf> {
    if user.is_root() {
        return vec![PathBuf::from(ROOT_DIRECTORY)];
    }
    let usual = [format!("/run/user/{user}/warpfire"), format!("/tmp/warpfire-{user}")];
    let own = (user == geteuid()).then(runtime_directory);
    let mut directories: Vec<PathBuf> = own.into_iter().chain(usual.map(PathBuf::from)).collect();
    directories.dedup();
    directories
}

/// In the mode of a link in `/proc/PID/fd`: the descriptor is open for writing.
const OWNER_WRITE: u32 = 0o200;

/// Whether a process has one of these devices or image files open for writing; `None` if this process may
/// not see that.
fn holds_one_of(process: Pid, devices: &[PathBuf]) -> Option<bool> {
    let identity = |metadata: fs::Metadata| {
        let is_block = metadata.file_type().is_block_device();
        if is_block { (true, metadata.rdev(), 0) } else { (false, metadata.dev(), metadata.ino()) }
    };
    let open = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).ok()?;
    // A server has its devices open for writing. Anybody can have a descriptor of them that only names them.
    let for_writing =
        |entry: &fs::DirEntry| entry.metadata().is_ok_and(|link| link.mode() & OWNER_WRITE != 0);
    let open = open.flatten().filter(for_writing);
    let open: BTreeSet<_> = open.filter_map(|entry| fs::metadata(entry.path()).ok()).map(identity).collect();
    Some(devices.iter().filter_map(|path| fs::metadata(path).ok()).any(|m| open.contains(&identity(m))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn a_server_of_another_user_is_not_believed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("bound");
        ServerConnection::connect(&path, geteuid()).expect("this user");
        let other = Uid::from_raw(geteuid().as_raw() + 1);
        let refused = ServerConnection::connect(&path, other).expect_err("another user");
        assert!(matches!(refused, NoServer::Stranger(user) if user == geteuid()), "{refused:?}");
    }

    #[test]
    fn a_device_that_a_process_has_open_is_seen() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (open, closed) = (directory.path().join("open"), directory.path().join("closed"));
        fs::write(&closed, b"").expect("made");
        let _held = fs::File::create(&open).expect("made");
        // Needs no permission on the file, so it proves nothing.
        let _named = rustix::fs::open(&closed, OFlags::PATH, Mode::empty()).expect("opened by name");
        let own = rustix::process::getpid();
        assert_eq!(holds_one_of(own, &[closed.clone(), open]), Some(true));
        assert_eq!(holds_one_of(own, &[closed]), Some(false));
    }
}
