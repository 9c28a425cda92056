//! `warpfire umount`: unmount a pool, and wait until its server has written the last changes and closed the
//! pool.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use warpfire_terminal::Failure;

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::pool_mounted_at;

const EXAMPLES: &str = "\
Examples:
  warpfire umount /mnt";

/// Longest wait for the server to write the last changes and close the pool.
const CLOSE_SECONDS_MAX: i64 = 300;

/// Arguments of `warpfire umount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory that the pool is mounted on.
    directory: PathBuf,
}

/// Unmounts the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    unmount(&args.directory)
}

/// Unmounts the pool on a directory. On return the pool is closed and can be opened again.
pub fn unmount(directory: &Path) -> Result<(), Failure> {
    let pool = pool_mounted_at(directory).ok_or_else(|| {
        Failure::new(format_args!("no pool is mounted at {}", directory.display()))
            .hint("name the directory that the pool is mounted on")
    })?;
    // Connected before the unmount: the server may end at once, and then there is nothing to wait for.
    let server = ServerConnection::of_mount(&pool).ok().and_then(|server| server.watch());
    if rustix::process::geteuid().is_root() {
        rustix::mount::unmount(directory, UnmountFlags::empty()).map_err(|error| {
            Failure::local(directory, &error.into())
                .hint("close the files that are open there and leave its directories, then try again")
        })?;
    } else {
        let output = Command::new("fusermount3").arg("-u").arg(directory).output().map_err(|error| {
            Failure::new(format_args!("cannot run fusermount3: {error}")).hint("install the package fuse3")
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(said.trim())
                .hint("close the files that are open there, and unmount as the user that mounted the pool"));
        }
    }
    let Some(server) = server else { return Ok(()) };
    let patience = Timespec { tv_sec: CLOSE_SECONDS_MAX, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&patience)) {
        Ok(ended) if ended > 0 => Ok(()),
        _ => {
            Err(Failure::new(format_args!("{} is unmounted, but its server still runs", directory.display()))
                .hint("wait until the server has written the last changes and ends"))
        }
    }
}
