//! What a session of operations did to the model, state by state, and which states a crash may leave.
//!
//! # Invariants
//! 1. State `i` is the model after `i` operations; state 0 is where the session began.
//! 2. A crash leaves a state that is no older than the last one a sync has acknowledged, and no newer than the one that
//!    the operation under way leads to.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use warpfire_env::Timestamp;

use crate::model::{Errno, Model, Picture};
use crate::op::Op;

/// One state and how it came about.
#[derive(Debug)]
struct State {
    model: Model,
    /// Of the model's picture; made when it is first asked for.
    digest: OnceLock<u64>,
    op: Option<Op>,
}

impl State {
    fn new(model: Model, op: Option<Op>) -> Self {
        State { model, digest: OnceLock::new(), op }
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| self.model.picture().digest())
    }
}

/// The states of a session.
#[derive(Debug)]
pub struct History {
    states: Vec<State>,
    durable: usize,
}

impl History {
    /// A history that begins with a durable state.
    #[must_use]
    pub fn new(model: Model) -> Self {
        History { states: vec![State::new(model, None)], durable: 0 }
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
    pub fn push(&mut self, op: &Op, now: Timestamp) -> Result<(), Errno> {
        let mut model = self.model().clone();
        let result = model.apply(op, now);
        self.states.push(State::new(model, Some(op.clone())));
        result
    }

    /// Takes the last operation's effect back: the product refused it for a reason that the model has not.
    pub fn refuse_last(&mut self) {
        let before = self.newest() - 1;
        let model = self.states[before].model.clone();
        let last = &mut self.states[before + 1];
        *last = State::new(model, last.op.take());
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
        for (label, number) in [("oldest", oldest), ("newest", newest)] {
            let differences = self.state(number).picture().differences(found);
            why.push_str(&format!(" against the {label} allowed state ({number}):\n{differences}"));
        }
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
