//! `warpfire snapshot diff`: the changes since a snapshot, or between two, one line for each path.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, Pool, Timestamp, Warpfire};
use warpfire_mount::{ChangeKind, PathChange, decode_change, encode_change};
use warpfire_terminal::Failure;

use super::{EXAMPLES, WireSnapshot, find_all, no_snapshot, of_snapshot, write_back};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::location::PoolName;
use crate::output::{ChangeLines, moment_of_name};

/// Changes in one part of an answer.
const CHANGES_AT_ONCE: usize = 64;

// Arguments of `warpfire snapshot diff`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The older snapshot: its name, or `@` and a moment for the newest one at that moment.
    #[arg(value_name = "OLDER")]
    older: OsString,

    /// The newer snapshot [default: the pool as it is now].
    #[arg(value_name = "NEWER")]
    newer: Option<OsString>,

    /// Only changes of this path, and below it.
    #[arg(long, value_name = "PATH")]
    below: Option<PathBuf>,
}

/// Which changes to list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiffOrder {
    /// The name of the older snapshot.
    older: Vec<u8>,
    /// The name of the newer one.
    newer: Option<Vec<u8>>,
}

/// Lists changes of an open pool, in parts, until `take` breaks.
///
/// # Errors
/// A snapshot has just been deleted; the order of the snapshots is wrong; the pool is damaged.
pub fn diff_in(
    pool: &Warpfire,
    order: &DiffOrder,
    mut take: impl FnMut(Vec<PathChange>) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let newer = order.newer.as_deref().map(OsStr::from_bytes);
    let diff = pool.diff_snapshots(OsStr::from_bytes(&order.older), newer);
    let mut diff = diff.map_err(|error| match error.kind() {
        ErrorKind::NotFound => of_snapshot(&order.older, &error),
        _ => Failure::pool(&error),
    })?;
    loop {
        let part = diff.by_ref().take(CHANGES_AT_ONCE).map(|change| change.map(PathChange::from));
        let part = part.collect::<Result<Vec<_>, _>>().map_err(|error| Failure::pool(&error))?;
        if part.is_empty() || take(part).is_break() {
            return Ok(());
        }
    }
}

/// A part of an answer.
#[must_use]
pub fn encoded(changes: &[PathChange]) -> Vec<Vec<u8>> {
    changes.iter().map(encode_change).collect()
}

/// The snapshot that an argument names.
fn named<'a>(found: &'a [WireSnapshot], argument: &OsStr) -> Result<&'a WireSnapshot, Failure> {
    let moment: Option<Timestamp> = argument.to_str().and_then(moment_of_name);
    let mut newest_first = found.iter().rev();
    let named = match moment {
        Some(moment) => newest_first.find(|snapshot| snapshot.made() <= moment),
        None => newest_first.find(|snapshot| snapshot.name == argument.as_bytes()),
    };
    named.ok_or_else(|| no_snapshot(argument.as_bytes()))
}

fn order(found: &[WireSnapshot], args: &Args) -> Result<DiffOrder, Failure> {
    let older = named(found, &args.older)?;
    let newer = args.newer.as_deref().map(|newer| named(found, newer)).transpose()?;
    if newer.is_some_and(|newer| newer.number < older.number) {
        return Err(Failure::usage("the first snapshot of a diff is the older one")
            .hint("name them in their order: 'warpfire snapshot list' shows it"));
    }
    Ok(DiffOrder { older: older.name.clone(), newer: newer.map(|newer| newer.name.clone()) })
}

/// Prints the changes as they arrive.
pub fn run(args: &Args) -> Result<(), Failure> {
    let pool = PoolName::new(&args.pool);
    let order = order(&find_all(&pool)?.0, args)?;
    let mut lines = ChangeLines::new("nothing has changed\n");
    let mut printed = Ok(());
    let is_below = |change: &PathChange| {
        let Some(below) = &args.below else { return true };
        let from = if let ChangeKind::Renamed(from) = &change.kind { Some(from) } else { None };
        change.path.starts_with(below) || from.is_some_and(|from| from.starts_with(below))
    };
    let mut print = |changes: Vec<PathChange>| {
        if printed.is_ok() {
            printed =
                changes.iter().filter(|change| is_below(change)).try_for_each(|change| lines.add(change));
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match ServerConnection::of_pool(&pool)? {
        None => diff_in(&pool::open_as(&Pool::options().read_only(true), &pool)?, &order, print)?,
        Some(server) => {
            if order.newer.is_none() {
                write_back(&pool)?;
            }
            let mut is_malformed = false;
            let answer = server.ask(Request::DiffSnapshots(order), |answer| {
                let Answer::SnapshotChanges(part) = answer else { return };
                match part.iter().map(|change| decode_change(change)).collect() {
                    Some(changes) => _ = print(changes),
                    None => is_malformed = true,
                }
            })?;
            if is_malformed || !matches!(answer, Answer::SnapshotsCompared) {
                return Err(foreign_answer());
            }
        }
    }
    printed?;
    lines.finish()
}
