//! `warpfire snapshot rollback`: the files of a pool become what a snapshot shows.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, SnapshotRollback, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, is_json, print, print_json, quoted};

use super::{EXAMPLES, SnapshotOutput, WireSnapshot, of_snapshot, with_pool, write_back};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::location::PoolName;
use crate::output::rfc3339;

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The snapshot.
    #[arg(value_name = "NAME")]
    name: OsString,

    /// The name of the snapshot that keeps the files as they are now [default: before-rollback-TIME].
    #[arg(long, value_name = "NAME")]
    keep_as: Option<OsString>,
}

/// A rollback between a client and a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireRollback {
    to: WireSnapshot,
    kept: WireSnapshot,
}

/// A rollback, as JSON.
#[derive(Debug, Serialize)]
struct RollbackOutput {
    /// The snapshot that the files show now.
    rolled_back_to: SnapshotOutput,
    /// The snapshot of the files as they were.
    kept: SnapshotOutput,
}

impl From<SnapshotRollback> for WireRollback {
    fn from(done: SnapshotRollback) -> Self {
        WireRollback { to: done.to.into(), kept: done.kept.into() }
    }
}

/// Rolls back an open pool.
///
/// # Errors
/// There is no such snapshot; the other name is taken, or none for a snapshot; the pool is in use, full or
/// takes no changes.
fn roll_back_in(pool: &Warpfire, name: &[u8], keep_as: &[u8]) -> Result<WireRollback, Failure> {
    let done = pool.roll_back_to_snapshot(OsStr::from_bytes(name), OsStr::from_bytes(keep_as));
    rolled_back(done, name, keep_as)
}

/// The outcome of a rollback.
///
/// # Errors
/// As [`roll_back_in`].
pub fn rolled_back(
    done: warpfire::Result<SnapshotRollback>,
    name: &[u8],
    keep_as: &[u8],
) -> Result<WireRollback, Failure> {
    done.map(WireRollback::from).map_err(|error| match error.kind() {
        ErrorKind::NotFound => of_snapshot(name, &error),
        ErrorKind::Conflict => {
            Failure::new("files of the pool change at this moment; nothing is rolled back")
                .hint("run the command again")
        }
        ErrorKind::InvalidInput if is_too_much(&error) => Failure::new(
            "files that are open and that the snapshot does not have are more than the memory for transactions \
             holds; nothing is rolled back",
        )
        .hint("close them, and run the command again"),
        _ => of_snapshot(keep_as, &error),
    })
}

fn is_too_much(error: &warpfire::Error) -> bool {
    error.to_string().contains("more than the memory for transactions holds")
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let name = args.name.as_bytes().to_vec();
    let keep_as = match &args.keep_as {
        Some(name) => name.as_bytes().to_vec(),
        None => {
            let now = rfc3339(SystemClock.now());
            format!("before-rollback-{now}").into_bytes()
        }
    };
    let pool = PoolName::new(&args.pool);
    let done = match ServerConnection::of_pool(&pool)? {
        Some(server) => {
            write_back(&pool)?;
            match server.ask(Request::RollBackSnapshot { name, keep_as }, |_| ())? {
                Answer::SnapshotRolledBack(done) => done,
                _ => return Err(foreign_answer()),
            }
        }
        None => with_pool(&pool, |pool| roll_back_in(pool, &name, &keep_as))?,
    };
    if is_json() {
        return print_json(&RollbackOutput {
            rolled_back_to: done.to.document(),
            kept: done.kept.document(),
        });
    }
    print(format!(
        "the files are those of snapshot {}\nsnapshot {} keeps the files as they were\n",
        quoted(done.to.name().as_os_str()),
        quoted(done.kept.name().as_os_str()),
    ))
}
