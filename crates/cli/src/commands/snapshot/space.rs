//! What deleting snapshots frees: `warpfire snapshot list --space` and `warpfire snapshot delete --dry-run`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use warpfire::{Pool, Warpfire};
use warpfire_terminal::{Failure, Size, counted, is_json, print, print_json};

use super::keepers::{KeepersOutput, SnapshotKeepers};
use super::{SnapshotOutput, WireSnapshot};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::location::PoolName;

/// Most snapshots in an answer of a server: 12 MiB.
const ANSWERED_MAX: usize = 200_000;

/// Most stretches of snapshots in a request: 13 KB.
const STRETCHES_MAX: usize = 300;

/// What deleting a snapshot frees, between a client and a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireSpace {
    /// Bytes that are free without it.
    pub alone_bytes: u64,
    /// Bytes that are free without it and all older ones.
    pub with_older_bytes: u64,
    number: u64,
}

/// A snapshot in a list, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct ListedOutput {
    #[serde(flatten)]
    snapshot: SnapshotOutput,
    #[serde(flatten)]
    kept: KeepersOutput,
    /// With `--space`: bytes of files that are free without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    frees_alone_bytes: Option<u64>,
    /// With `--space`: bytes of files that are free without it and all older ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    frees_with_older_bytes: Option<u64>,
}

impl ListedOutput {
    pub(super) fn new(
        snapshot: &WireSnapshot,
        kept: &SnapshotKeepers,
        space: Option<WireSpace>,
    ) -> ListedOutput {
        ListedOutput {
            snapshot: snapshot.document(),
            kept: kept.document(snapshot),
            frees_alone_bytes: space.map(|space| space.alone_bytes),
            frees_with_older_bytes: space.map(|space| space.with_older_bytes),
        }
    }
}

/// The bytes that deleting snapshots frees, as JSON.
#[derive(Debug, Serialize)]
struct FreedOutput {
    /// Number of snapshots.
    snapshots: usize,
    /// Bytes of files that are free without all of them.
    frees_bytes: u64,
}

/// What deleting each snapshot of an open pool frees.
///
/// # Errors
/// The metadata is damaged; there are too many snapshots.
pub fn space_in(pool: &Warpfire) -> Result<Vec<WireSpace>, Failure> {
    let space = pool.snapshot_space().map_err(|error| Failure::pool(&error))?;
    if space.len() > ANSWERED_MAX {
        return Err(Failure::new(format_args!("the pool has more than {ANSWERED_MAX} snapshots"))
            .hint("'warpfire snapshot delete --dry-run' says what deleting some of them frees"));
    }
    let wire = |space: warpfire::SnapshotSpace| {
        let warpfire::SnapshotSpace { number, alone_bytes, with_older_bytes } = space;
        WireSpace { alone_bytes, with_older_bytes, number }
    };
    Ok(space.into_iter().map(wire).collect())
}

/// The bytes that deleting the snapshots in some stretches of an open pool frees.
///
/// # Errors
/// The metadata is damaged.
pub fn freed_in(pool: &Warpfire, stretches: &[(u64, u64)]) -> Result<u64, Failure> {
    let is_gone = |number| stretches.iter().any(|(first, last)| (*first..=*last).contains(&number));
    pool.bytes_freed_without(is_gone).map_err(|error| Failure::pool(&error))
}

impl WireSpace {
    /// What deleting each of the listed snapshots frees. `None` for one that was made since.
    pub(super) fn of_all(name: &PoolName, found: &[WireSnapshot]) -> Result<Vec<Option<WireSpace>>, Failure> {
        let answered = match ServerConnection::of_pool(name)? {
            Some(server) => match server.ask(Request::SnapshotSpace, |_| ())? {
                Answer::SnapshotSpace(answered) => answered,
                _ => return Err(foreign_answer()),
            },
            None => space_in(&pool::open_as(&Pool::options().read_only(true), name)?)?,
        };
        // Both are in the order of numbers, whatever a foreign server says: then some are not found.
        let of_one = |snapshot: &WireSnapshot| {
            answered.binary_search_by_key(&snapshot.number, |space| space.number).ok().map(|at| answered[at])
        };
        Ok(found.iter().map(of_one).collect())
    }

    /// How many bytes snapshots hold that the present does not need.
    pub(super) fn total(space: &[Option<WireSpace>]) -> String {
        let all = space.iter().flatten().next_back().map_or(0, |newest| newest.with_older_bytes);
        let snapshots = counted(space.len() as u64, "snapshot holds", "snapshots hold");
        format!("{snapshots} {} that nothing else needs\n", Size(all))
    }
}

/// The stretches of neighbours among all snapshots that the chosen ones are.
fn stretches(found: &[WireSnapshot], chosen: &[WireSnapshot]) -> Vec<(u64, u64)> {
    let wanted: BTreeSet<u64> = chosen.iter().map(|snapshot| snapshot.number).collect();
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    let mut is_after_chosen = false;
    for number in found.iter().map(|snapshot| snapshot.number) {
        let is_chosen = wanted.contains(&number);
        match stretches.last_mut() {
            Some((_, last)) if is_chosen && is_after_chosen => *last = number,
            _ if is_chosen => stretches.push((number, number)),
            _ => {}
        }
        is_after_chosen = is_chosen;
    }
    stretches
}

/// Reports the bytes that deleting the chosen snapshots would free.
pub(super) fn report_freed(
    name: &PoolName,
    found: &[WireSnapshot],
    chosen: &[WireSnapshot],
) -> Result<(), Failure> {
    let stretches = stretches(found, chosen);
    let freed = match ServerConnection::of_pool(name)? {
        Some(_) if stretches.len() > STRETCHES_MAX => {
            return Err(Failure::new(format_args!(
                "the snapshots are not neighbours, and more than {STRETCHES_MAX} apart from each other"
            ))
            .hint("name fewer of them, or 'A..B' for all from A to B"));
        }
        Some(server) => match server.ask(Request::FreedBytes { stretches }, |_| ())? {
            Answer::FreedBytes(freed) => freed,
            _ => return Err(foreign_answer()),
        },
        None => freed_in(&pool::open_as(&Pool::options().read_only(true), name)?, &stretches)?,
    };
    if is_json() {
        return print_json(&FreedOutput { snapshots: chosen.len(), frees_bytes: freed });
    }
    let what = counted(chosen.len() as u64, "snapshot", "snapshots");
    print(format!("deleting {what} would free {}\n", Size(freed)))
}
