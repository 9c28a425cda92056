//! Transactions and yanked values that stay open over other operations, on both sides: product and model.
//!
//! # Invariants
//! 1. A transaction of the model is a fork: the state at its beginning, changed by its own operations alone,
//!    and the list of these with their answers. Its commit does all of them again on the newest state. The
//!    commit must succeed if every answer is the same, and the result is then the new state
//!    (`ModelTransaction::committed`).
//! 2. `slots` and `values` have the same keys: the bytes that a value must have, and the value. The model
//!    keeps a copy of the bytes, so only the product's value keeps them on the devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::{Savepoint, Transaction, YankedSlice};

use crate::model::{Errno, Model, ModelAnswer, OpOutput};
use crate::op::{Begin, Op, Slot, Tx};
use crate::stack::SimEngine;

/// The bytes of each open value.
pub type Slots = BTreeMap<Slot, Arc<[u8]>>;

/// The model's side of a transaction.
#[derive(Debug)]
pub struct ModelTransaction {
    /// Its number in the session, from 1 on.
    number: u64,
    begin: Begin,
    begun_model: Model,
    model: Model,
    savepoints: Vec<Model>,
    entries: Vec<TransactionEntry>,
    /// Its program has learned more than the entries hold, so it may conflict although their answers are the
    /// same.
    pub(crate) may_conflict: bool,
}

/// One step of a transaction, to be done again at its commit.
#[derive(Debug)]
enum TransactionEntry {
    Call {
        op: Op,
        slots: Slots,
        at: Timestamp,
        answer: Box<ModelAnswer>,
    },
    /// A savepoint was made.
    Mark,
    /// The transaction went back to the savepoint of this number.
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

    /// The filesystem as the transaction sees it.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether the transaction is read-only.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.begin == Begin::Reads
    }

    /// The number of savepoints that it can go back to.
    #[must_use]
    pub fn savepoints(&self) -> usize {
        self.savepoints.len()
    }

    /// The state after an operation, and its answer. The transaction stays as it is.
    pub(crate) fn try_out(&self, op: &Op, slots: &Slots, at: Timestamp) -> (Model, ModelAnswer) {
        let mut model = self.model.clone();
        let answer = model.answer(op, slots, at);
        (model, answer)
    }

    /// Notes that the product has done the operation too.
    pub(crate) fn done(
        &mut self,
        op: &Op,
        slots: &Slots,
        at: Timestamp,
        (model, answer): (Model, ModelAnswer),
    ) {
        self.model = model;
        // Its answer depends on the free space, which the model does not count.
        self.may_conflict |= matches!(op, Op::Allocate(..));
        self.entries.push(TransactionEntry::Call {
            op: op.clone(),
            slots: slots.clone(),
            at,
            answer: Box::new(answer),
        });
    }

    /// Makes a savepoint.
    pub(crate) fn mark(&mut self) {
        self.savepoints.push(self.model.clone());
        self.entries.push(TransactionEntry::Mark);
    }

    /// Goes back to a savepoint.
    pub(crate) fn back(&mut self, to: usize) {
        self.savepoints.truncate(to + 1);
        self.model = self.model.replaced_by(self.savepoints[to].clone());
        self.entries.push(TransactionEntry::Back(to));
    }

    /// Whether the transaction leaves no visible trace. The product need not check such a transaction for
    /// conflicts.
    pub(crate) fn seems_unchanged(&self) -> bool {
        let digest = |model: &Model| {
            let mut picture = model.picture();
            picture.clear_times_of_directories();
            // Not the doors: a name that is exchanged with an equal one in another volume is a trace.
            picture.snapshots.clear();
            picture.bookmarks.clear();
            picture.digest()
        };
        self.begin == Begin::Reads || digest(&self.begun_model) == digest(&self.model)
    }

    /// The state after a commit on top of `newest`; or, as text, the first operation that would have another
    /// answer. Sets `may_conflict` if the model does not know whether an answer is the same. All times that
    /// the operations do not set themselves are `now`, the time of the commit.
    pub(crate) fn committed(&mut self, newest: &Model, now: Timestamp) -> Result<Model, String> {
        if self.begin == Begin::Reads {
            return Ok(newest.clone());
        }
        // The answers are those that the operations would have with their own times.
        self.replayed(newest, None)?;
        self.replayed(newest, Some(now)).map(|model| newest.replaced_by(model))
    }

    /// The fork after all operations on top of `newest`, done at their own times, which checks their answers,
    /// or all at one time.
    fn replayed(&mut self, newest: &Model, time: Option<Timestamp>) -> Result<Model, String> {
        // Under the same number, so that nodes made again are the same nodes.
        let mut model = newest.fork(self.number);
        let mut savepoints = Vec::new();
        for entry in &self.entries {
            match entry {
                TransactionEntry::Call { op, slots, at, answer } => {
                    let now = model.answer(op, slots, time.unwrap_or(*at));
                    if time.is_some() {
                        continue;
                    }
                    match answer.is_same(&now) {
                        Some(true) => {}
                        Some(false) => {
                            return Err(format!("'{op}' returned {answer:?}, and would now return {now:?}"));
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
        Ok(model)
    }
}

/// An open transaction: the product's and the model's.
pub(crate) struct OpenTransaction {
    pub(crate) tx: Transaction<SimEngine>,
    pub(crate) points: Vec<Savepoint>,
    pub(crate) fork: ModelTransaction,
}

/// The open transactions and values.
#[derive(Default)]
pub struct OpenTransactions {
    slots: Slots,
    pub(crate) values: BTreeMap<Slot, YankedSlice>,
    open: BTreeMap<Tx, OpenTransaction>,
    begun_model: u64,
}

impl OpenTransactions {
    /// The open transactions.
    pub fn open(&self) -> impl Iterator<Item = Tx> {
        self.open.keys().copied()
    }

    /// The model's side of a transaction.
    #[must_use]
    pub fn fork(&self, tx: Tx) -> Option<&ModelTransaction> {
        self.open.get(&tx).map(|open| &open.fork)
    }

    /// The bytes of the open values.
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

    /// Notes that an operation has succeeded on both sides: keeps the value that it yanked, or drops a value.
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

    /// Aborts all transactions, and drops all values.
    pub(crate) fn clear(&mut self) {
        let begun_model = self.begun_model;
        *self = OpenTransactions { begun_model, ..OpenTransactions::default() };
    }
}
