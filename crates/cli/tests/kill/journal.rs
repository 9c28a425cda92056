//! The journal of a round: the operations that began and those that were acknowledged. From it follow the
//! contents that must be there after a kill:
//!
//! 1. An operation is there if it was acknowledged before the begin of an acknowledged sync, of any writer.
//! 2. The files of each writer are in the state after one of its operations: all earlier ones are there, and
//!    no later one. Through a mount, the first part of the next operation may be there too if that is a
//!    write, because the kernel sends a write in pieces.
//! 3. The files of all writers are of one moment: if an operation is there, so is every operation that was
//!    acknowledged before it began.

use std::io;

use crate::files::{Files, perform};
use crate::plan::{WriterOp, WriterPlan};
use crate::record::WriterTree;

/// An event that a writer reports. Operations of a writer are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriterEvent {
    /// The operation is about to begin.
    Began { writer: u32, op: usize },
    /// The operation has returned without an error: it is acknowledged.
    Done { writer: u32, op: usize },
}

impl WriterEvent {
    /// The event as a line for a pipe.
    pub fn line(self) -> String {
        match self {
            WriterEvent::Began { writer, op } => format!("began {writer} {op}\n"),
            WriterEvent::Done { writer, op } => format!("done {writer} {op}\n"),
        }
    }

    /// Parses such a line; `None` if it is truncated.
    pub fn parse(line: &str) -> Option<WriterEvent> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        let (kind, writer, op) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        match kind {
            "began" => Some(WriterEvent::Began { writer, op }),
            "done" => Some(WriterEvent::Done { writer, op }),
            _ => None,
        }
    }
}

/// Runs a plan until an operation fails, and reports each operation.
pub fn write(
    files: &dyn Files,
    writer: u32,
    mut plan: WriterPlan,
    report: &dyn Fn(WriterEvent),
) -> io::Error {
    for op in 1.. {
        let next = plan.next();
        let length = match &next {
            WriterOp::Append { name, .. } => plan.tree[name].len(),
            _ => 0,
        };
        report(WriterEvent::Began { writer, op });
        if let Err(error) = perform(files, writer, &next, length) {
            return io::Error::new(error.kind(), format!("{next:?}: {error}"));
        }
        report(WriterEvent::Done { writer, op });
    }
    unreachable!("a plan has no end")
}

/// Whether a write may be there partly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialWrites {
    /// A write is there completely or not at all.
    Never,
    /// The kernel may have split a write.
    Possible,
}

/// Counts of a round.
#[derive(Clone, Copy, Default, Debug)]
pub struct RoundTally {
    /// Operations that were acknowledged.
    pub done: usize,
    /// Acknowledged operations that a later sync has made durable.
    pub synced: usize,
    /// Syncs that were acknowledged.
    pub syncs: usize,
    /// Acknowledged operations that are there although no sync covers them.
    pub kept: usize,
}

/// One writer's part of a round.
struct WriterHistory {
    /// The plan at the begin of the round.
    plan: WriterPlan,
    ops: Vec<WriterOp>,
    done: usize,
    /// The last operation that some acknowledged sync covers.
    floor: usize,
    /// The position of each begin and each acknowledgement in the order of events.
    began_at: Vec<usize>,
    done_at: Vec<usize>,
}

/// Compares the files after a kill with the events before it.
///
/// # Errors
/// A sentence for each loss.
pub fn judge(
    plans: &[WriterPlan],
    events: &[WriterEvent],
    found: &[WriterTree],
    pieces: PartialWrites,
) -> Result<RoundTally, Vec<String>> {
    let (parts, syncs) = replay(plans, events);
    let mut losses = Vec::new();
    // For each writer, the first and the last operation after which its files had the contents found.
    let mut spans = Vec::new();
    for (writer, (part, found)) in parts.iter().zip(found).enumerate() {
        match part.fits(found, pieces) {
            Some(span) => spans.push(span),
            None => losses.push(format!("writer {writer}: {}", part.explain(found))),
        }
    }
    if !losses.is_empty() {
        return Err(losses);
    }
    let surely_there = |(part, (first, _)): (&WriterHistory, &(usize, usize))| {
        (*first > part.floor).then(|| part.began_at[first - 1])
    };
    let moment = parts.iter().zip(&spans).filter_map(surely_there).max().unwrap_or(0);
    for (writer, (part, (_, last))) in parts.iter().zip(&spans).enumerate() {
        let due = part.done_at.iter().filter(|&&at| at < moment).count();
        if due > *last {
            losses.push(format!(
                "writer {writer}: operation {due} was acknowledged before another began that is there, but it is not"
            ));
        }
    }
    let sum = |count: &dyn Fn(&WriterHistory) -> usize| parts.iter().map(count).sum::<usize>();
    let kept = parts.iter().zip(&spans).map(|(part, (_, last))| last.min(&part.done) - part.floor);
    let tally =
        RoundTally { done: sum(&|part| part.done), synced: sum(&|part| part.floor), syncs, kept: kept.sum() };
    if losses.is_empty() { Ok(tally) } else { Err(losses) }
}

/// Replays the events; returns the history of each writer and the number of acknowledged syncs.
fn replay(plans: &[WriterPlan], events: &[WriterEvent]) -> (Vec<WriterHistory>, usize) {
    let mut parts: Vec<WriterHistory> = plans.iter().map(WriterHistory::new).collect();
    let mut drawing = plans.to_vec();
    // For each writer, the operations that its latest one covers if it is a sync: all that were acknowledged
    // when it began.
    let mut covers: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
    let mut syncs = 0;
    for (at, event) in events.iter().enumerate() {
        match *event {
            WriterEvent::Began { writer, .. } => {
                let writer = writer as usize;
                parts[writer].ops.push(drawing[writer].next());
                parts[writer].began_at.push(at);
                covers[writer] = parts.iter().map(|part| part.done).collect();
            }
            WriterEvent::Done { writer, op } => {
                let writer = writer as usize;
                parts[writer].done = op;
                parts[writer].done_at.push(at);
                if matches!(parts[writer].ops[op - 1], WriterOp::Sync { .. }) {
                    syncs += 1;
                    covers[writer][writer] = op;
                    for (part, done) in parts.iter_mut().zip(&covers[writer]) {
                        part.floor = part.floor.max(*done);
                    }
                }
            }
        }
    }
    (parts, syncs)
}

impl WriterHistory {
    fn new(plan: &WriterPlan) -> Self {
        let plan = plan.clone();
        WriterHistory { plan, ops: Vec::new(), done: 0, floor: 0, began_at: Vec::new(), done_at: Vec::new() }
    }

    /// The first and the last operation after which the files had these contents; none before the floor.
    fn fits(&self, found: &WriterTree, pieces: PartialWrites) -> Option<(usize, usize)> {
        let mut plan = self.plan.clone();
        let mut span = None;
        for op in 0..=self.ops.len() {
            if op > 0 {
                plan.next();
            }
            let begun = || pieces == PartialWrites::Possible && plan.halfway().contains(found);
            if op >= self.floor && (plan.tree == *found || op < self.ops.len() && begun()) {
                span = Some((span.map_or(op, |(first, _)| first), op));
            }
        }
        span
    }

    /// The differences from the state that the last sync covers, and the later operations.
    fn explain(&self, found: &WriterTree) -> String {
        let mut plan = self.plan.clone();
        for _ in 0..self.floor {
            plan.next();
        }
        let names: std::collections::BTreeSet<&String> = plan.tree.keys().chain(found.keys()).collect();
        let mut text = format!(
            "synced to operation {} of {} acknowledged and {} begun; the files match no state since",
            self.floor,
            self.done,
            self.ops.len()
        );
        for name in names.into_iter().filter(|&name| plan.tree.get(name) != found.get(name)) {
            text += &format!("\n  {name}: synced {:?}\n    found {:?}", plan.tree.get(name), found.get(name));
        }
        let since = self.ops.iter().enumerate().skip(self.floor);
        since.fold(text, |text, (index, op)| format!("{text}\n  then {}: {op:?}", index + 1))
    }
}
