//! The history of a pool: which root is the newest, and which devices were written apart from it.
//!
//! Each session of the pool has an epoch and a random number. A *point* is a root by epoch, session and
//! sequence. A root names the sessions that its state comes from, and for each device the point *seen*: the
//! newest session of which the device is known to hold a root, and the newest root that this session wrote
//! while it wrote the device.
//!
//! # Invariants
//! 1. A session that opens a device takes a higher epoch than each root on it. So roots of two sessions with
//!    one epoch were never on one device when the later of them began.
//! 2. An *inherited* root repeats the state of an earlier root. It is the first of its session, and durable
//!    before the session writes anything else. So nothing is lost if it is ignored where no other device
//!    knows it.
//! 3. Before a call of a session returns that made anything durable, a root is durable that names each device
//!    that the session lost as offline (`Inner::record_losses`). So what a device holds beyond the roots that
//!    a later session knew was promised to nobody, unless one of its roots is narrow: a root that is not
//!    narrow counts as written on m + 1 devices, and at least one of these was present in the later session.
//! 4. A history names the newest sessions that had written only inherited roots, too: what such a session
//!    wrote after that is promised to nobody, as in 3 (test
//!    `a_session_whose_first_own_root_reached_one_device_is_taken_back`).
//! 5. Two sessions that each wrote without the other differ for ever: by their numbers while the newer
//!    root names the session, and by *seen* after that (test
//!    `halves_that_were_written_apart_are_told_apart_however_much_each_wrote`).

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::root::{DeviceEntry, DeviceUse, EARLIER_MAX, EarlierSession, RootHeader, RootPoint};

/// Most sessions in a history that had written only inherited roots.
const INHERITED_MAX: usize = 4;

/// The order in which roots are newer: by the state that they hold, then by themselves.
pub(crate) fn age(h: &RootHeader) -> ((u32, u64), (u32, u64)) {
    let origin = h.origin().last;
    ((origin.epoch, origin.sequence), (h.epoch, h.sequence))
}

/// The earlier sessions of a session that begins with this root.
pub(crate) fn earlier_with(newest: &RootHeader) -> Vec<EarlierSession> {
    let mut sessions: Vec<EarlierSession> =
        std::iter::once(newest.as_earlier()).chain(newest.earlier.iter().copied()).collect();
    // However many sessions of one kind there are, those of the other stay, and the origin among them.
    let (mut inherited, mut others) = (0, 0);
    sessions.retain(|session| {
        let (count, max) = match session.is_inherited {
            true => (&mut inherited, INHERITED_MAX),
            false => (&mut others, EARLIER_MAX - INHERITED_MAX),
        };
        *count += 1;
        *count <= max
    });
    sessions
}

/// Whether a device whose newest root is `found` was written apart from the pool whose newest root is
/// `newest`. `entry` is the device in the table of `newest`.
pub(crate) fn is_diverged(found: &RootHeader, newest: &RootHeader, entry: &DeviceEntry) -> bool {
    if is_planted(PlantedBug::DivergedAccepted) {
        return false;
    }
    let own = found.as_earlier();
    // An inherited root may be ignored; then the root that it repeats counts.
    is_beyond(&own, newest, entry) && (!found.is_inherited || is_beyond(&found.origin(), newest, entry))
}

/// Whether the device may hold something that was promised in `found` and that `newest` does not know.
fn is_beyond(found: &EarlierSession, newest: &RootHeader, entry: &DeviceEntry) -> bool {
    let (at, seen) = (found.last, entry.seen);
    let same_session = |other: &RootPoint| (other.epoch, other.session) == (at.epoch, at.session);
    // The root of a session that is part of the history counts if the history includes it, or if it was
    // promised to nobody.
    let is_past = |known: &RootPoint| at.sequence > known.sequence && found.is_narrow;
    if same_session(&newest.point()) {
        return false;
    }
    if let Some(known) = newest.earlier.iter().find(|e| same_session(&e.last)) {
        return is_past(&known.last);
    }
    if same_session(&seen) {
        return is_past(&seen);
    }
    // The device held a root of a later epoch than this one: a session apart from the history would have
    // taken a higher epoch still.
    at.epoch >= seen.epoch
}

/// The state of a device in the next root.
pub(crate) fn state_in_next_root(before: DeviceUse, is_written: bool, is_inherited: bool) -> DeviceUse {
    match (is_written, is_inherited) {
        _ if before == DeviceUse::Gone => DeviceUse::Gone,
        (false, _) => DeviceUse::Offline,
        // The device is back, but the state that the root repeats may refer to bytes that it missed.
        (true, true) => before,
        (true, false) => DeviceUse::Active,
    }
}
