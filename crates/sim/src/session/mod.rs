//! One run of the product beside the model. Each answer is compared; `check` compares everything visible.

mod compare;
mod mend;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use warpfire_env::Clock;
use warpfire_fs::FsError;
use warpfire_sim_env::{Cut, SimRandom, SimWorld, mix};

use crate::drive::{background, change_pool, drive, errno_of, settle_some};
use crate::history::History;
use crate::model::{Errno, Model, OpOutput, show_path};
use crate::observe::observe_all;
use crate::op::Op;
use crate::open_transactions::OpenTransactions;
use crate::space::{census, check_copy, check_total, refusal_fault};
use crate::stack::{Shape, SimFs, overwrite};
use compare::{Comparison, compare};
use mend::Mend;

/// Time that passes before each operation, so that no two operations have the same time.
const STEP_NANOS: u64 = 1_000_001;

/// A broken promise of the product, as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Words of a violation of `find_state` for a part of the filesystem that cannot be read.
pub(crate) const UNREADABLE: &str = "cannot be read";

/// An outcome of an operation that is no violation by itself.
#[derive(Debug)]
pub enum StepOutcome {
    /// The product agrees with the model.
    Agreed,
    /// The pool is full; the filesystem has not changed.
    Refused,
    /// The operation failed because devices failed. It may have taken place or not.
    Faulted(FsError),
}

/// The product and the model side by side.
pub struct Session {
    /// The devices.
    pub world: SimWorld,
    shape: Shape,
    fs: Option<Arc<SimFs>>,
    /// Draws the pieces that a mend does at a time. `None`: each mend goes on to its end, as in a command.
    pieces: Option<Arc<SimRandom>>,
    /// The mend that is paused.
    mend: Option<Mend>,
    open_transactions: OpenTransactions,
    /// The states of the model.
    pub history: History,
    /// Whether devices have failed, so that redundancy may be missing after recovery.
    pub devices_failed: bool,
    /// The model's node of every inode number that was seen since the last crash, or that was durable then.
    nodes_by_number: BTreeMap<u64, u64>,
}

impl Session {
    /// Makes a pool on blank devices.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(shape: Shape, seed: u64) -> Result<Self, Violation> {
        let world = shape.world(seed);
        let fs = shape.make(&world).map_err(|e| Violation(format!("cannot make {shape}: {e}")))?;
        let model = Model::new(world.clock().now());
        let pieces = SimRandom::new(mix(seed) ^ 0x91ec);
        Ok(Session {
            world,
            shape,
            fs: Some(Arc::new(fs)),
            pieces: (!pieces.one_in(3)).then(|| Arc::new(pieces)),
            mend: None,
            open_transactions: OpenTransactions::default(),
            history: History::new(model),
            devices_failed: false,
            nodes_by_number: BTreeMap::new(),
        })
    }

    /// A session in a world with devices that hold the model's state.
    ///
    /// # Errors
    /// If it cannot be opened, or holds another state.
    pub fn resume(shape: Shape, world: SimWorld, model: Model) -> Result<Self, Violation> {
        let mut session = Session {
            world,
            shape,
            fs: None,
            pieces: None,
            mend: None,
            open_transactions: OpenTransactions::default(),
            history: History::new(model),
            devices_failed: false,
            nodes_by_number: BTreeMap::new(),
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
        self.fs.as_ref().expect("a session is not used after its open has failed")
    }

    /// The transactions and values that are open.
    #[must_use]
    pub fn open_transactions(&self) -> &OpenTransactions {
        &self.open_transactions
    }

    fn open(&mut self) -> Result<(), Violation> {
        let opened = self.shape.open(&self.world);
        self.fs = Some(Arc::new(opened.map_err(|e| Violation(format!("cannot be opened: {e}")))?));
        Ok(())
    }

    /// Does an operation on both sides, and compares the answers.
    ///
    /// # Errors
    /// If the answers differ, or if a pool that is not full refuses the operation.
    pub fn step(&mut self, op: &Op) -> Result<StepOutcome, Violation> {
        let outcome = self.try_step(op)?;
        if let StepOutcome::Refused = outcome {
            let fault = refusal_fault(self.fs(), &self.shape, op, &self.open_transactions);
            if let Some(why) = fault {
                return Err(self.disagreement(op, &why));
            }
        }
        if let StepOutcome::Faulted(e) = outcome {
            return Err(self.disagreement(op, &format!("the product fails with '{e}'")));
        }
        Ok(outcome)
    }

    /// As `step`, with devices that may fail.
    ///
    /// # Errors
    /// If the answers differ, unless the pool is full or devices failed.
    pub fn try_step(&mut self, op: &Op) -> Result<StepOutcome, Violation> {
        let clock = self.world.clock();
        clock.advance(STEP_NANOS);
        let now = clock.now();
        if let Some(outcome) = self.step_of_transaction(op, now)? {
            return Ok(outcome);
        }
        if let Op::RollBack(_, kept) = op {
            // A crash may leave this snapshot alone.
            let made = self.history.push(&Op::Snapshot(kept.clone()), self.open_transactions.slots(), now);
            assert!(made.is_ok(), "only a rollback with a free name is drawn");
        }
        let wanted = self.history.push(op, self.open_transactions.slots(), now);
        let result = match op {
            Op::Reopen => self.reopen().map(|()| (OpOutput::Nothing, None)),
            Op::Snapshot(name) => self.fs().create_snapshot(name).map(|_| (OpOutput::Nothing, None)),
            Op::DropSnapshot(name) => self.fs().delete_snapshot(name).map(|_| (OpOutput::Nothing, None)),
            Op::RollBack(..)
            | Op::Bookmark(..)
            | Op::DropBookmark(_)
            | Op::Clone(..)
            | Op::Detach(_)
            | Op::DropClone(_) => change_pool(self.fs(), op).map(|()| (OpOutput::Nothing, None)),
            Op::Background(steps) => {
                // A few seconds pass.
                (0..4).for_each(|_| self.fs().engine().look_for_quiet());
                let done = match self.pieces.clone() {
                    Some(pieces) => self.background_in_pieces(&pieces, *steps),
                    None => background(self.fs().engine().as_ref(), *steps),
                };
                done.and_then(|()| settle_some(self.fs())).map(|()| (OpOutput::Nothing, None))
            }
            _ => drive(self.fs(), op, &self.open_transactions.values),
        };
        let outcome = compare(&wanted, result).map_err(|why| self.disagreement(op, &why))?;
        match &outcome {
            // Only an acknowledged sync limits the states that a crash may leave.
            Comparison::Agreed(yanked) => {
                self.open_transactions.note(op, yanked.as_ref(), &wanted);
                if op.makes_durable() && wanted.is_ok() {
                    self.history.acknowledge();
                }
            }
            Comparison::Refused => {
                if matches!(op, Op::RollBack(..)) {
                    self.history.refuse_last_two();
                } else {
                    self.history.refuse_last();
                }
            }
            Comparison::Faulted(_) => {}
        }
        Ok(outcome.into())
    }

    pub(super) fn disagreement(&self, op: &Op, why: &str) -> Violation {
        Violation(format!("operation {}: {op}: {why}", self.history.newest()))
    }

    fn reopen(&mut self) -> Result<(), FsError> {
        self.open_transactions.clear();
        self.mend = None;
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

    /// Compares everything visible with the newest state, and checks the devices.
    ///
    /// # Errors
    /// If anything differs.
    pub fn check(&mut self) -> Result<(), Violation> {
        let newest = self.history.newest();
        find_state(self.fs(), &self.history, newest..=newest).map(drop)?;
        self.check_inode_numbers()?;
        self.check_devices()
    }

    /// Checks that nodes keep their inode numbers, and that no number is used twice.
    fn check_inode_numbers(&mut self) -> Result<(), Violation> {
        let found = census(self.fs(), self.history.model(), None)?;
        for (id, number) in found {
            let node = *self.nodes_by_number.entry(number).or_insert(id);
            if node != id {
                return Err(Violation(format!(
                    "inode {number} was node {node} of the model, and is {id} now"
                )));
            }
        }
        Ok(())
    }

    /// Checks the pool's total, and that no device was overwritten. After a device has failed, segments may
    /// have fewer columns, so that more of them fit: the total is then not known from the geometry.
    ///
    /// # Errors
    /// If the total is wrong, or if bytes in use were overwritten.
    pub fn check_devices(&self) -> Result<(), Violation> {
        if !self.devices_failed {
            check_total(self.fs(), &self.shape)?;
        }
        overwrite(&self.world).map_or(Ok(()), |overwrite| Err(Violation(overwrite)))
    }

    /// As `crash`, for devices of which some have joined or left: their space is not known from the shape.
    ///
    /// # Errors
    /// As `crash`.
    pub fn crash_apart_from_space(&mut self, cut: &Cut) -> Result<(), Violation> {
        self.open_transactions.clear();
        self.fs = None;
        self.world = self.world.cut(cut);
        // What it does at its end does not reach the devices after the cut.
        self.mend = None;
        self.open().map_err(|v| Violation(format!("after a power cut: {v}")))?;
        let allowed = self.history.durable()..=self.history.newest();
        let found = find_state(self.fs(), &self.history, allowed)?;
        let model = self.history.state(found).clone();
        let durable: BTreeSet<u64> = model.nodes_by_path().into_iter().map(|(_, id)| id).collect();
        self.nodes_by_number.retain(|_, id| durable.contains(id));
        self.history = History::new(model);
        Ok(())
    }

    /// Cuts the power, opens the devices again, and goes on from the state found.
    ///
    /// # Errors
    /// If the state found is none that a crash may leave.
    pub fn crash(&mut self, cut: &Cut) -> Result<(), Violation> {
        self.open_transactions.clear();
        self.fs = None;
        // Before the cut: the devices after it have no record of overwrites.
        if let Some(overwrite) = overwrite(&self.world) {
            return Err(Violation(overwrite));
        }
        self.world = self.world.cut(cut);
        self.mend = None;
        let copy = self.world.fork();
        self.open().map_err(|v| Violation(format!("after a power cut: {v}")))?;
        let allowed = self.history.durable()..=self.history.newest();
        let found = find_state(self.fs(), &self.history, allowed)?;
        let model = self.history.state(found).clone();
        let report = check_copy(&copy, &self.shape, &model)?;
        if report.repairable > 0 && !self.devices_failed {
            let findings = &report.findings;
            return Err(Violation(format!("redundancy is missing after recovery: {findings:?}")));
        }
        // A number that was given out after the state found may be given out again.
        let durable: BTreeSet<u64> = model.nodes_by_path().into_iter().map(|(_, id)| id).collect();
        self.nodes_by_number.retain(|_, id| durable.contains(id));
        self.history = History::new(model);
        self.check_inode_numbers()?;
        self.check_devices()
    }
}

/// Whether an error reports failed devices, rather than a wrong request.
#[must_use]
pub fn is_fault(error: &FsError) -> bool {
    [Errno::IO, Errno::READ_ONLY].contains(&errno_of(error))
}

/// The number of the allowed state that the filesystem shows.
///
/// # Errors
/// If it shows none of them, or if a part of it cannot be read.
pub fn find_state(
    fs: &SimFs,
    history: &History,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<usize, Violation> {
    let found =
        observe_all(fs).map_err(|(path, e)| Violation(format!("{} {UNREADABLE}: {e}", show_path(&path))))?;
    history.find(allowed, &found).map_err(Violation)
}
