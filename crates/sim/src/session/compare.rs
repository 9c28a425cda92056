//! What the product says beside what the model says.

use warpfire_fs::{FsError, Yanked};

use super::{Outcome, is_fault};
use crate::drive::errno_of;
use crate::model::{Errno, Told};

/// How an operation ended that ended as it may.
pub(super) enum Compared {
    /// As the model says; with what was yanked.
    Agreed(Option<Yanked>),
    /// The pool is full.
    Refused,
    /// A device's fault came through.
    Faulted(FsError),
}

impl From<Compared> for Outcome {
    fn from(compared: Compared) -> Outcome {
        match compared {
            Compared::Agreed(_) => Outcome::Agreed,
            Compared::Refused => Outcome::Refused,
            Compared::Faulted(e) => Outcome::Faulted(e),
        }
    }
}

/// Says how they differ, if they may not.
pub(super) fn compare(
    wanted: &Result<Told, Errno>,
    said: Result<(Told, Option<Yanked>), FsError>,
) -> Result<Compared, String> {
    match (wanted, said) {
        (Ok(wanted), Ok((told, yanked))) if *wanted == told => Ok(Compared::Agreed(yanked)),
        (Ok(wanted), Ok((told, _))) => {
            Err(format!("it must tell {}; it tells {}", show(wanted), show(&told)))
        }
        (Err(wanted), Err(said)) if *wanted == errno_of(&said) => Ok(Compared::Agreed(None)),
        (_, Err(FsError::NoSpace)) => Ok(Compared::Refused),
        (_, Err(said)) if is_fault(&said) => Ok(Compared::Faulted(said)),
        (Ok(_), Err(said)) => Err(format!("it must succeed; it says: {said}")),
        (Err(wanted), Ok(_)) => Err(format!("it must fail ({wanted}); it succeeds")),
        (Err(wanted), Err(said)) => Err(format!("it must fail with '{wanted}'; it says: {said}")),
    }
}

fn show(told: &Told) -> String {
    match told {
        Told::Bytes(bytes) => {
            format!("{} bytes that begin with {:x?}", bytes.len(), &bytes[..bytes.len().min(8)])
        }
        other => format!("{other:?}"),
    }
}
