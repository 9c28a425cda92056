//! What a session of operations did to the model, state by state, and which states a crash may leave.
//!
//! # Invariants
//! 1. State `i` is the model after `i` operations; state 0 is where the session began.
//! 2. What a transaction does shows in the state that its commit leads to, and in none before.
//! 3. A crash leaves a state that is no older than the last one a sync has acknowledged, and no newer than the one that
//!    the operation under way leads to.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use warpfire_env::Timestamp;

use crate::model::{Errno, Model, OpOutput, Picture};
use crate::op::Op;
use crate::open_transactions::Slots;

/// One state and how it came about.
#[derive(Debug)]
struct HistoryState {
    model: Model,
    /// Of the model's picture; made when it is first asked for.
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

    /// Says that the newest state is durable.
    pub fn acknowledge(&mut self) {
        self.durable = self.newest();
    }

    /// Does an operation to the model; it makes a new state even if it fails or changes nothing.
    ///
    /// # Errors
    /// What the operation must fail with.
    pub fn push(&mut self, op: &Op, slots: &Slots, now: Timestamp) -> Result<OpOutput, Errno> {
        let mut model = self.model().clone();
        let result = model.apply(op, slots, now);
        self.push_state(op, model);
        result
    }

    /// An operation leads to this state.
    pub fn push_state(&mut self, op: &Op, model: Model) {
        self.states.push(HistoryState::new(model, Some(op.clone())));
    }

    /// The newest state is this one, of those that the last operation may have led to.
    pub fn set_last(&mut self, model: Model) {
        let last = self.states.last_mut().expect("there is a state");
        *last = HistoryState::new(model, last.op.take());
    }

    /// Takes the last operation's effect back: the product refused it for a reason that the model has not.
    pub fn refuse_last(&mut self) {
        let before = self.newest() - 1;
        let model = self.states[before].model.clone();
        self.set_last(model);
    }

    /// The newest of the states that looks like `found`.
    ///
    /// # Errors
    /// How `found` differs from the states, if it is none of them.
    pub fn find(&self, allowed: RangeInclusive<usize>, found: &Picture) -> Result<usize, String> {
        let digest = found.digest();
        if let Some(number) = allowed.clone().rev().find(|n| self.states[*n].digest() == digest) {
            return Ok(number);
        }
        let (oldest, newest) = (*allowed.start(), *allowed.end());
        let mut why = format!("what was found is none of the states {oldest} to {newest}\n");
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
