//! Conversion between times of the clock and times of records, and the provisional times of transactions.
//!
//! # Terms
//! Inside a transaction a call gives files a *provisional* time: the time of the call, marked as such. The
//! commit *settles* the times: each provisional time becomes the time of the commit, and a time that the
//! program has set stays. So nobody sees a change with a time from before the change.
//!
//! # Invariants
//! 1. A provisional time is later than every other time, and provisional times are in the order of their
//!    calls (`tests::provisional_times_come_last_and_in_order`). So code that takes the later of two times
//!    needs no case for them.
//! 2. No record of the base has a provisional time (`tests/check.rs`).

use warpfire_env::Timestamp;
use warpfire_format::Corrupt;
use warpfire_format::fs::{Attrs, Dentry, Inode, InodeEdit, InodeTime, Key};
use warpfire_meta::{Batch, BatchOp};

/// Added to the seconds of a provisional time.
const PROVISIONAL: i64 = 1 << 61;

/// Seconds of a time that is set or read from a clock stay between this and its negative: 36 billion years.
const SECONDS_MAX: i64 = (1 << 60) - 1;

/// A time for a record. A record takes fewer than 10^9 nanoseconds, and a caller may pass more.
pub(crate) fn stamp(t: Timestamp) -> InodeTime {
    let seconds = t.seconds.clamp(-SECONDS_MAX, SECONDS_MAX);
    InodeTime { seconds, nanos: t.nanos.min(999_999_999) }
}

/// A time of a record, for callers.
pub(crate) fn timestamp(t: InodeTime) -> Timestamp {
    let seconds = if is_provisional(t) { t.seconds - PROVISIONAL } else { t.seconds };
    Timestamp { seconds, nanos: t.nanos }
}

/// The provisional time of a call at `t`.
pub(crate) fn provisional(t: InodeTime) -> InodeTime {
    debug_assert!(!is_provisional(t), "a clock has no provisional time");
    InodeTime { seconds: t.seconds + PROVISIONAL, nanos: t.nanos }
}

/// Whether a commit has yet to settle this time.
pub(crate) fn is_provisional(t: InodeTime) -> bool {
    t.seconds > SECONDS_MAX
}

/// Settles a time at the time of the commit. Returns whether it was provisional.
fn settle(t: &mut InodeTime, at: InodeTime) -> bool {
    let is_provisional = is_provisional(*t);
    if is_provisional {
        *t = at;
    }
    is_provisional
}

/// Settles all times of attributes. Returns whether one was provisional.
pub(crate) fn settle_attrs(attrs: &mut Attrs, at: InodeTime) -> bool {
    let times = [&mut attrs.btime, &mut attrs.mtime, &mut attrs.ctime, &mut attrs.atime];
    times.into_iter().fold(false, |any, time| settle(time, at) | any)
}

/// Settles all times in the changes of a transaction.
///
/// # Errors
/// Codes 401 to 416 if a change does not decode.
pub(crate) fn settle_batch(batch: &mut Batch, at: InodeTime) -> Result<(), Corrupt> {
    debug_assert!(!is_provisional(at), "a commit has a time of the clock");
    // Regions and extended attributes have no times.
    batch.rewrite(|op, out| match (Key::decode(op.key())?, op) {
        (Key::Inode(..) | Key::Orphan(..), BatchOp::Put(_, value)) => {
            settle_inode(Inode::decode(value)?, at, out)
        }
        (Key::Dentry(..), BatchOp::Put(_, value)) => match Dentry::decode(value)? {
            Dentry::Embedded(inode) => settle_inode(inode, at, out),
            Dentry::Reference(..) => Ok(false),
        },
        (Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..), BatchOp::Merge(_, operand)) => {
            let mut edit = InodeEdit::decode(operand)?;
            let times =
                [&mut edit.atime, &mut edit.mtime, &mut edit.ctime, &mut edit.mtime_max, &mut edit.ctime_max];
            let any = times.into_iter().flatten().fold(false, |any, time| settle(time, at) | any);
            if any {
                edit.encode(out);
            }
            Ok(any)
        }
        _ => Ok(false),
    })
}

fn settle_inode(mut inode: Inode<'_>, at: InodeTime, out: &mut Vec<u8>) -> Result<bool, Corrupt> {
    let any = settle_attrs(&mut inode.attrs, at);
    if any {
        inode.encode(out);
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisional_times_come_last_and_in_order() {
        let time = |seconds, nanos| stamp(Timestamp { seconds, nanos });
        let times = [
            time(i64::MIN, 0),
            time(0, 5),
            time(i64::MAX, u32::MAX),
            provisional(time(i64::MIN, 0)),
            provisional(time(1, 7)),
            provisional(time(1, 8)),
            provisional(time(i64::MAX, 0)),
        ];
        assert!(times.is_sorted());
        assert_eq!(times.map(is_provisional), [false, false, false, true, true, true, true]);
        assert_eq!(timestamp(provisional(time(1, 7))), Timestamp { seconds: 1, nanos: 7 });
    }
}
