//! `warpfire mount`: mount a pool on a directory.
//!
//! In the background, the *server* is a second process: the same command with `--detached`.
//!
//! ```text
//!   warpfire mount ──starts──▶ server ──opens the pool, mounts──▶ "mounted" on stdout ──▶ serves
//!        └── waits for that line, or for the end of the server ◀──────────┘
//! ```

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use warpfire::Warpfire;
use warpfire_mount::{MountOptions, THREADS_MAX};
use warpfire_terminal::{Failure, note, print};

use self::control::ControlSocket;
use super::pool;
use super::status::StatusReport;
use crate::location::PoolName;

pub mod control;
pub mod mounted_pool;

const EXAMPLES: &str = "\
Examples:
  warpfire mount pool /mnt           a pool of the *.img files in a directory
  warpfire mount a.img,b.img ~/pool  mount as an ordinary user
  warpfire mount --foreground /dev/nvme0n1,/dev/nvme1n1 /mnt

Unmount the pool with 'warpfire umount' or umount(8), or send SIGTERM to the server.

fsync(2) of any file or directory makes all earlier changes durable, and so does 'sync /mnt'. 'sync' \
without a path has no effect: Linux does not forward it to FUSE filesystems.";

/// Arguments of `warpfire mount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The directory to mount the pool on.
    directory: PathBuf,

    /// Stay in the foreground until the pool is unmounted.
    #[arg(long, short)]
    foreground: bool,

    /// Refuse all changes.
    #[arg(long, short)]
    read_only: bool,

    /// Allow access by other users; permissions are checked.
    #[arg(long)]
    allow_other: bool,

    /// Let set-user-id programs and file capabilities take effect. Only root can ask for that.
    #[arg(long)]
    suid: bool,

    /// Let device files be devices. Only root can ask for that.
    #[arg(long)]
    dev: bool,

    /// Seconds until a change is durable if no program syncs it earlier.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    sync_interval: u64,

    /// Seconds after which an idle transaction is aborted.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=30 * 86400))]
    tx_timeout: u64,

    /// Threads that serve requests [default: one for every two processors].
    #[arg(long, value_parser = parse_threads)]
    threads: Option<usize>,

    /// Let idle processors halt between requests. By default, a server that runs as root on a small virtual
    /// machine keeps them awake while requests arrive: requests are faster, but idle processors use power.
    #[arg(long)]
    let_halt: bool,

    /// Append the log of a server in the background to this file [default: no log].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Internal: run as the server in the background.
    #[arg(long, hide = true)]
    detached: bool,
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.ok_or_else(|| format!("use a number from 1 to {THREADS_MAX}"))
}

/// Mounts, and serves in the foreground or starts a server in the background.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.foreground || args.detached { serve(args) } else { start_server() }
}

/// Starts this command again as the server, and waits until it serves.
fn start_server() -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(format_args!("cannot start a server: {error}")).hint("try with --foreground")
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut server = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    wait_until_ready(&mut server)
}

/// Waits until a server prints that the pool is mounted. A server that ends instead has printed its error.
pub fn wait_until_ready(server: &mut Child) -> Result<(), Failure> {
    let stdout = server.stdout.take().expect("a server is started with a pipe");
    let mut line = String::new();
    match BufReader::new(stdout).read_line(&mut line) {
        Ok(bytes) if bytes > 0 => Ok(()),
        // The server has printed its error on the same stderr; this process ends with the same code.
        _ => {
            let code = server.wait().ok().and_then(|ended| u8::try_from(ended.code()?).ok());
            Err(code.into_iter().fold(Failure::silent(), Failure::exit_code))
        }
    }
}

fn serve(args: &Args) -> Result<(), Failure> {
    if args.detached {
        // A session of its own, so that the end of the terminal does not end the server.
        rustix::process::setsid()
            .map_err(|error| Failure::new(format_args!("cannot leave the terminal: {error}")))?;
    }
    // Before threads are started.
    warpfire_mount::prepare_server_process();
    // Before the pool is opened, so that the events of its recovery are in the log.
    let log = if args.detached { Some(open_log(args.log.as_deref())?) } else { None };
    start_logging(log.as_ref());
    let pool = pool::open(&PoolName::new(&args.pool))?;
    let stats = pool.stats();
    let options = MountOptions {
        read_only: args.read_only,
        allow_other: args.allow_other,
        suid: args.suid,
        dev: args.dev,
        threads: args.threads.unwrap_or(MountOptions::default().threads),
        hold_cpu_latency: !args.let_halt,
        sync_interval: Duration::from_secs(args.sync_interval),
        transaction_timeout: Duration::from_secs(args.tx_timeout),
        fsname: format!("{}{}", mounted_pool::SOURCE_PREFIX, stats.pool),
        ..MountOptions::default()
    };
    let session = warpfire_mount::mount(Arc::clone(pool.filesystem()), &args.directory, &options)
        .map_err(|error| Failure::new(format_args!("cannot mount the pool: {error}")))?;
    let socket = serve_status(&pool, session.mountpoint());
    // The parent of a detached server returns at this line, so the server must not use the terminal after it.
    print(format!("mounted at {}\n", session.mountpoint().display()))?;
    if let Some(log) = &log {
        leave_terminal(log)?;
    }
    let ended = session.wait();
    if let Some(socket) = socket {
        socket.remove();
    }
    ended.map_err(|error| Failure::new(format_args!("{}: {error}", args.directory.display())))
}

/// Serves the status of the pool on a thread of its own, until the process ends. Returns its socket.
fn serve_status(pool: &Warpfire, mountpoint: &Path) -> Option<Arc<ControlSocket>> {
    let failed = |error: io::Error| {
        note(format_args!("'warpfire status' and 'warpfire umount' cannot reach this server: {error}"));
    };
    let mounted = mounted_pool::pool_mounted_at(mountpoint)
        .ok_or_else(|| io::Error::other("the mount is not in /proc/self/mountinfo"));
    let socket = mounted.and_then(|mounted| ControlSocket::bind(&mounted)).map_err(failed).ok()?;
    let socket = Arc::new(socket);
    let (served, stats, mountpoint) = (Arc::clone(&socket), pool.clone(), mountpoint.display().to_string());
    let answer = move || served.serve(|| StatusReport::new(&stats.stats(), Some(mountpoint.clone())));
    let started = std::thread::Builder::new().name("warpfire-status".to_owned()).spawn(move || {
        if let Err(error) = answer() {
            failed(error);
        }
    });
    started.map(drop).unwrap_or_else(failed);
    Some(socket)
}

/// Leaves the terminal: output goes to the log from now on. Leaves the working directory too: the server
/// would keep its filesystem in use.
fn leave_terminal(log: &Arc<File>) -> Result<(), Failure> {
    let failed = |error| Failure::new(format_args!("cannot leave the terminal: {error}"));
    rustix::process::chdir("/").map_err(failed)?;
    rustix::stdio::dup2_stdout(log).map_err(failed)?;
    rustix::stdio::dup2_stderr(log).map_err(failed)
}

fn open_log(path: Option<&Path>) -> Result<Arc<File>, Failure> {
    let path = path.unwrap_or(Path::new("/dev/null"));
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map(Arc::new).map_err(|error| Failure::local(path, &error))
}

/// Writes events to the log, in the foreground to stderr.
fn start_logging(log: Option<&Arc<File>>) {
    let events = tracing_subscriber::fmt().with_ansi(false).with_target(false);
    let events = events.with_max_level(tracing::Level::INFO);
    match log {
        Some(log) => events.with_writer(Arc::clone(log)).init(),
        None => events.with_writer(io::stderr).init(),
    }
}
