//! `warpfire umount`: unmount a pool, and wait until its server has written the last changes and closed the
//! pool.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpfire_mount::{MountError, TransactionClient};
use warpfire_terminal::{Failure, is_json, note, path_bytes, path_text, print_json};

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::{MountedPool, mounted_pools, pool_mounted_at};

mod holders;

const EXAMPLES: &str = "\
Examples:
  warpfire umount /mnt
  warpfire umount --force /mnt            abort the transactions that are open";

/// Longest wait for the server to write the last changes and close the pool.
const CLOSE_SECONDS_MAX: i64 = 300;

// Arguments of `warpfire umount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory that the pool is mounted on.
    directory: PathBuf,

    /// Abort the open transactions.
    #[arg(long)]
    force: bool,
}

/// The end of an unmount.
#[derive(Serialize)]
struct UnmountOutput {
    /// The directory, as the command line names it.
    unmounted: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmounted_bytes: Option<String>,
    /// Transactions that were open and are aborted.
    aborted_transactions: usize,
}

/// Unmounts the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let aborted = unmount(&args.directory, args.force)?;
    if is_json() {
        return print_json(&UnmountOutput {
            unmounted: path_text(&args.directory),
            unmounted_bytes: path_bytes(&args.directory),
            aborted_transactions: aborted,
        });
    }
    match aborted {
        0 => {}
        1 => note("one open transaction was aborted"),
        several => note(format_args!("{several} open transactions were aborted")),
    }
    Ok(())
}

/// Unmounts the pool on a directory. On return the pool is closed and can be opened again. Refuses while
/// transactions are open, unless it is forced. Returns how many were aborted.
fn unmount(directory: &Path, force: bool) -> Result<usize, Failure> {
    let pool = pool_mounted_at(directory).ok_or_else(|| {
        Failure::new(format_args!("no pool is mounted at {}", directory.display()))
            .hint("name the directory that the pool is mounted on")
    })?;
    // Connected before the unmount: the server may end at once, and then there is nothing to wait for.
    let server = ServerConnection::of_mount(&pool).ok().and_then(|server| server.await_end().ok());
    let open = open_transactions(&pool.mountpoint);
    if open > 0 && !force {
        return Err(refuse_open_transactions(&pool.mountpoint, open));
    }
    warpfire_mount::unmount(&pool.mountpoint, pool.device).map_err(|error| match error {
        MountError::InUse(_) => in_use(&pool),
        _ if !may_unmount(&pool) => {
            let at = pool.mountpoint.display();
            Failure::new(format_args!("{at} was mounted by user {}", pool.owner))
                .hint("run the command as that user or as root")
        }
        error => Failure::new(error),
    })?;
    // While another mount of the filesystem is left, the server goes on.
    let is_left = mounted_pools().iter().any(|left| left.device == pool.device);
    let Some(server) = server.filter(|_| !is_left) else { return Ok(if is_left { 0 } else { open }) };
    // What the server counts at its end is right. Transactions may have begun or ended since `open`.
    server.wait(CLOSE_SECONDS_MAX).map(|aborted| aborted.unwrap_or(open)).map_err(|_| {
        Failure::new(format_args!("{} is unmounted, but its server still runs", directory.display()))
            .hint("wait until the server has written the last changes and ends")
    })
}

/// Whether this user is root or the one that has mounted the pool.
fn may_unmount(pool: &MountedPool) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || user.as_raw() == pool.owner
}

/// The failure to unmount a mount that processes hold.
fn in_use(pool: &MountedPool) -> Failure {
    let at = pool.mountpoint.display();
    let is_root = rustix::process::geteuid().is_root();
    match holders::in_words(&holders::holders(&pool.mountpoint, pool.device)) {
        Some(holders) => Failure::new(format_args!("{at} is in use by {holders}"))
            .hint("end these processes, or close their files and leave its directories, then try again"),
        None if is_root => Failure::new(format_args!("{at} is in use")).hint(
            "close the files that processes of other namespaces have open there, or unmount it there too",
        ),
        None => Failure::new(format_args!("{at} is in use by processes of other users"))
            .hint("run the command as root to see them"),
    }
}

/// The transactions that an unmount would abort: those of this user, or as root of all.
fn open_transactions(mountpoint: &Path) -> usize {
    // A mount without a server has none, and can be unmounted.
    TransactionClient::open(mountpoint).and_then(|control| control.list()).map_or(0, |open| open.len())
}

fn refuse_open_transactions(mountpoint: &Path, count: usize) -> Failure {
    let at = mountpoint.display();
    let noun = if count == 1 { "transaction is" } else { "transactions are" };
    Failure::new(format_args!("{at} is in use: {count} {noun} open"))
        .hint("end them with 'warpfire tx commit' or 'warpfire tx abort', or abort all with --force")
}
