//! Compares the product's answer with the model's.

use warpfire_fs::{FsError, YankedSlice};

use super::{StepOutcome, is_fault};
use crate::drive::errno_of;
use crate::model::{Errno, OpOutput};

/// An outcome of an operation that is no violation by itself.
pub(super) enum Comparison {
    /// The product agrees with the model. Holds the value that was yanked.
    Agreed(Option<YankedSlice>),
    /// The pool is full.
    Refused,
    /// The operation failed because devices failed.
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

/// Compares the answers. The error is the difference, as text.
pub(super) fn compare(
    wanted: &Result<OpOutput, Errno>,
    result: Result<(OpOutput, Option<YankedSlice>), FsError>,
) -> Result<Comparison, String> {
    match (wanted, result) {
        (Ok(wanted), Ok((output, yanked))) if *wanted == output => Ok(Comparison::Agreed(yanked)),
        (Ok(wanted), Ok((output, _))) => {
            Err(format!("it must return {}; it returns {}", show(wanted), show(&output)))
        }
        (Err(wanted), Err(result)) if *wanted == errno_of(&result) => Ok(Comparison::Agreed(None)),
        (_, Err(FsError::NoSpace)) => Ok(Comparison::Refused),
        (_, Err(result)) if is_fault(&result) => Ok(Comparison::Faulted(result)),
        (Ok(_), Err(result)) => Err(format!("it must succeed; it fails with '{result}'")),
        (Err(wanted), Ok(_)) => Err(format!("it must fail with '{wanted}'; it succeeds")),
        (Err(wanted), Err(result)) => Err(format!("it must fail with '{wanted}'; it fails with '{result}'")),
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
