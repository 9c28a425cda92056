//! `warpfire mount`: put a pool on a directory.
//!
//! ```text
//!   warpfire mount ──starts──▶ the same with --detached ──opens, mounts──▶ "mounted" on stdout ──▶ serves until unmounted
//!        └── waits for that line, or for the end and its reason ◀────────────────┘
//! ```

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use warpfire::Warpfire;
use warpfire_mount::{MountOptions, THREADS_MAX};
use warpfire_terminal::{Failure, note, print};

use super::pool;
use super::status::StatusReport;
use crate::location::PoolName;

pub mod control;

const EXAMPLES: &str = "\
Examples:
  warpfire mount pool /mnt                the pool on the image files in a directory
  warpfire mount a.img,b.img ~/pool       works as an ordinary user too
  warpfire mount --foreground /dev/nvme0n1,/dev/nvme1n1 /mnt

The pool is unmounted by 'warpfire umount', by umount(8), or when the server gets SIGTERM.

fsync of any file or directory, and so 'sync /mnt', makes all that was done before it durable. A 'sync' without a name
does not reach a filesystem in user space.";

/// Arguments of `warpfire mount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Where to mount it: a directory.
    directory: PathBuf,

    /// Stay in the foreground until it is unmounted.
    #[arg(long, short)]
    foreground: bool,

    /// Refuse every change.
    #[arg(long, short)]
    read_only: bool,

    /// Let other users in; permissions bind them.
    #[arg(long)]
    allow_other: bool,

    /// Seconds after which a change is made durable without a sync.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    sync_interval: u64,

    /// Seconds after which a transaction that nobody works in is aborted.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=30 * 86400))]
    tx_timeout: u64,

    /// Threads that take requests [default: one for two cores].
    #[arg(long, value_parser = parse_threads)]
    threads: Option<usize>,

    /// Let idle processors halt between requests, also on a virtual machine where each request waits for their waking.
    #[arg(long)]
    let_halt: bool,

    /// Where the server writes what goes wrong while it serves, in the background [default: nowhere].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// What the command starts to serve in the background.
    #[arg(long, hide = true)]
    detached: bool,
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.ok_or_else(|| format!("from 1 to {THREADS_MAX}"))
}

/// Mounts, and serves in the foreground or leaves a server behind.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.foreground || args.detached { serve(args) } else { start_server() }
}

/// Starts this command again as a server of its own and waits until it serves.
fn start_server() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format_args!("cannot start a server: {error}"));
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

/// Waits until a server says that it serves. If it ends instead it has said why.
pub fn wait_until_ready(server: &mut Child) -> Result<(), Failure> {
    let stdout = server.stdout.take().expect("a server is started with a pipe");
    let mut line = String::new();
    match BufReader::new(stdout).read_line(&mut line) {
        Ok(bytes) if bytes > 0 => Ok(()),
        // It has said why, and its code is ours.
        _ => {
            let code = server.wait().ok().and_then(|ended| u8::try_from(ended.code()?).ok());
            Err(code.into_iter().fold(Failure::silent(), Failure::exit_code))
        }
    }
}

fn serve(args: &Args) -> Result<(), Failure> {
    if args.detached {
        rustix::process::setsid()
            .map_err(|error| Failure::new(format_args!("cannot leave the terminal: {error}")))?;
    }
    let pool = pool::open(&PoolName::new(&args.pool))?;
    let stats = pool.stats();
    let options = MountOptions {
        read_only: args.read_only,
        allow_other: args.allow_other,
        threads: args.threads.unwrap_or(MountOptions::default().threads),
        hold_cpu_latency: !args.let_halt,
        sync_interval: Duration::from_secs(args.sync_interval),
        transaction_timeout: Duration::from_secs(args.tx_timeout),
        fsname: format!("{}{}", control::SOURCE_PREFIX, stats.pool),
        ..MountOptions::default()
    };
    let session = warpfire_mount::mount(Arc::clone(pool.filesystem()), &args.directory, &options)
        .map_err(|error| Failure::new(format_args!("cannot mount the pool: {error}")))?;
    answer_questions(&pool, session.mountpoint());
    print(format!("mounted at {}\n", session.mountpoint().display()))?;
    if args.detached {
        leave_terminal(args.log.as_deref())?;
    }
    log_to_stderr();
    session.wait().map_err(|error| Failure::new(format_args!("{}: {error}", args.directory.display())))
}

/// Tells who asks how the pool is doing, on a thread of its own that lasts as long as the process.
fn answer_questions(pool: &Warpfire, mountpoint: &Path) {
    let (stats, mountpoint) = (pool.clone(), mountpoint.display().to_string());
    let name = stats.stats().pool;
    let answer =
        move || control::serve(&name, || StatusReport::new(&stats.stats(), Some(mountpoint.clone())));
    let started = std::thread::Builder::new().name("warpfire-status".to_owned()).spawn(move || {
        if let Err(error) = answer() {
            note(format_args!("'warpfire status' will not be answered: {error}"));
        }
    });
    if let Err(error) = started {
        note(format_args!("'warpfire status' will not be answered: {error}"));
    }
}

/// Gives the terminal back: what is said from now on goes to the log.
fn leave_terminal(log: Option<&Path>) -> Result<(), Failure> {
    let path = log.unwrap_or(Path::new("/dev/null"));
    let failed = |error| Failure::local(path, &error);
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    rustix::stdio::dup2_stdout(&file).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))
}

fn log_to_stderr() {
    let subscriber = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false);
    subscriber.with_max_level(tracing::Level::INFO).init();
}
