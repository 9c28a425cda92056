//! `warpfire tx diff`: the changes of a transaction, one line for each path.

use rustix::io::Errno;
use warpfire_terminal::Failure;

use super::{MountedPool, error_number};
use crate::output::ChangeLines;

/// Prints the changes of a transaction as they arrive. Without an id it is the transaction of the view that
/// the directory is in, or the only open one.
pub fn run(mounted: &MountedPool, id: Option<u64>) -> Result<(), Failure> {
    let mut lines = ChangeLines::new("nothing would change\n");
    // Id 0 means the view's own transaction. The main mount knows none and answers ENOENT.
    let shown = print_changes(mounted, id.unwrap_or(0), &mut lines);
    match (id, shown) {
        (None, Err(error)) if error.number == Some(Errno::NOENT) && !lines.has_any() => {
            let id = only_one(mounted)?;
            print_changes(mounted, id, &mut lines).map_err(|error| error.failure)?;
        }
        (_, shown) => shown.map_err(|error| error.failure)?,
    }
    lines.finish()
}

/// The error that ended a listing.
struct ListingError {
    failure: Failure,
    number: Option<Errno>,
}

impl From<Failure> for ListingError {
    fn from(failure: Failure) -> Self {
        ListingError { failure, number: None }
    }
}

fn print_changes(mounted: &MountedPool, id: u64, lines: &mut ChangeLines) -> Result<(), ListingError> {
    for change in mounted.control.changes(id) {
        let change = change.map_err(|error| ListingError {
            number: error_number(&error),
            failure: match error_number(&error) {
                Some(Errno::NOENT) => mounted.no_such(id),
                Some(Errno::BUSY | Errno::STALE) => {
                    let failure =
                        Failure::new(format_args!("transaction {id} is ending, or another command lists it"));
                    failure.hint("try again")
                }
                Some(Errno::NOTTY) => {
                    let directory = mounted.directory.display();
                    Failure::new(format_args!("the server of {directory} cannot list changes: {error}"))
                        .hint("unmount the pool, and mount it with this version")
                }
                _ => Failure::new(format_args!("the changes of transaction {id} cannot be read: {error}")),
            },
        })?;
        lines.add(&change)?;
    }
    Ok(())
}

fn only_one(mounted: &MountedPool) -> Result<u64, Failure> {
    match mounted.list()?.as_slice() {
        [one] => Ok(one.id),
        [] => Err(Failure::new("no transaction is open")),
        _ => Err(Failure::new("several transactions are open")
            .hint("name one by its id: 'warpfire tx list' shows them")),
    }
}
