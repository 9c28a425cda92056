//! What is known from outside: which operations began, which were acknowledged, and so what must be there after a kill.
//!
//! 1. What was acknowledged before a sync began that was acknowledged too, by whomever, is there.
//! 2. Each writer's files are as they were after one of its operations: all before it, none after it. Through a mount, also with the first
//!    part of the next one if that was a write, which the kernel hands on in pieces.
//! 3. All writers' files are of one moment: what was acknowledged before something began that is there, is there too.

use std::io;

use crate::files::{Files, perform};
use crate::plan::{WriterOp, WriterPlan};
use crate::record::WriterTree;

/// Something that a writer says. Operations of a writer count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriterEvent {
    /// It is about to begin an operation.
    Began { writer: u32, op: usize },
    /// An operation came back without an error.
    Done { writer: u32, op: usize },
}

impl WriterEvent {
    /// One line for a pipe.
    pub fn line(self) -> String {
        match self {
            WriterEvent::Began { writer, op } => format!("began {writer} {op}\n"),
            WriterEvent::Done { writer, op } => format!("done {writer} {op}\n"),
        }
    }

    /// Reads such a line; `None` if it was cut short.
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

/// Goes through a plan until an operation fails, and tells of each.
pub fn write(files: &dyn Files, writer: u32, mut plan: WriterPlan, tell: &dyn Fn(WriterEvent)) -> io::Error {
    for op in 1.. {
        let next = plan.next();
        let length = match &next {
            WriterOp::Append { name, .. } => plan.tree[name].len(),
            _ => 0,
        };
        tell(WriterEvent::Began { writer, op });
        if let Err(error) = perform(files, writer, &next, length) {
            return io::Error::new(error.kind(), format!("{next:?}: {error}"));
        }
        tell(WriterEvent::Done { writer, op });
    }
    unreachable!("a plan has no end")
}

/// Whether a write may be there in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialWrites {
    /// A write is there or not.
    Never,
    /// The kernel may have made several of a write.
    Possible,
}

/// What a round showed.
#[derive(Clone, Copy, Default, Debug)]
pub struct RoundTally {
    /// Operations that were acknowledged.
    pub done: usize,
    /// Those of them that a later sync had made durable.
    pub synced: usize,
    /// Syncs that were acknowledged.
    pub syncs: usize,
    /// Acknowledged operations that no sync covered, and that are there all the same.
    pub kept: usize,
}

/// One writer's part of a round.
struct WriterHistory {
    /// Where the writer began.
    plan: WriterPlan,
    ops: Vec<WriterOp>,
    done: usize,
    /// The last operation that some acknowledged sync covers.
    floor: usize,
    /// The place of each beginning, and of each acknowledgement, in the order of events.
    began_at: Vec<usize>,
    done_at: Vec<usize>,
}

/// Holds what was found after a kill against what had been said before it.
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
    // The first and the last operation after which each writer's files were what they are now.
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

/// Goes through the events; gives each writer's part and how many syncs were acknowledged.
fn replay(plans: &[WriterPlan], events: &[WriterEvent]) -> (Vec<WriterHistory>, usize) {
    let mut parts: Vec<WriterHistory> = plans.iter().map(WriterHistory::new).collect();
    let mut drawing = plans.to_vec();
    // What each writer's latest operation covers if it is a sync: everything that had been acknowledged when it began.
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

    /// The first and the last operation, none before the floor, after which the files were these.
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

    /// What differs from the state that the last sync covers, and what was done to those files since.
    fn explain(&self, found: &WriterTree) -> String {
        let mut plan = self.plan.clone();
        for _ in 0..self.floor {
            plan.next();
        }
        let names: std::collections::BTreeSet<&String> = plan.tree.keys().chain(found.keys()).collect();
        let mut text = format!(
            "synced to operation {} of {} acknowledged and {} begun; no state since is what is there",
            self.floor,
            self.done,
            self.ops.len()
        );
        for name in names.into_iter().filter(|&name| plan.tree.get(name) != found.get(name)) {
            text += &format!("\n  {name}: synced {:?}\n    found {:?}", plan.tree.get(name), found.get(name));
        }
        let since = self.ops.iter().enumerate().skip(self.floor);
        since.fold(text, |text, (op, what)| format!("{text}\n  then {}: {what:?}", op + 1))
    }
}
