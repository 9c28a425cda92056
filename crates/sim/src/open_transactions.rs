//! What is open beside the filesystem: transactions and values that were yanked, each beside what the model says of it.
//!
//! # Invariants
//! 1. A transaction of the model is a fork: the state at its beginning, changed by its own operations alone, and the list of these with what they told.
//!    It may be committed exactly if each would tell the same again when all are done to the newest state; that is the state then.
//! 2. `slots` and `values` have the same slots: the bytes that a value must have, and the value. The model keeps no value, so nothing but the product
//!    keeps its bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::{Savepoint, Transaction, YankedSlice};

use crate::model::{Errno, Model, ModelAnswer, OpOutput};
use crate::op::{Begin, Op, Slot, Tx};
use crate::stack::SimEngine;

/// The bytes of each value that is kept.
pub type Slots = BTreeMap<Slot, Arc<[u8]>>;

/// The model's side of a transaction.
#[derive(Debug)]
pub struct ModelTransaction {
    /// Among all of the session, from 1 on.
    number: u64,
    begin: Begin,
    begun_model: Model,
    model: Model,
    savepoints: Vec<Model>,
    entries: Vec<TransactionEntry>,
    /// It has learned more than its entries say, so it may conflict although they do not.
    pub(crate) may_conflict: bool,
}

#[derive(Debug)]
enum TransactionEntry {
    Call { op: Op, slots: Slots, at: Timestamp, answer: Box<ModelAnswer> },
    Mark,
    Back(usize),
}

impl ModelTransaction {
    fn begin(number: u64, begin: Begin, base: &Model) -> ModelTransaction {
        ModelTransaction {
            number,
            begin,
            begun_model: base.clone(),
            model: base.fork(number),
            savepoints: Vec::new(),
            entries: Vec::new(),
            may_conflict: false,
        }
    }

    /// What the transaction sees.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.begin == Begin::Reads
    }

    /// Savepoints that it can go back to.
    #[must_use]
    pub fn savepoints(&self) -> usize {
        self.savepoints.len()
    }

    /// What an operation leads to, and what it tells.
    pub(crate) fn try_out(&self, op: &Op, slots: &Slots, at: Timestamp) -> (Model, ModelAnswer) {
        let mut model = self.model.clone();
        let answer = model.answer(op, slots, at);
        (model, answer)
    }

    /// The operation was done.
    pub(crate) fn done(
        &mut self,
        op: &Op,
        slots: &Slots,
        at: Timestamp,
        (model, answer): (Model, ModelAnswer),
    ) {
        self.model = model;
        // It asks for room, of which the model knows nothing.
        self.may_conflict |= matches!(op, Op::Allocate(..));
        self.entries.push(TransactionEntry::Call {
            op: op.clone(),
            slots: slots.clone(),
            at,
            answer: Box::new(answer),
        });
    }

    pub(crate) fn mark(&mut self) {
        self.savepoints.push(self.model.clone());
        self.entries.push(TransactionEntry::Mark);
    }

    pub(crate) fn back(&mut self, to: usize) {
        self.savepoints.truncate(to + 1);
        self.model = self.model.replaced_by(self.savepoints[to].clone());
        self.entries.push(TransactionEntry::Back(to));
    }

    /// Whether one sees no trace of it: what has changed nothing is not looked into when it is committed.
    pub(crate) fn seems_unchanged(&self) -> bool {
        let shown = |model: &Model| {
            let mut picture = model.picture();
            picture.clear_times_of_directories();
            picture.digest()
        };
        self.begin == Begin::Reads || shown(&self.begun_model) == shown(&self.model)
    }

    /// The state if it is committed on top of `newest`; otherwise the first operation that would tell something else, for people to read. Notes if it can
    /// not say.
    pub(crate) fn committed(&mut self, newest: &Model) -> Result<Model, String> {
        if self.begin == Begin::Reads {
            return Ok(newest.clone());
        }
        let mut model = newest.fork(self.number);
        let mut savepoints = Vec::new();
        for entry in &self.entries {
            match entry {
                TransactionEntry::Call { op, slots, at, answer } => {
                    let now = model.answer(op, slots, *at);
                    match answer.is_same(&now) {
                        Some(true) => {}
                        Some(false) => {
                            return Err(format!("'{op}' told {answer:?}, and would tell {now:?}"));
                        }
                        None => self.may_conflict = true,
                    }
                }
                TransactionEntry::Mark => savepoints.push(model.clone()),
                TransactionEntry::Back(to) => {
                    savepoints.truncate(to + 1);
                    model = model.replaced_by(savepoints[*to].clone());
                }
            }
        }
        Ok(newest.replaced_by(model))
    }
}

/// A transaction on both sides.
pub(crate) struct OpenTransaction {
    pub(crate) tx: Transaction<SimEngine>,
    pub(crate) points: Vec<Savepoint>,
    pub(crate) fork: ModelTransaction,
}

/// What is open.
#[derive(Default)]
pub struct OpenTransactions {
    slots: Slots,
    pub(crate) values: BTreeMap<Slot, YankedSlice>,
    open: BTreeMap<Tx, OpenTransaction>,
    begun_model: u64,
}

impl OpenTransactions {
    /// Transactions that are open.
    pub fn open(&self) -> impl Iterator<Item = Tx> {
        self.open.keys().copied()
    }

    /// What the model says of a transaction.
    #[must_use]
    pub fn fork(&self, tx: Tx) -> Option<&ModelTransaction> {
        self.open.get(&tx).map(|open| &open.fork)
    }

    /// The bytes of the values that are kept.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) fn begin(&mut self, number: Tx, begin: Begin, tx: Transaction<SimEngine>, base: &Model) {
        self.begun_model += 1;
        let fork = ModelTransaction::begin(self.begun_model, begin, base);
        self.open.insert(number, OpenTransaction { tx, points: Vec::new(), fork });
    }

    /// An open transaction, and the values beside it.
    pub(crate) fn at(&mut self, tx: Tx) -> (&mut OpenTransaction, &Slots, &BTreeMap<Slot, YankedSlice>) {
        let OpenTransactions { slots, values, open, .. } = self;
        (open.get_mut(&tx).expect("the transaction is open"), slots, values)
    }

    pub(crate) fn end(&mut self, tx: Tx) -> OpenTransaction {
        self.open.remove(&tx).expect("the transaction is open")
    }

    /// An operation took place as it had to: its value is kept, or let go.
    pub(crate) fn note(&mut self, op: &Op, yanked: Option<&YankedSlice>, output: &Result<OpOutput, Errno>) {
        match (op, yanked, output) {
            (Op::Yank(_, _, slot), Some(value), Ok(OpOutput::Bytes(bytes))) => {
                self.slots.insert(*slot, bytes.as_slice().into());
                self.values.insert(*slot, value.clone());
            }
            (Op::DropValue(slot), ..) => {
                self.slots.remove(slot);
                self.values.remove(slot);
            }
            _ => {}
        }
    }

    /// All transactions are aborted, and all values let go.
    pub(crate) fn clear(&mut self) {
        let begun_model = self.begun_model;
        *self = OpenTransactions { begun_model, ..OpenTransactions::default() };
    }
}
