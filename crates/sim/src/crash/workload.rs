//! A recorded workload: the events of the devices, and the states of the model.

use warpfire_sim_env::{Recording, SimWorld};

use crate::history::History;
use crate::model::Model;
use crate::op::{Menu, Op, OpSource};
use crate::open_transactions::OpenTransactions;
use crate::session::{Session, Violation};
use crate::stack::Shape;

/// A recorded run for the judge. The marks of its trace are numbers of states: `2 i + 1` marks the beginning
/// of the operation that leads to state `i + 1`, and `2 i` marks that state `i` is durable.
pub struct Workload {
    /// The devices and the engine.
    pub shape: Shape,
    /// The events of the devices.
    pub recording: Recording,
    /// The states of the model.
    pub history: History,
}

impl Workload {
    /// Opens the filesystem of a world, with `model` as its state, runs operations on it, and records all of
    /// this.
    ///
    /// # Errors
    /// If the product disagrees with the model while it runs.
    pub fn record(
        shape: Shape,
        mut world: SimWorld,
        model: Model,
        next: &mut dyn FnMut(&Model, &OpenTransactions) -> Option<Op>,
    ) -> Result<Self, Violation> {
        world.record();
        let mut session = Session::resume(shape, world, model)?;
        while let Some(op) = next(session.history.model(), session.open_transactions()) {
            session.world.mark(2 * session.history.newest() as u64 + 1);
            session.step(&op)?;
            session.world.mark(2 * session.history.durable() as u64);
        }
        let recording = session.world.take_recording().expect("a recording was begun");
        Ok(Workload { shape, recording, history: session.history })
    }

    /// A drawn workload of this many operations on an empty filesystem.
    ///
    /// # Errors
    /// As `record`.
    pub fn draw(shape: Shape, seed: u64, menu: Menu, operations: usize) -> Result<Self, Violation> {
        let draw = OpSource::new(seed, menu);
        let session = Session::make(shape, seed)?;
        let model = session.history.model().clone();
        let world = closed(session)?;
        let mut left = operations;
        Self::record(shape, world, model, &mut |model, open_transactions| {
            left = left.checked_sub(1)?;
            Some(draw.next(model, open_transactions))
        })
    }
}

/// The world of a session after a clean close.
pub(super) fn closed(session: Session) -> Result<SimWorld, Violation> {
    session.fs().close().map_err(|e| Violation(format!("cannot be closed: {e}")))?;
    Ok(session.world.fork())
}
