//! The decisions of recovery, as tables of cases. Each table takes facts that the walk has observed, and each
//! combination of facts matches exactly one case. A combination that no case matches cannot arise from any
//! bytes on flash: the facts contradict each other, so the code that collected them is wrong, and `decide`
//! panics.
//!
//! Terms. A *group* is the part of the commit log from one barrier to the next: records and edits that count
//! together. A *gap* is the first stripe that is missing where the log should go on: it cannot be read, or it
//! is an older write. A stripe is *behind* the gap if it lies after it. The *torn group* is the group that
//! the gap lies in. A group is begun only after the flush of the one before has returned.
//!
//! ```text
//! STRIPE: the next stripe of a log segment
//!                 past seal  after gap  readable  expected
//!   S1 remains       yes         ·          ·         ·      ignore: the root ends the segment before it
//!   S2 hole           no         ·         no        no      the gap begins, or goes on
//!   S3 older          no        no        yes        no      the gap begins; look behind it
//!   S4 behind         no       yes        yes         ·      look behind the gap
//!   S5 next           no        no        yes       yes      take
//!   (not readable, yet expected: impossible)
//!
//! BEHIND: a frame in a readable stripe behind the gap
//!                 barrier seen  is barrier  later than torn
//!   B1 rest             no          no            no         the torn group may go on: no proof
//!   B2 end              no         yes            no         the torn group ends: no proof yet
//!   B3 later group      no         yes           yes         damaged: the torn group was durable
//!   B4 next group      yes           ·             ·         damaged: the torn group was durable
//!   (no barrier, yet later: impossible; B4 takes it where its first fact holds)
//!
//! BARRIER: the end of a group, before any gap
//!                 follows  newer checkpoint  in root
//!   E1 jump           no           ·            ·           refuse the log: a barrier is missing
//!   E2 newer root    yes          yes           ·           refuse the root: a newer one is lost
//!   E3 known         yes           no          yes          records count; edits are in the root already
//!   E4 new           yes           no           no          records and edits count
//!
//! GROUP: a group that is whole in the log
//!                 last  stripes read  stripes whole
//!   G1 followed     no        no            no               accept: its flush returned first
//!   G2 whole       yes       yes           yes               accept: all that it requires is there
//!   G3 torn        yes       yes            no               refuse: its flush had not returned
//!   (impossible: stripes read for a followed group, or not read for the last one)
//! ```
//!
//! A group that has no barrier is no case: it was never flushed, and nothing in it counts.

/// A case's condition on one fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Want {
    Yes,
    No,
    Any,
}

use Want::{Any, No, Yes};

impl Want {
    fn matches(self, fact: bool) -> bool {
        match self {
            Yes => fact,
            No => !fact,
            Any => true,
        }
    }
}

/// A row of a table.
struct Case<const N: usize, D> {
    /// Stable: events name it.
    name: &'static str,
    /// The conditions, in the order of the table's columns.
    facts: [Want; N],
    decision: D,
}

impl<const N: usize, D> Case<N, D> {
    fn matches(&self, facts: [bool; N]) -> bool {
        self.facts.iter().zip(facts).all(|(want, fact)| want.matches(fact))
    }
}

/// The one case that the facts match: its name and its decision.
fn decide<const N: usize, D: Copy>(table: &[Case<N, D>], facts: [bool; N]) -> (&'static str, D) {
    let case = table.iter().find(|case| case.matches(facts));
    let case = case.unwrap_or_else(|| panic!("facts that cannot hold together: {facts:?}"));
    (case.name, case.decision)
}

/// The decision about a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StripeDecision {
    /// It is not part of the log.
    Ignore,
    /// It is missing: no stripe after it is part of the log.
    Miss,
    /// Its frames do not count, but may prove that a durable group is lost.
    LookBehind,
    /// Its frames count.
    Take,
}

/// The facts about a stripe.
#[derive(Clone, Copy, Debug)]
pub(super) struct StripeFacts {
    /// In the root the segment is sealed, with fewer stripes.
    pub(super) past_seal: bool,
    /// A stripe before it is missing.
    pub(super) after_gap: bool,
    /// Its blocks verify, or could be rebuilt.
    pub(super) readable: bool,
    /// It has the sequence that follows the stripe taken last.
    pub(super) expected: bool,
}

#[rustfmt::skip]
const STRIPE: [Case<4, StripeDecision>; 5] = [
    Case { name: "S1 remains", facts: [Yes, Any, Any, Any], decision: StripeDecision::Ignore },
    Case { name: "S2 hole",    facts: [No,  Any, No,  No ], decision: StripeDecision::Miss },
    Case { name: "S3 older",   facts: [No,  No,  Yes, No ], decision: StripeDecision::LookBehind },
    Case { name: "S4 behind",  facts: [No,  Yes, Yes, Any], decision: StripeDecision::LookBehind },
    Case { name: "S5 next",    facts: [No,  No,  Yes, Yes], decision: StripeDecision::Take },
];

/// The case of a stripe.
pub(super) fn stripe(facts: StripeFacts) -> (&'static str, StripeDecision) {
    decide(&STRIPE, [facts.past_seal, facts.after_gap, facts.readable, facts.expected])
}

/// The proof that a frame behind the gap brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BehindDecision {
    /// None: it may be part of the torn group.
    Torn,
    /// The torn group ends here.
    Ends,
    /// Another group follows the torn group, so that was durable and a sync may have acknowledged it.
    Damaged,
}

/// The facts about a frame behind the gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct BehindFacts {
    /// The end of the torn group came before it.
    pub(super) barrier_seen: bool,
    /// It ends a group.
    pub(super) is_barrier: bool,
    /// It is the barrier of a group after the torn one.
    pub(super) later: bool,
}

#[rustfmt::skip]
const BEHIND: [Case<3, BehindDecision>; 4] = [
    Case { name: "B1 rest",        facts: [No,  No,  No ], decision: BehindDecision::Torn },
    Case { name: "B2 end",         facts: [No,  Yes, No ], decision: BehindDecision::Ends },
    Case { name: "B3 later group", facts: [No,  Yes, Yes], decision: BehindDecision::Damaged },
    Case { name: "B4 next group",  facts: [Yes, Any, Any], decision: BehindDecision::Damaged },
];

/// The case of a frame behind the gap.
pub(super) fn behind_gap(facts: BehindFacts) -> (&'static str, BehindDecision) {
    decide(&BEHIND, [facts.barrier_seen, facts.is_barrier, facts.later])
}

/// The decision about the group that a barrier ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BarrierDecision {
    /// The log is refused: a barrier is missing.
    OutOfOrder,
    /// The root is refused: a newer one is lost.
    RootLost,
    /// The root has the group's edits, so only its records count.
    RecordsCount,
    /// Records and edits count.
    AllCounts,
}

/// The facts about a barrier.
#[derive(Clone, Copy, Debug)]
pub(super) struct BarrierFacts {
    /// It is the first one, or its number follows the one before.
    pub(super) follows: bool,
    /// It was written after a newer root than the one that was found.
    pub(super) newer_checkpoint: bool,
    /// The root was written after it.
    pub(super) in_root: bool,
}

#[rustfmt::skip]
const BARRIER: [Case<3, BarrierDecision>; 4] = [
    Case { name: "E1 jump",       facts: [No,  Any, Any], decision: BarrierDecision::OutOfOrder },
    Case { name: "E2 newer root", facts: [Yes, Yes, Any], decision: BarrierDecision::RootLost },
    Case { name: "E3 known",      facts: [Yes, No,  Yes], decision: BarrierDecision::RecordsCount },
    Case { name: "E4 new",        facts: [Yes, No,  No ], decision: BarrierDecision::AllCounts },
];

/// The case of a barrier.
pub(super) fn barrier(facts: BarrierFacts) -> (&'static str, BarrierDecision) {
    decide(&BARRIER, [facts.follows, facts.newer_checkpoint, facts.in_root])
}

/// Whether a group counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupDecision {
    Accept,
    Refuse,
}

/// The facts about a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupFacts {
    /// No group follows it.
    pub(super) last: bool,
    /// Recovery has looked for the bulk stripes that it requires.
    pub(super) stripes_read: bool,
    /// All of them are readable.
    pub(super) stripes_whole: bool,
}

#[rustfmt::skip]
const GROUP: [Case<3, GroupDecision>; 3] = [
    Case { name: "G1 followed", facts: [No,  No,  No ], decision: GroupDecision::Accept },
    Case { name: "G2 whole",    facts: [Yes, Yes, Yes], decision: GroupDecision::Accept },
    Case { name: "G3 torn",     facts: [Yes, Yes, No ], decision: GroupDecision::Refuse },
];

/// The case of a whole group.
pub(super) fn group(facts: GroupFacts) -> (&'static str, GroupDecision) {
    decide(&GROUP, [facts.last, facts.stripes_read, facts.stripes_whole])
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::panic::catch_unwind;

    use super::*;

    /// Tries every combination of facts. A possible one matches exactly one case, with the decision of
    /// `plain`; for an impossible one `decide` panics. Each case is reached.
    fn try_all<const N: usize, D: Copy + PartialEq + Debug + std::panic::RefUnwindSafe>(
        table: &[Case<N, D>],
        possible: impl Fn([bool; N]) -> bool,
        plain: impl Fn([bool; N]) -> D,
    ) {
        let mut reached = vec![0; table.len()];
        for bits in 0..1u32 << N {
            let facts: [bool; N] = std::array::from_fn(|i| bits >> i & 1 == 1);
            let matching: Vec<usize> = (0..table.len()).filter(|i| table[*i].matches(facts)).collect();
            if !possible(facts) {
                assert!(
                    matching.is_empty(),
                    "{facts:?} are impossible and match {}",
                    table[matching[0]].name
                );
                assert!(catch_unwind(|| decide(table, facts)).is_err(), "{facts:?}");
                continue;
            }
            assert_eq!(matching.len(), 1, "{facts:?} match one case");
            reached[matching[0]] += 1;
            assert_eq!(decide(table, facts), (table[matching[0]].name, plain(facts)), "{facts:?}");
        }
        assert!(reached.iter().all(|times| *times > 0), "every case is reached: {reached:?}");
    }

    #[test]
    fn each_stripe_is_one_case() {
        try_all(
            &STRIPE,
            |[past_seal, _, readable, expected]| past_seal || readable || !expected,
            |[past_seal, after_gap, readable, expected]| {
                if past_seal {
                    StripeDecision::Ignore
                } else if !readable {
                    StripeDecision::Miss
                } else if after_gap || !expected {
                    StripeDecision::LookBehind
                } else {
                    StripeDecision::Take
                }
            },
        );
    }

    #[test]
    fn each_frame_behind_a_gap_is_one_case() {
        try_all(
            &BEHIND,
            |[barrier_seen, is_barrier, later]| barrier_seen || is_barrier || !later,
            |[barrier_seen, is_barrier, later]| {
                if barrier_seen || later {
                    BehindDecision::Damaged
                } else if is_barrier {
                    BehindDecision::Ends
                } else {
                    BehindDecision::Torn
                }
            },
        );
    }

    #[test]
    fn each_barrier_is_one_case() {
        try_all(
            &BARRIER,
            |_| true,
            |[follows, newer_checkpoint, in_root]| {
                if !follows {
                    BarrierDecision::OutOfOrder
                } else if newer_checkpoint {
                    BarrierDecision::RootLost
                } else if in_root {
                    BarrierDecision::RecordsCount
                } else {
                    BarrierDecision::AllCounts
                }
            },
        );
    }

    #[test]
    fn each_group_is_one_case() {
        try_all(
            &GROUP,
            |[last, stripes_read, stripes_whole]| last == stripes_read && (stripes_read || !stripes_whole),
            |[last, _, stripes_whole]| {
                if !last || stripes_whole { GroupDecision::Accept } else { GroupDecision::Refuse }
            },
        );
    }
}
