//! Steps of transactions: begin, calls inside, end, each beside the fork of the model.

use warpfire_env::Timestamp;
use warpfire_fs::FsError;

use super::compare::{Comparison, compare};
use super::{Session, StepOutcome, Violation, is_fault};
use crate::drive::{drive, node};
use crate::model::{Model, OpOutput, Path, show_path};
use crate::observe::observe;
use crate::op::{Begin, End, Op, Tx};

impl Session {
    /// Does an operation on a transaction; `None` if it is no such operation.
    pub(super) fn step_of_transaction(
        &mut self,
        op: &Op,
        now: Timestamp,
    ) -> Result<Option<StepOutcome>, Violation> {
        let is_end = matches!(op, Op::End(..));
        let outcome = match op {
            Op::Begin(tx, begin) => self.begin(*tx, *begin),
            Op::In(tx, inner) => self.step_inside(op, *tx, inner, now)?,
            Op::Mark(tx) => {
                let (open, ..) = self.open_transactions.at(*tx);
                open.points.push(open.tx.savepoint());
                open.fork.mark();
                StepOutcome::Agreed
            }
            Op::Back(tx, to) => {
                let (open, ..) = self.open_transactions.at(*tx);
                open.points.truncate(to + 1);
                let back = open.tx.roll_back(&open.points[*to]);
                open.fork.back(*to);
                let compared = compare(&Ok(OpOutput::Nothing), back.map(|()| (OpOutput::Nothing, None)));
                compared.map_err(|why| self.disagreement(op, &why))?.into()
            }
            Op::Observe(tx) => self.observe_inside(op, *tx)?,
            Op::End(tx, end) => self.end(op, *tx, *end, now)?,
            _ => return Ok(None),
        };
        // Only an end changes the base, and `end` has pushed its own state. Any other operation leads to an
        // equal state, so that states and operations stay numbered alike.
        if !is_end {
            let unchanged = self.history.model().clone();
            self.history.push_state(op, unchanged);
        }
        Ok(Some(outcome))
    }

    fn begin(&mut self, number: Tx, begin: Begin) -> StepOutcome {
        let begun = match begin {
            Begin::Changes => self.fs().begin(),
            Begin::Reads => self.fs().begin_read_only(),
        };
        match begun {
            Ok(tx) => {
                self.open_transactions.begin(number, begin, tx, self.history.model());
                StepOutcome::Agreed
            }
            Err(e) => StepOutcome::Faulted(e),
        }
    }

    fn step_inside(&mut self, op: &Op, tx: Tx, inner: &Op, now: Timestamp) -> Result<StepOutcome, Violation> {
        let (open, slots, values) = self.open_transactions.at(tx);
        let (model, answer) = open.fork.try_out(inner, slots, now);
        let result = drive(open.tx.files(), inner, values);
        let wanted = answer.output.clone();
        let compared = compare(&wanted, result);
        match &compared {
            Ok(Comparison::Agreed(yanked)) => {
                open.fork.done(inner, slots, now, (model, answer));
                self.open_transactions.note(inner, yanked.as_ref(), &wanted);
            }
            Ok(Comparison::Refused) => open.fork.may_conflict = true,
            Ok(Comparison::Faulted(_)) | Err(_) => {}
        }
        compared.map(StepOutcome::from).map_err(|why| self.disagreement(op, &why))
    }

    fn observe_inside(&mut self, op: &Op, tx: Tx) -> Result<StepOutcome, Violation> {
        let (open, ..) = self.open_transactions.at(tx);
        open.fork.may_conflict |= !open.fork.only_reads();
        let mut wanted = open.fork.model().picture();
        wanted.clear_all_but_the_tree();
        let mut found = match observe(open.tx.files()) {
            Ok(found) => found,
            Err((_, e)) if is_fault(&e) => return Ok(StepOutcome::Faulted(e)),
            Err((path, e)) => {
                return Err(self.disagreement(op, &format!("{} cannot be read: {e}", show_path(&path))));
            }
        };
        // Inside, directory times that wait for the next sync point of the base are not visible.
        wanted.clear_times_of_directories();
        found.clear_times_of_directories();
        if found == wanted {
            Ok(StepOutcome::Agreed)
        } else {
            Err(self.disagreement(op, &format!("it differs from the model:\n{}", wanted.differences(&found))))
        }
    }

    fn end(&mut self, op: &Op, tx: Tx, end: End, now: Timestamp) -> Result<StepOutcome, Violation> {
        let open = self.open_transactions.end(tx);
        let newest = self.history.model().clone();
        self.history.push_state(op, newest.clone());
        let result = match end {
            End::Abort => {
                open.tx.abort();
                return Ok(StepOutcome::Agreed);
            }
            End::Commit => open.tx.commit(),
            End::CommitDurable => open.tx.commit_durable(),
        };
        let mut fork = open.fork;
        match (fork.committed(&newest, now), result) {
            // A transaction without changes may take its place in the order at its beginning.
            (_, Ok(())) if fork.seems_unchanged() && self.shows(&newest) => self.committed(newest, end),
            (Ok(model), Ok(())) => self.committed(model, end),
            (Err(why), Ok(())) => Err(self.disagreement(op, &format!("it must conflict: {why}"))),
            (Err(_), Err(FsError::Conflict { .. })) => Ok(StepOutcome::Agreed),
            (Ok(_), Err(FsError::Conflict { .. })) if fork.may_conflict => Ok(StepOutcome::Agreed),
            (_, Err(FsError::NoSpace)) => Ok(StepOutcome::Refused),
            (wanted, Err(result)) if is_fault(&result) => {
                wanted.into_iter().for_each(|model| self.history.set_last(model));
                Ok(StepOutcome::Faulted(result))
            }
            (_, Err(result)) => {
                let why = format!("each call would return the same; the commit fails with '{result}'");
                Err(self.disagreement(op, &why))
            }
        }
    }

    /// Whether the filesystem shows this state, apart from the times of directories.
    fn shows(&self, model: &Model) -> bool {
        let mut wanted = model.picture();
        wanted.clear_times_of_directories();
        wanted.clear_all_but_the_tree();
        observe(self.fs()).is_ok_and(|mut found| {
            found.clear_times_of_directories();
            found == wanted
        })
    }

    /// Takes the state after a successful commit.
    fn committed(&mut self, mut model: Model, end: End) -> Result<StepOutcome, Violation> {
        let fs = self.fs().clone();
        let times = |path: &Path| -> Result<_, FsError> {
            let attr = fs.getattr(&*node(&fs, path)?);
            Ok((attr.mtime, attr.ctime))
        };
        let taken = model.take_times_of_directories(times);
        self.history.set_last(model);
        match taken {
            Ok(()) => {
                if end == End::CommitDurable {
                    self.history.acknowledge();
                }
                Ok(StepOutcome::Agreed)
            }
            Err(e) if is_fault(&e) => Ok(StepOutcome::Faulted(e)),
            Err(e) => Err(Violation(format!("a directory is not there after a commit: {e}"))),
        }
    }
}
