//! The states of the model in a session, one for each operation, and the states that a crash may leave.
//!
//! # Invariants
//! 1. State `i` is the model after `i` operations; state 0 is the beginning of the session.
//! 2. The changes of a transaction are in the state that its commit leads to, and in none before.
//! 3. A crash leaves a state that is no older than the last one that a sync has acknowledged, and no newer
//!    than the state after the operation under way.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use warpfire_env::Timestamp;

use crate::model::{Errno, Model, OpOutput, Picture};
use crate::op::Op;
use crate::open_transactions::Slots;

/// One state, and the operation that led to it.
#[derive(Debug)]
struct HistoryState {
    model: Model,
    /// The digest of the model's picture, made on first use: most states are never compared.
    digest: OnceLock<u64>,
    op: Option<Op>,
}

impl HistoryState {
    fn new(model: Model, op: Option<Op>) -> Self {
        HistoryState { model, digest: OnceLock::new(), op }
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| self.model.picture().digest())
    }
}

/// The states of a session.
#[derive(Debug)]
pub struct History {
    states: Vec<HistoryState>,
    durable: usize,
}

impl History {
    /// A history that begins with a durable state.
    #[must_use]
    pub fn new(model: Model) -> Self {
        History { states: vec![HistoryState::new(model, None)], durable: 0 }
    }

    /// The newest state's number.
    #[must_use]
    pub fn newest(&self) -> usize {
        self.states.len() - 1
    }

    /// The newest state.
    #[must_use]
    pub fn model(&self) -> &Model {
        self.state(self.newest())
    }

    /// A state by its number.
    ///
    /// # Panics
    /// If there is no such state.
    #[must_use]
    pub fn state(&self, number: usize) -> &Model {
        &self.states[number].model
    }

    /// The number of the last state that is known to be durable.
    #[must_use]
    pub fn durable(&self) -> usize {
        self.durable
    }

    /// Notes that the newest state is durable.
    pub fn acknowledge(&mut self) {
        self.durable = self.newest();
    }

    /// Does an operation on the model. It makes a new state even if it fails or changes nothing.
    ///
    /// # Errors
    /// The error that the operation must return.
    pub fn push(&mut self, op: &Op, slots: &Slots, now: Timestamp) -> Result<OpOutput, Errno> {
        let mut model = self.model().clone();
        let result = model.apply(op, slots, now);
        self.push_state(op, model);
        result
    }

    /// Adds the state that an operation leads to.
    pub fn push_state(&mut self, op: &Op, model: Model) {
        self.states.push(HistoryState::new(model, Some(op.clone())));
    }

    /// Replaces the newest state by this one, another possible outcome of the last operation.
    pub fn set_last(&mut self, model: Model) {
        let last = self.states.last_mut().expect("there is a state");
        *last = HistoryState::new(model, last.op.take());
    }

    /// Undoes the last operation in the model: the product refused it for a reason that the model does not
    /// have.
    pub fn refuse_last(&mut self) {
        let before = self.newest() - 1;
        let model = self.states[before].model.clone();
        self.set_last(model);
    }

    /// Undoes the last two operations in the model: they were one of the product.
    pub fn refuse_last_two(&mut self) {
        let before = self.newest() - 2;
        let model = self.states[before].model.clone();
        for state in &mut self.states[before + 1..] {
            *state = HistoryState::new(model.clone(), state.op.take());
        }
    }

    /// The newest of the allowed states with the picture `found`.
    ///
    /// # Errors
    /// The differences of `found` from the nearest allowed state, if it is none of them.
    pub fn find(&self, allowed: RangeInclusive<usize>, found: &Picture) -> Result<usize, String> {
        let digest = found.digest();
        if let Some(number) = allowed.clone().rev().find(|n| self.states[*n].digest() == digest) {
            return Ok(number);
        }
        let (oldest, newest) = (*allowed.start(), *allowed.end());
        let mut why = format!("the state found is none of the states {oldest} to {newest}\n");
        // A forbidden state that matches shows the kind of violation: an older one is a lost sync.
        if let Some(number) = (0..self.states.len()).find(|n| self.states[*n].digest() == digest) {
            why.push_str(&format!(" it is state {number}, which a sync or a later operation forbids\n"));
        }
        let differences = allowed.map(|number| (number, self.state(number).picture().differences(found)));
        let nearest = differences.min_by_key(|(_, differences)| differences.lines().count());
        let (number, differences) = nearest.expect("some state is allowed");
        why.push_str(&format!(" against the nearest allowed state ({number}):\n{differences}"));
        Err(why)
    }

    /// The operations, numbered by the state that they lead to, from state `from` on.
    #[must_use]
    pub fn show(&self, from: usize) -> String {
        let mut out = String::new();
        for (number, state) in self.states.iter().enumerate().skip(from.max(1)) {
            if let Some(op) = &state.op {
                out.push_str(&format!(" {number}: {op}\n"));
            }
        }
        out
    }
}
