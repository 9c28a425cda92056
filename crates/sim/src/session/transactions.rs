//! Steps of transactions: begun, worked in, ended, each beside its fork of the model.

use warpfire_env::Timestamp;
use warpfire_fs::FsError;

use super::compare::{Compared, compare};
use super::{Outcome, Session, Violation, is_fault};
use crate::drive::{drive, node};
use crate::model::{Model, Path, Told, show_path};
use crate::observe::observe;
use crate::op::{Begin, End, Op, Tx};

impl Session {
    /// Does an operation that is about a transaction; `None` if it is about none.
    pub(super) fn step_of_transaction(
        &mut self,
        op: &Op,
        now: Timestamp,
    ) -> Result<Option<Outcome>, Violation> {
        let is_end = matches!(op, Op::End(..));
        let outcome = match op {
            Op::Begin(tx, begin) => self.begin(*tx, *begin),
            Op::In(tx, inner) => self.step_inside(op, *tx, inner, now)?,
            Op::Mark(tx) => {
                let (open, ..) = self.desk.at(*tx);
                open.points.push(open.tx.savepoint());
                open.fork.mark();
                Outcome::Agreed
            }
            Op::Back(tx, to) => {
                let (open, ..) = self.desk.at(*tx);
                open.points.truncate(to + 1);
                let back = open.tx.roll_back(&open.points[*to]);
                open.fork.back(*to);
                let compared = compare(&Ok(Told::Nothing), back.map(|()| (Told::Nothing, None)));
                compared.map_err(|why| self.disagreement(op, &why))?.into()
            }
            Op::Observe(tx) => self.observe_inside(op, *tx)?,
            Op::End(tx, end) => self.end(op, *tx, *end)?,
            _ => return Ok(None),
        };
        if !is_end {
            let unchanged = self.history.model().clone();
            self.history.push_state(op, unchanged);
        }
        Ok(Some(outcome))
    }

    fn begin(&mut self, number: Tx, begin: Begin) -> Outcome {
        let begun = match begin {
            Begin::Changes => self.fs().begin(),
            Begin::Reads => self.fs().begin_read_only(),
        };
        match begun {
            Ok(tx) => {
                self.desk.begin(number, begin, tx, self.history.model());
                Outcome::Agreed
            }
            Err(e) => Outcome::Faulted(e),
        }
    }

    fn step_inside(&mut self, op: &Op, tx: Tx, inner: &Op, now: Timestamp) -> Result<Outcome, Violation> {
        let (open, slots, values) = self.desk.at(tx);
        let (model, answer) = open.fork.try_out(inner, slots, now);
        let said = drive(open.tx.files(), inner, values);
        let wanted = answer.said.clone();
        let compared = compare(&wanted, said);
        match &compared {
            Ok(Compared::Agreed(yanked)) => {
                open.fork.done(inner, slots, now, (model, answer));
                self.desk.note(inner, yanked.as_ref(), &wanted);
            }
            Ok(Compared::Refused) => open.fork.may_conflict = true,
            Ok(Compared::Faulted(_)) | Err(_) => {}
        }
        compared.map(Outcome::from).map_err(|why| self.disagreement(op, &why))
    }

    fn observe_inside(&mut self, op: &Op, tx: Tx) -> Result<Outcome, Violation> {
        let (open, ..) = self.desk.at(tx);
        open.fork.may_conflict |= !open.fork.only_reads();
        let mut wanted = open.fork.model().picture();
        let mut found = match observe(open.tx.files()) {
            Ok(found) => found,
            Err((_, e)) if is_fault(&e) => return Ok(Outcome::Faulted(e)),
            Err((path, e)) => {
                return Err(self.disagreement(op, &format!("{} can not be looked at: {e}", show_path(&path))));
            }
        };
        // Times of directories that wait for the next cut are not seen inside.
        wanted.forget_times_of_directories();
        found.forget_times_of_directories();
        if found == wanted {
            Ok(Outcome::Agreed)
        } else {
            Err(self.disagreement(op, &format!("it sees something else:\n{}", wanted.differences(&found))))
        }
    }

    fn end(&mut self, op: &Op, tx: Tx, end: End) -> Result<Outcome, Violation> {
        let open = self.desk.end(tx);
        let newest = self.history.model().clone();
        self.history.push_state(op, newest.clone());
        let said = match end {
            End::Abort => {
                open.tx.abort();
                return Ok(Outcome::Agreed);
            }
            End::Commit => open.tx.commit(),
            End::CommitDurable => open.tx.commit_durable(),
        };
        let mut fork = open.fork;
        match (fork.committed(&newest), said) {
            // What has changed nothing may count as done when it began.
            (_, Ok(())) if fork.seems_unchanged() && self.shows(&newest) => self.committed(newest, end),
            (Ok(model), Ok(())) => self.committed(model, end),
            (Err(why), Ok(())) => Err(self.disagreement(op, &format!("it must conflict: {why}"))),
            (Err(_), Err(FsError::Conflict { .. })) => Ok(Outcome::Agreed),
            (Ok(_), Err(FsError::Conflict { .. })) if fork.may_conflict => Ok(Outcome::Agreed),
            (_, Err(FsError::NoSpace)) => Ok(Outcome::Refused),
            (wanted, Err(said)) if is_fault(&said) => {
                wanted.into_iter().for_each(|model| self.history.set_last(model));
                Ok(Outcome::Faulted(said))
            }
            (_, Err(said)) => {
                Err(self.disagreement(op, &format!("each call would tell the same; it says: {said}")))
            }
        }
    }

    /// Whether this is what can be seen, but for the times of directories.
    fn shows(&self, model: &Model) -> bool {
        let mut wanted = model.picture();
        wanted.forget_times_of_directories();
        observe(self.fs()).is_ok_and(|mut found| {
            found.forget_times_of_directories();
            found == wanted
        })
    }

    /// A transaction was committed: this is the state.
    fn committed(&mut self, mut model: Model, end: End) -> Result<Outcome, Violation> {
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
                Ok(Outcome::Agreed)
            }
            Err(e) if is_fault(&e) => Ok(Outcome::Faulted(e)),
            Err(e) => Err(Violation(format!("a directory is not there after a commit: {e}"))),
        }
    }
}
