//! Every workload of one and of two operations on a small namespace.

use warpfire_sim_env::SimWorld;

use super::workload::closed;
use super::{Budget, Judge, Workload};
use crate::model::Model;
use crate::op::{Op, alphabet, namespace};
use crate::session::{Session, Violation};
use crate::stack::Shape;

/// The namespace, made once, and the workloads on it.
pub struct SmallWorkloads {
    shape: Shape,
    world: SimWorld,
    model: Model,
    workloads: Vec<Vec<Op>>,
}

impl SmallWorkloads {
    /// Makes the namespace on blank devices.
    ///
    /// # Errors
    /// If the product disagrees with the model.
    pub fn make(shape: Shape) -> Result<Self, Violation> {
        let mut session = Session::make(shape, 1)?;
        for op in namespace() {
            session.step(&op)?;
        }
        session.step(&Op::Sync)?;
        let model = session.history.model().clone();
        Ok(SmallWorkloads { shape, world: closed(session)?, model, workloads: workloads() })
    }

    /// The number of workloads.
    #[must_use]
    pub fn workloads(&self) -> usize {
        self.workloads.len()
    }

    /// Tries every crash state of a workload, and returns their number.
    ///
    /// # Errors
    /// The first violation.
    ///
    /// # Panics
    /// If there is no such workload.
    pub fn judge(&self, nth: u64) -> Result<u64, Violation> {
        let mut ops = self.workloads[usize::try_from(nth).expect("workloads are few")].iter().cloned();
        let workload =
            Workload::record(self.shape, self.world.fork(), self.model.clone(), &mut |_, _| ops.next())?;
        let mut judge = Judge::new(nth, Budget::SMALL);
        judge.try_all(&workload, u64::MAX)?;
        Ok(judge.states)
    }
}

/// Each operation and each pair: without a sync, with one after, and between and after.
fn workloads() -> Vec<Vec<Op>> {
    let letters = alphabet();
    let mut all = Vec::new();
    for first in &letters {
        all.push(vec![first.clone()]);
        all.push(vec![first.clone(), Op::Sync]);
        for second in &letters {
            let (first, second) = (first.clone(), second.clone());
            all.push(vec![first.clone(), second.clone(), Op::Sync]);
            all.push(vec![first, Op::Sync, second, Op::Sync]);
        }
    }
    all
}
