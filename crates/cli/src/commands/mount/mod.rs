//! `warpfire mount`: mount a pool on a directory.
//!
//! In the background, the *server* is a second process: the same command with `--detached`.
//!
//! ```text
//!   warpfire mount ──starts──▶ server ──opens the pool, mounts──▶ "mounted" on stdout ──▶ serves
//!        └── waits for that line, or for the end of the server ◀──────────┘
//! ```

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use warpfire::{Pool, Warpfire};
use warpfire_mount::{MountOptions, Session, THREADS_MAX};
use warpfire_terminal::{Failure, Size, is_json, note, path_bytes, path_text, print, print_json, shown};

use self::control::served_pool::{Commit, ServedPool};
use self::control::socket::ControlSocket;
use self::interval_trim::IntervalTrim;
use self::mount_words::{
    COMMIT_SECONDS, MountWords, NAMES, SNAPSHOTS, SPARE_AFTER_SECONDS, TRIM_SECONDS, TX_TIMEOUT_SECONDS,
};
use self::scheduled_scrub::ScheduledScrub;
use self::service::ServerLog;
use super::pool;
use crate::found_pool::search_in;
use crate::location::PoolName;
use crate::output::moment_of_name;

mod another_place;
pub mod control;
mod interval_trim;
pub mod mount_helper;
mod mount_words;
pub mod mounted_pool;
mod remount;
mod scheduled_scrub;
mod service;
mod snapshot_rules;

const EXAMPLES: &str = "\
Examples:
  warpfire mount pool /mnt           a pool of the *.img files in a directory
  warpfire mount a.img,b.img ~/pool  mount as an ordinary user
  warpfire mount --foreground /dev/nvme0n1,/dev/nvme1n1 /mnt
  warpfire mount -o ro,noatime pool /mnt

Options after -o:
  ro, rw               refuse changes, or take them
  suid, nosuid         whether set-user-id programs take effect [nosuid]
  dev, nodev           whether device files are devices [nodev]
  exec, noexec         whether programs can be run [exec]
  relatime, strictatime, noatime
                       which reads renew access times [relatime]
  allow_other          as --allow-other
  commit=SECONDS       as --sync-interval
  tx_timeout=SECONDS, trim=SECONDS, spare_after=SECONDS, cache=SIZE, threads=N,
  no_queues, let_halt, snapshots=WHERE, names=FORM, log=FILE, log_level=LEVEL,
  search=PATH
                       as the flags of these names
  remount              change ro, suid, dev and exec of a mounted pool
  defaults, user, nofail, _netdev, noauto, x-*
                       for mount(8) and systemd

'mount -t warpfire' and fstab take the same options, except suid and dev: mount(8)
passes only their opposites on. There a pool is named label=NAME or uuid=NUMBER: mount(8) takes LABEL= and \
UUID= for its own. When root mounts a pool that is mounted already,
the same server serves it in the second directory too.

Unmount the pool with 'warpfire umount' or umount(8), or send SIGTERM to the server. A server in the \
background opens its log again at SIGHUP.

fsync(2) of any file or directory makes all earlier changes durable, and so does 'sync /mnt'. 'sync' \
without a path has no effect: Linux does not forward it to FUSE filesystems.";

/// The smallest cache for metadata that a mount takes.
const CACHE_BYTES_MIN: u64 = 1 << 20;

// Arguments of `warpfire mount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The directory to mount the pool on.
    directory: PathBuf,

    /// Mount options separated by commas, as in fstab(5).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// Stay in the foreground until the pool is unmounted.
    #[arg(long, short)]
    foreground: bool,

    /// Refuse all changes, and write nothing to the devices. Other commands can read the pool too.
    #[arg(long, short)]
    read_only: bool,

    /// Go on without the missing devices even if they may hold a newer state, and for good.
    #[arg(long)]
    degraded: bool,

    /// Allow access by other users; permissions are checked.
    #[arg(long)]
    allow_other: bool,

    /// Let set-user-id programs and file capabilities take effect. Only root can ask for that.
    #[arg(long)]
    suid: bool,

    /// Let device files be devices. Only root can ask for that.
    #[arg(long)]
    dev: bool,

    /// Seconds until a change is durable if no program syncs it earlier [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(COMMIT_SECONDS))]
    sync_interval: Option<u64>,

    /// Seconds after which an idle transaction is aborted [default: 3600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(TX_TIMEOUT_SECONDS))]
    tx_timeout: Option<u64>,

    /// Discard free space each time after so many seconds, slowly: images then take less of their disk, and
    /// drives know which of their blocks are free. The space of removed files becomes free when the pool
    /// cleans itself; 'warpfire trim' cleans it at once [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(TRIM_SECONDS))]
    trim: Option<u64>,

    /// Seconds for which a device may be missing or failed until its content is rebuilt on the other devices;
    /// 0 begins at once [default: 600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(SPARE_AFTER_SECONDS))]
    spare_after: Option<u64>,

    /// Most memory for metadata that was read [default: a quarter of the memory]. While memory is short, the
    /// server keeps less.
    #[arg(long, value_name = "SIZE", value_parser = parse_cache)]
    cache: Option<u64>,

    /// Threads that serve requests, if one does not suffice [default: one for each processor, at most 16].
    #[arg(long, value_parser = parse_threads)]
    threads: Option<usize>,

    /// Take all requests by /dev/fuse. By default, a kernel that offers FUSE over io_uring, as Linux does
    /// since 6.14 where root has set fuse.enable_uring, sends them by queues, a queue for each processor.
    #[arg(long)]
    no_queues: bool,

    /// Let idle processors halt between requests. By default, a server that runs as root on a small virtual
    /// machine keeps them awake while requests arrive: requests are faster, but idle processors use power.
    #[arg(long)]
    let_halt: bool,

    /// Where the name .snapshots leads to snapshots: in every directory, in the root, or nowhere [default:
    /// every]. A file of that name comes first, but while the name leads to snapshots, programs on the mount
    /// cannot make one.
    #[arg(long, value_name = "WHERE", value_parser = SNAPSHOTS.map(|(name, _)| name))]
    snapshots: Option<String>,

    /// How listings of .snapshots name the snapshots: by their own names, or gmt, as Samba's shadow_copy2
    /// reads their times: @GMT-2026.11.24-21.56.00 [default: own]. Both kinds of names lead to a snapshot.
    #[arg(long, value_name = "FORM", value_parser = NAMES.map(|(name, _)| name))]
    names: Option<String>,

    /// Append the log of a server in the background to this file [default: the system log].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Log events of this level and above: error, warn, info, debug or trace; of parts as in
    /// info,warpfire_log=debug [default: $RUST_LOG, or info].
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Internal: run as the server in the background.
    #[arg(long, hide = true)]
    detached: bool,
}

fn parse_cache(text: &str) -> Result<u64, String> {
    let Size(bytes) = text.parse()?;
    if bytes < CACHE_BYTES_MIN {
        return Err(format!("use at least {}", Size(CACHE_BYTES_MIN)));
    }
    Ok(bytes)
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.ok_or_else(|| format!("use a number from 1 to {THREADS_MAX}"))
}

/// Mounts, and serves in the foreground or starts a server in the background.
pub fn run(args: &Args) -> Result<(), Failure> {
    let words = args.words()?;
    search_in(&words.search);
    if words.remount {
        return remount::run(&args.directory, &args.all_options());
    }
    if args.foreground || args.detached {
        return serve(args, &words, is_json() && !args.detached);
    }
    let how = match another_place::first_mount(&PoolName::new(&args.pool)) {
        Some(first) => another_place::mount_too(&first, &args.directory, &words)?,
        None => {
            start_server()?;
            Mounting::New
        }
    };
    let directory = args.directory.canonicalize().unwrap_or_else(|_| args.directory.clone());
    if is_json() {
        return print_json(&MountOutput::new(&directory, how));
    }
    // mount(8) says nothing after a mount that it has made.
    if how == Mounting::There {
        note(format_args!("the pool is mounted at {} already", shown(&directory)));
    } else if !mount_helper::is_helper(std::env::args_os().next().as_deref()) {
        note(format_args!("mounted at {}", shown(&directory)));
    }
    Ok(())
}

/// The outcome of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mounting {
    /// The pool is mounted by a new server, or in a directory more.
    New,
    /// It was mounted there before.
    There,
}

/// The end of a mount.
#[derive(Serialize)]
struct MountOutput {
    /// The directory that the pool is mounted on.
    mounted_at: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted_at_bytes: Option<String>,
    /// The id of the pool.
    pool: Option<String>,
    /// Whether it was mounted there before.
    already: bool,
}

impl MountOutput {
    fn new(directory: &Path, how: Mounting) -> MountOutput {
        let pool = mounted_pool::pool_mounted_at(directory).map(|mounted| mounted.id);
        MountOutput {
            mounted_at: path_text(directory),
            mounted_at_bytes: path_bytes(directory),
            pool,
            already: how == Mounting::There,
        }
    }
}

impl Args {
    fn words(&self) -> Result<MountWords, Failure> {
        let options = self.all_options();
        let mut words = MountWords::default().parse(options.iter().map(String::as_str))?;
        if let Some(log) = &self.log {
            words.log = Some(log.clone());
            words.only_at_mount.push("log".to_owned());
        }
        if let Some(level) = &self.log_level {
            words.log_level = Some(level.clone());
            words.only_at_mount.push("log_level".to_owned());
        }
        Ok(words)
    }

    /// The options after `-o`, and behind them the flags as such options. The path of the log is not among
    /// them, because it may hold a comma.
    fn all_options(&self) -> Vec<String> {
        let flags = [
            (self.read_only, "ro"),
            (self.degraded, "degraded"),
            (self.allow_other, "allow_other"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (self.no_queues, "no_queues"),
            (self.let_halt, "let_halt"),
        ];
        let mut options = self.options.clone();
        options.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()));
        options.extend(self.sync_interval.map(|seconds| format!("commit={seconds}")));
        options.extend(self.tx_timeout.map(|seconds| format!("tx_timeout={seconds}")));
        options.extend(self.trim.map(|seconds| format!("trim={seconds}")));
        options.extend(self.spare_after.map(|seconds| format!("spare_after={seconds}")));
        options.extend(self.cache.map(|bytes| format!("cache={bytes}")));
        options.extend(self.threads.map(|threads| format!("threads={threads}")));
        options.extend(self.snapshots.as_ref().map(|places| format!("snapshots={places}")));
        options.extend(self.names.as_ref().map(|form| format!("names={form}")));
        options
    }
}

impl MountWords {
    fn mount_options(&self, pool: &str) -> MountOptions {
        let usual = MountOptions::default();
        MountOptions {
            parse_moment: moment_of_name,
            read_only: self.read_only,
            allow_other: self.allow_other,
            suid: self.suid,
            dev: self.dev,
            exec: self.exec,
            threads: self.threads.unwrap_or(usual.threads),
            queues: !self.no_queues,
            hold_cpu_latency: !self.let_halt,
            snapshot_directories: self.snapshots,
            snapshot_names: self.names,
            sync_interval: self.commit_seconds.map_or(usual.sync_interval, Duration::from_secs),
            transaction_timeout: self
                .tx_timeout_seconds
                .map_or(usual.transaction_timeout, Duration::from_secs),
            fsname: format!("{}{pool}", mounted_pool::SOURCE_PREFIX),
            ..usual
        }
    }
}

/// Starts this command again as the server, and waits until it serves.
fn start_server() -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(format_args!("cannot start a server: {error}")).hint("try with --foreground")
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut words = mount_helper::words_of_process()?.unwrap_or_default();
    let command = words.iter().position(|word| word == "mount").expect("this is the command 'mount'");
    words.insert(command + 1, "--detached".into());
    let mut server = Command::new(program)
        .arg0("warpfire")
        .args(words.into_iter().skip(1))
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

fn serve(args: &Args, words: &MountWords, json: bool) -> Result<(), Failure> {
    if args.detached {
        // A session of its own, so that the end of the terminal does not end the server.
        rustix::process::setsid()
            .map_err(|error| Failure::new(format_args!("cannot leave the terminal: {error}")))?;
    }
    // Before threads are started.
    warpfire_mount::prepare_server_process();
    // Before the pool is opened, so that the events of its recovery are in the log.
    let levels = service::levels(words.log_level.as_deref())?;
    let log = if args.detached { ServerLog::in_background(words.log.as_deref())? } else { ServerLog::Stderr };
    log.start(levels);
    let mut how =
        Pool::options().read_only(words.read_only).degraded(words.degraded).access_times(words.access_times);
    // The kernel keeps the pages of files.
    how = how.cache_files(false);
    if let Some(bytes) = words.cache_bytes {
        how = how.cache_bytes(bytes);
    }
    if let Some(seconds) = words.spare_after_seconds {
        how = how.spare_after(Duration::from_secs(seconds));
    }
    let pool = pool::open_as(&how, &PoolName::new(&args.pool))?;
    let options = words.mount_options(&pool.stats().pool);
    let options = MountOptions { unmount_on_hangup: !args.detached, ..options };
    let mounted =
        warpfire_mount::mount_with_commits(Arc::clone(pool.filesystem()), &args.directory, &options);
    let (session, commit) =
        mounted.map_err(|error| Failure::new(format_args!("cannot mount the pool: {error}")))?;
    let socket = serve_control(&pool, &session, commit, words.read_only);
    // The parent of a detached server returns at this line, so the server must not use the terminal after it.
    match json {
        true => print_json(&MountOutput::new(session.mountpoint(), Mounting::New))?,
        false => print(format!("mounted at {}\n", session.mountpoint().display()))?,
    }
    log.take_output()?;
    if args.detached {
        let reopened = log.clone();
        warpfire_mount::watch_hangups(move || reopened.reopen())
            .map_err(|error| Failure::new(format_args!("cannot watch for signals: {error}")))?;
    }
    service::notify(&format!("READY=1\nSTATUS=mounted at {}", session.mountpoint().display()));
    let no_thread = |error| Failure::new(format_args!("cannot trim the pool: {error}"));
    let trim =
        words.trim_seconds.map(|seconds| IntervalTrim::start(pool.clone(), Duration::from_secs(seconds)));
    let trim = trim.transpose().map_err(no_thread)?;
    let no_thread = |error| Failure::new(format_args!("cannot scrub the pool: {error}"));
    let scrub = (!words.read_only).then(|| ScheduledScrub::start(pool.clone()));
    let scrub = scrub.transpose().map_err(no_thread)?;
    let no_thread = |error| Failure::new(format_args!("cannot apply the rules for snapshots: {error}"));
    let rules = (!words.read_only).then(|| snapshot_rules::start(pool.clone()));
    let rules = rules.transpose().map_err(no_thread)?;
    let aborted = session.aborted_transactions();
    let ended = session.wait_with(|| {
        service::notify("STOPPING=1\nSTATUS=writing the last changes");
        drop((trim, scrub, rules));
        if let Some(socket) = &socket {
            socket.stop();
        }
    });
    if let Some(socket) = socket {
        socket.remove();
        if ended.is_ok() {
            socket.announce_end(aborted.load(Ordering::SeqCst));
        }
    }
    ended.map_err(|error| {
        if args.detached {
            // Nobody reads what this process prints.
            tracing::error!(mountpoint = %args.directory.display(), %error, "the server ends with an error");
        }
        Failure::new(format_args!("{}: {error}", args.directory.display()))
    })
}

/// Answers requests on the control socket on a thread of its own, until the process ends. Returns the socket.
fn serve_control(
    pool: &Warpfire,
    session: &Session,
    commit: Commit,
    read_only: bool,
) -> Option<Arc<ControlSocket>> {
    let failed = |error: io::Error| {
        note(format_args!("'warpfire status' and 'warpfire umount' cannot reach this server: {error}"));
    };
    let mountpoint = session.mountpoint();
    let mounted = mounted_pool::pool_mounted_at(mountpoint)
        .ok_or_else(|| io::Error::other("the mount is not in /proc/self/mountinfo"));
    let socket = mounted.and_then(|mounted| ControlSocket::bind(&mounted)).map_err(failed).ok()?;
    let socket = Arc::new(socket);
    let served = Arc::new(ServedPool {
        pool: pool.clone(),
        mountpoint: mountpoint.display().to_string(),
        read_only,
        failures: session.failed_requests(),
        roll_back: session.rollback(),
        change_volume: session.volume_changes(),
        commit,
    });
    let serving = Arc::clone(&socket);
    let started = std::thread::Builder::new().name("warpfire-accept".to_owned()).spawn(move || {
        if let Err(error) = serving.serve(&served) {
            failed(error);
        }
    });
    started.map(drop).unwrap_or_else(failed);
    Some(socket)
}
