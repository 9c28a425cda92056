//! What the product says beside what the model says.

use warpfire_fs::{FsError, YankedSlice};

use super::{StepOutcome, is_fault};
use crate::drive::errno_of;
use crate::model::{Errno, OpOutput};

/// How an operation ended that ended as it may.
pub(super) enum Comparison {
    /// As the model says; with what was yanked.
    Agreed(Option<YankedSlice>),
    /// The pool is full.
    Refused,
    /// A device's fault came through.
    Faulted(FsError),
}

impl From<Comparison> for StepOutcome {
    fn from(compared: Comparison) -> StepOutcome {
        match compared {
            Comparison::Agreed(_) => StepOutcome::Agreed,
            Comparison::Refused => StepOutcome::Refused,
            Comparison::Faulted(e) => StepOutcome::Faulted(e),
        }
    }
}

/// Says how they differ, if they may not.
pub(super) fn compare(
    wanted: &Result<OpOutput, Errno>,
    result: Result<(OpOutput, Option<YankedSlice>), FsError>,
) -> Result<Comparison, String> {
    match (wanted, result) {
        (Ok(wanted), Ok((output, yanked))) if *wanted == output => Ok(Comparison::Agreed(yanked)),
        (Ok(wanted), Ok((output, _))) => {
            Err(format!("it must tell {}; it tells {}", show(wanted), show(&output)))
        }
        (Err(wanted), Err(result)) if *wanted == errno_of(&result) => Ok(Comparison::Agreed(None)),
        (_, Err(FsError::NoSpace)) => Ok(Comparison::Refused),
        (_, Err(result)) if is_fault(&result) => Ok(Comparison::Faulted(result)),
        (Ok(_), Err(result)) => Err(format!("it must succeed; it says: {result}")),
        (Err(wanted), Ok(_)) => Err(format!("it must fail ({wanted}); it succeeds")),
        (Err(wanted), Err(result)) => Err(format!("it must fail with '{wanted}'; it says: {result}")),
    }
}

fn show(output: &OpOutput) -> String {
    match output {
        OpOutput::Bytes(bytes) => {
            format!("{} bytes that begin with {:x?}", bytes.len(), &bytes[..bytes.len().min(8)])
        }
        other => format!("{other:?}"),
    }
}
