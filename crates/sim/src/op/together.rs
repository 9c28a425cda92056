//! Draws operations on state that stays open over others: transactions, yanked values; and reads.

use warpfire_fs::FileKind;

use super::{Begin, End, Op, OpSource, Slot, Span, Tx};
use crate::model::{Model, PAGE, Path};
use crate::open_transactions::OpenTransactions;

/// Most transactions that are open at once.
pub const TRANSACTIONS_MAX: Tx = 3;

/// Most values that are open at once.
pub const SLOTS: Slot = 4;

impl OpSource {
    pub(super) fn together(&self, model: &Model, open_transactions: &OpenTransactions) -> Op {
        let r = &self.random;
        let open: Vec<Tx> = open_transactions.open().collect();
        let free = (0..TRANSACTIONS_MAX).find(|tx| !open.contains(tx));
        match (r.below(100), free) {
            (0..12, Some(tx)) => {
                return Op::Begin(tx, if r.one_in(4) { Begin::Reads } else { Begin::Changes });
            }
            (..30, _) => return self.slice_or_read(model, open_transactions),
            _ if open.is_empty() => return self.slice_or_read(model, open_transactions),
            _ => {}
        }
        let tx = open[self.len(0, open.len() as u64 - 1)];
        let fork = open_transactions.fork(tx).expect("it is open");
        match r.below(100) {
            0..12 => Op::End(tx, End::Commit),
            12..16 => Op::End(tx, End::CommitDurable),
            16..20 => Op::End(tx, End::Abort),
            20..23 => Op::Observe(tx),
            23..28 if !fork.only_reads() => Op::Mark(tx),
            28..32 if fork.savepoints() > 0 => Op::Back(tx, self.len(0, fork.savepoints() as u64 - 1)),
            _ => Op::In(tx, Box::new(self.inside(fork.model(), open_transactions, fork.only_reads()))),
        }
    }

    /// An operation that can be done in a transaction.
    fn inside(&self, model: &Model, open_transactions: &OpenTransactions, only_reads: bool) -> Op {
        if only_reads {
            return self.read(model);
        }
        if self.random.one_in(4) {
            return self.slice_or_read(model, open_transactions);
        }
        loop {
            let op = self.plain(model);
            if !op.is_of_the_pool() {
                return op;
            }
        }
    }

    fn slice_or_read(&self, model: &Model, open_transactions: &OpenTransactions) -> Op {
        let all = model.paths();
        let slot = Slot::try_from(self.random.below(u64::from(SLOTS))).expect("slots are few");
        match self.random.below(10) {
            0..3 => {
                let path = self.file(&all);
                let span = self.span(model, &path);
                Op::Yank(path, span, slot)
            }
            3..7 if open_transactions.slots().contains_key(&slot) => {
                let at = if self.random.one_in(2) { Some(self.offset()) } else { None };
                Op::Paste(slot, self.file(&all), at)
            }
            7 if open_transactions.slots().contains_key(&slot) => Op::DropValue(slot),
            8 => Op::AppendBlindly(self.file(&all), self.fill(self.write_len())),
            _ => self.read(model),
        }
    }

    fn read(&self, model: &Model) -> Op {
        let all = model.paths();
        match self.random.below(4) {
            0 => Op::List(self.any(&all, |kind| kind == FileKind::Directory)),
            1 => Op::Stat(self.any(&all, |_| true)),
            _ => {
                let path = self.file(&all);
                let span = self.span(model, &path);
                Op::Read(path, span)
            }
        }
    }

    /// A range of a file, which may reach past its end.
    fn span(&self, model: &Model, path: &Path) -> Span {
        let size = model.size_bytes(path).unwrap_or(0);
        let offset = self.random.below(size + PAGE);
        Span { offset, len: 1 + self.random.below((size + PAGE).min(self.menu.write_bytes_max * 4)) }
    }
}
