//! One run of the product beside the model: each answer is compared, and everything that can be seen, when asked.

mod compare;
mod transactions;

use std::fmt;
use std::sync::Arc;

use warpfire_env::Clock;
use warpfire_fs::FsError;
use warpfire_sim_env::{Cut, SimWorld};

use crate::drive::{drive, errno_of};
use crate::history::History;
use crate::model::{Errno, Model, OpOutput, show_path};
use crate::observe::observe;
use crate::op::Op;
use crate::open_transactions::OpenTransactions;
use crate::stack::{Shape, SimFs, overwrite};
use compare::{Comparison, compare};

/// Time that passes before each operation: enough to tell two times apart.
const STEP_NANOS: u64 = 1_000_001;

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// How an operation ended that neither failed as it must nor did what it must.
#[derive(Debug)]
pub enum StepOutcome {
    /// As the model says.
    Agreed,
    /// The pool is full; nothing has changed.
    Refused,
    /// A device's fault came through. The operation may have taken place or not.
    Faulted(FsError),
}

/// The product and the model side by side.
pub struct Session {
    /// The devices.
    pub world: SimWorld,
    shape: Shape,
    fs: Option<Arc<SimFs>>,
    open_transactions: OpenTransactions,
    /// What the model says.
    pub history: History,
}

impl Session {
    /// Makes a pool on blank devices.
    ///
    /// # Errors
    /// If it can not be made.
    pub fn make(shape: Shape, seed: u64) -> Result<Self, Violation> {
        let world = shape.world(seed);
        let fs = shape.make(&world).map_err(|e| Violation(format!("can not make {shape}: {e}")))?;
        let model = Model::new(world.clock().now());
        Ok(Session {
            world,
            shape,
            fs: Some(Arc::new(fs)),
            open_transactions: OpenTransactions::default(),
            history: History::new(model),
        })
    }

    /// A session in another world, whose devices hold the model's state.
    ///
    /// # Errors
    /// If it can not be opened, or holds something else.
    pub fn resume(shape: Shape, world: SimWorld, model: Model) -> Result<Self, Violation> {
        let mut session = Session {
            world,
            shape,
            fs: None,
            open_transactions: OpenTransactions::default(),
            history: History::new(model),
        };
        session.open()?;
        session.check()?;
        Ok(session)
    }

    /// The filesystem.
    ///
    /// # Panics
    /// After a failed open.
    #[must_use]
    pub fn fs(&self) -> &Arc<SimFs> {
        self.fs.as_ref().expect("a session whose open failed is not used any more")
    }

    /// What is open beside it.
    #[must_use]
    pub fn open_transactions(&self) -> &OpenTransactions {
        &self.open_transactions
    }

    fn open(&mut self) -> Result<(), Violation> {
        let opened = self.shape.open(&self.world);
        self.fs = Some(Arc::new(opened.map_err(|e| Violation(format!("can not be opened: {e}")))?));
        Ok(())
    }

    /// Does an operation to both and compares what they say.
    ///
    /// # Errors
    /// If the product says something else than the model, other than that the pool is full.
    pub fn step(&mut self, op: &Op) -> Result<StepOutcome, Violation> {
        let outcome = self.try_step(op)?;
        if let StepOutcome::Faulted(e) = outcome {
            return Err(self.disagreement(op, &format!("the product says: {e}")));
        }
        Ok(outcome)
    }

    /// As `step`, where devices may fail.
    ///
    /// # Errors
    /// If the product says something else than the model for another reason than a device's fault.
    pub fn try_step(&mut self, op: &Op) -> Result<StepOutcome, Violation> {
        let clock = self.world.clock();
        clock.advance(STEP_NANOS);
        let now = clock.now();
        if let Some(outcome) = self.step_of_transaction(op, now)? {
            return Ok(outcome);
        }
        let wanted = self.history.push(op, self.open_transactions.slots(), now);
        let result = match op {
            Op::Reopen => self.reopen().map(|()| (OpOutput::Nothing, None)),
            _ => drive(self.fs(), op, &self.open_transactions.values),
        };
        let outcome = compare(&wanted, result).map_err(|why| self.disagreement(op, &why))?;
        match &outcome {
            Comparison::Agreed(yanked) => {
                self.open_transactions.note(op, yanked.as_ref(), &wanted);
                if op.makes_durable() && wanted.is_ok() {
                    self.history.acknowledge();
                }
            }
            Comparison::Refused => self.history.refuse_last(),
            Comparison::Faulted(_) => {}
        }
        Ok(outcome.into())
    }

    pub(super) fn disagreement(&self, op: &Op, why: &str) -> Violation {
        Violation(format!("operation {}: {op}: {why}", self.history.newest()))
    }

    fn reopen(&mut self) -> Result<(), FsError> {
        self.open_transactions.clear();
        if let Some(fs) = self.fs.take() {
            fs.close()?;
        }
        let opened = self.shape.open(&self.world);
        self.fs = Some(Arc::new(opened.map_err(|e| match e {
            crate::stack::StackError::Fs(e) => e,
            other => FsError::Unknown(other.to_string().into()),
        })?));
        Ok(())
    }

    /// Compares everything that can be seen with the newest state.
    ///
    /// # Errors
    /// If anything differs.
    pub fn check(&self) -> Result<(), Violation> {
        let newest = self.history.newest();
        find_state(self.fs(), &self.history, newest..=newest).map(drop)?;
        self.check_devices()
    }

    /// Checks that the log's space adds up and that no device was overwritten.
    ///
    /// # Errors
    /// If not.
    pub fn check_devices(&self) -> Result<(), Violation> {
        check_space(self.fs())?;
        overwrite(&self.world).map_or(Ok(()), |what| Err(Violation(what)))
    }

    /// Cuts the power, opens what is left, and goes on from the state that was found.
    ///
    /// # Errors
    /// If what is found is no state that a crash may leave.
    pub fn crash(&mut self, cut: &Cut) -> Result<(), Violation> {
        self.open_transactions.clear();
        self.fs = None;
        if let Some(what) = overwrite(&self.world) {
            return Err(Violation(what));
        }
        self.world = self.world.cut(cut);
        self.open().map_err(|v| Violation(format!("after a power cut: {v}")))?;
        let allowed = self.history.durable()..=self.history.newest();
        let found = find_state(self.fs(), &self.history, allowed)?;
        let model = self.history.state(found).clone();
        self.history = History::new(model);
        self.check_devices()
    }
}

/// Whether an error says that devices failed, rather than that the request was wrong.
#[must_use]
pub fn is_fault(error: &FsError) -> bool {
    [Errno::IO, Errno::READ_ONLY].contains(&errno_of(error))
}

/// Which of the allowed states the filesystem shows.
///
/// # Errors
/// If none, or if something can not be read.
pub fn find_state(
    fs: &SimFs,
    history: &History,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<usize, Violation> {
    let found = observe(fs)
        .map_err(|(path, e)| Violation(format!("{} can not be looked at: {e}", show_path(&path))))?;
    history.find(allowed, &found).map_err(Violation)
}

/// Checks that what is live, garbage and free is all there is.
///
/// # Errors
/// If not.
pub fn check_space(fs: &SimFs) -> Result<(), Violation> {
    let space = warpfire_log::LogStore::space(fs.engine().log());
    let sum = space.live_bytes + space.garbage_bytes + space.free_bytes;
    if sum == space.total_bytes {
        Ok(())
    } else {
        Err(Violation(format!("space does not add up: {space:?}")))
    }
}
