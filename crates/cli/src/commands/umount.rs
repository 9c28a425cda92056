//! `warpfire umount`: unmount a pool, and wait until its server has written the last changes and closed the
//! pool.

use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire_mount::{MountError, TransactionClient};
use warpfire_terminal::Failure;

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::{mounted_pools, pool_mounted_at};

const EXAMPLES: &str = "\
Examples:
  warpfire umount /mnt
  warpfire umount --force /mnt            abort the transactions that are open";

/// Longest wait for the server to write the last changes and close the pool.
const CLOSE_SECONDS_MAX: i64 = 300;

/// Arguments of `warpfire umount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory that the pool is mounted on.
    directory: PathBuf,

    /// Abort the open transactions.
    #[arg(long)]
    force: bool,
}

/// Unmounts the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    unmount(&args.directory, args.force)
}

/// Unmounts the pool on a directory. On return the pool is closed and can be opened again. Refuses while
/// transactions are open, unless it is forced.
pub fn unmount(directory: &Path, force: bool) -> Result<(), Failure> {
    let pool = pool_mounted_at(directory).ok_or_else(|| {
        Failure::new(format_args!("no pool is mounted at {}", directory.display()))
            .hint("name the directory that the pool is mounted on")
    })?;
    // Connected before the unmount: the server may end at once, and then there is nothing to wait for.
    let server = ServerConnection::of_mount(&pool).ok().and_then(|server| server.watch());
    if !force {
        refuse_open_transactions(&pool.mountpoint)?;
    }
    warpfire_mount::unmount(&pool.mountpoint, pool.device).map_err(|error| match error {
        MountError::InUse(_) => Failure::new(format_args!("{} is in use", directory.display()))
            .hint("close the files that are open there and leave its directories, then try again"),
        error => Failure::new(error),
    })?;
    // While another mount of the filesystem is left, the server goes on.
    let is_left = mounted_pools().iter().any(|left| left.device == pool.device);
    let Some(server) = server.filter(|_| !is_left) else { return Ok(()) };
    let patience = Timespec { tv_sec: CLOSE_SECONDS_MAX, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&patience)) {
        Ok(ended) if ended > 0 => Ok(()),
        _ => {
            Err(Failure::new(format_args!("{} is unmounted, but its server still runs", directory.display()))
                .hint("wait until the server has written the last changes and ends"))
        }
    }
}

/// Fails if transactions are open: an unmount aborts them.
fn refuse_open_transactions(mountpoint: &Path) -> Result<(), Failure> {
    // A mount without a server has no transactions, and can be unmounted.
    let Ok(open) = TransactionClient::open(mountpoint).and_then(|control| control.list()) else {
        return Ok(());
    };
    if open.is_empty() {
        return Ok(());
    }
    let (count, at) = (open.len(), mountpoint.display());
    let noun = if count == 1 { "transaction is" } else { "transactions are" };
    Err(Failure::new(format_args!("{at} is in use: {count} {noun} open"))
        .hint("end them with 'warpfire tx commit' or 'warpfire tx abort', or abort all with --force"))
}
