//! The judge: chooses the crash states to try, and checks each.

use std::ops::RangeInclusive;

use warpfire_sim_env::{Cut, Event, Grain, Replay, SimRandom, SimWorld, Survival, mix};

use super::Workload;
use crate::history::History;
use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, Violation, find_state};
use crate::space::{check_copy, check_total};
use crate::stack::{SimFs, overwrite};

/// Later than any time of a workload: a reopened world's clock goes on from here.
const LATER_NANOS: u64 = 1 << 50;

/// In one state of so many a copy is checked offline, before and after recovery.
const ONE_CHECKED_IN: u64 = 20;

/// Of the states that are opened for reading, one of so many is opened without its roots too.
const ONE_WITHOUT_ROOTS_IN: u64 = 4;

/// The share of states to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The judge tries all subsets of at most this many pending changes, and prefixes of more.
    pub subset_changes_max: usize,
    /// Drawn cuts at each boundary, torn ones among them.
    pub samples: u64,
    /// One state of so many has its recovery recorded and cut again.
    pub one_recovery_in: u64,
    /// In one state of so many the session goes on, and is cut and opened again.
    pub one_continued_in: u64,
    /// One state of so many is opened for reading before it is opened for writing.
    pub one_read_in: u64,
}

impl Budget {
    /// For workloads of one and two operations.
    pub const SMALL: Budget = Budget {
        subset_changes_max: 6,
        samples: 3,
        one_recovery_in: 60,
        one_continued_in: 40,
        one_read_in: 10,
    };
    /// For drawn workloads.
    pub const DRAWN: Budget = Budget {
        subset_changes_max: 8,
        samples: 6,
        one_recovery_in: 40,
        one_continued_in: 20,
        one_read_in: 10,
    };
}

/// The place of a crash state in its workload, to make the state again.
#[derive(Clone, PartialEq, Eq, Debug)]
struct CutPlace {
    point: usize,
    cut: Cut,
}

/// Tries crash states and counts them.
pub struct Judge {
    random: SimRandom,
    budget: Budget,
    /// Crash states that were reopened and found right.
    pub states: u64,
    /// Crash states of which a copy was checked and counted again.
    pub checked: u64,
    /// Crash states that were opened for reading first.
    pub read: u64,
    /// States of these that were opened once more, with all roots overwritten.
    pub without_roots: u64,
    /// Recoveries that were cut again. Their states count in `states`.
    pub recoveries: u64,
}

impl Judge {
    /// A judge that draws its choices from the seed.
    #[must_use]
    pub fn new(seed: u64, budget: Budget) -> Self {
        Judge {
            random: SimRandom::new(mix(seed) ^ 0xc0a7),
            budget,
            states: 0,
            checked: 0,
            read: 0,
            without_roots: 0,
            recoveries: 0,
        }
    }

    /// Tries the crash states of a workload, until `states` reaches `states_max`.
    ///
    /// # Errors
    /// The first violation, with the place of the cut and the operations.
    pub fn try_all(&mut self, workload: &Workload, states_max: u64) -> Result<(), Violation> {
        let mut replay = workload.recording.replay();
        let mut durable = 0;
        let mut newest = 0;
        loop {
            if replay.at_boundary() {
                // The allowed states come from the marks before this place: see `Workload`.
                for cut in self.cuts(&replay) {
                    if self.states >= states_max {
                        return Ok(());
                    }
                    let place = CutPlace { point: replay.point(), cut };
                    let allowed = durable..=newest;
                    self.try_state(workload, &replay, &place, allowed.clone()).map_err(|v| {
                        let history = workload.history.show(0);
                        Violation(format!("{v}\n at {place:?}, allowed {allowed:?}\n{history}"))
                    })?;
                }
            }
            match replay.advance() {
                None => return Ok(()),
                Some(Event::Mark(mark)) => {
                    let number = usize::try_from(mark / 2).expect("states are few");
                    if mark % 2 == 1 {
                        newest = number + 1;
                    } else {
                        durable = number;
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// The cuts to try at a boundary.
    fn cuts(&self, replay: &Replay<'_>) -> Vec<Cut> {
        let pending = replay.pending_changes();
        let seed = self.random.below(u64::MAX);
        if pending <= self.budget.subset_changes_max {
            return replay.cuts(self.budget.samples, seed).collect();
        }
        let whole = (0..=pending).map(|whole| Cut::Prefix { whole, last: Survival::Nothing });
        let torn = |grain, missing| Survival::Without { grain, missing };
        let tears = [
            torn(Grain::Sector, 1..usize::MAX),
            torn(Grain::Sector, 3..5),
            torn(Grain::Block, 1..usize::MAX),
            torn(Grain::Block, 0..1),
        ];
        let torn = tears.into_iter().map(|last| Cut::Prefix {
            whole: usize::try_from(self.random.below(pending as u64)).expect("few"),
            last,
        });
        let drawn = (0..self.budget.samples).map(|n| Cut::Seeded(mix(seed ^ n)));
        whole.chain(torn).chain(drawn).collect()
    }

    /// Tries one crash state, and sometimes goes on from it.
    fn try_state(
        &mut self,
        workload: &Workload,
        replay: &Replay<'_>,
        place: &CutPlace,
        allowed: RangeInclusive<usize>,
    ) -> Result<(), Violation> {
        let mut world = replay.cut(&place.cut);
        let cut_again = self.random.one_in(self.budget.one_recovery_in);
        if cut_again {
            world.record();
        }
        let copy = self.random.one_in(ONE_CHECKED_IN).then(|| world.fork());
        let read = self.read(workload, &world, allowed.clone())?;
        let (fs, found) = reopen(workload, &world, &workload.history, allowed.clone())?;
        same_state(read, found)?;
        if let Some(copy) = copy {
            check_copy(&copy, &workload.shape, workload.history.state(found))?;
            self.checked += 1;
        }
        self.states += 1;
        if cut_again {
            drop(fs);
            world.mark(0);
            self.cut_recovery(workload, &mut world, allowed, found)?;
        } else if self.random.one_in(self.budget.one_continued_in) {
            drop(fs);
            self.go_on(workload, world, found)?;
        }
        Ok(())
    }

    /// Opens some of the states for reading, and finds the state that it shows. Nothing may be written.
    fn read(
        &mut self,
        workload: &Workload,
        world: &SimWorld,
        allowed: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Violation> {
        // By count and not by chance: the other choices stay as they are.
        if !self.states.is_multiple_of(self.budget.one_read_in) {
            return Ok(None);
        }
        let before = world.changes_asked();
        let fs = workload
            .shape
            .open_for_reading(world.devices(), world.clock())
            .map_err(|e| Violation(format!("cannot be opened for reading after the power cut: {e}")))?;
        let found = find_state(&fs, &workload.history, allowed.clone())
            .map_err(|v| Violation(format!("opened for reading: {v}")))?;
        drop(fs);
        if world.changes_asked() != before {
            return Err(Violation("a device was written while the pool was open for reading".to_owned()));
        }
        self.read += 1;
        if self.read.is_multiple_of(ONE_WITHOUT_ROOTS_IN) {
            self.read_without_roots(workload, world, allowed)?;
        }
        Ok(Some(found))
    }

    /// Overwrites all roots of a copy, and compares what the segments alone lead to.
    fn read_without_roots(
        &mut self,
        workload: &Workload,
        world: &SimWorld,
        allowed: RangeInclusive<usize>,
    ) -> Result<(), Violation> {
        let copy = world.fork();
        workload.shape.lose_roots(&copy);
        let fs = workload
            .shape
            .open_without_roots(&copy.devices(), copy.clock())
            .map_err(|e| Violation(format!("cannot be opened without its roots: {e}")))?;
        find_state(&fs, &workload.history, allowed)
            .map_err(|v| Violation(format!("opened without its roots: {v}")))?;
        self.without_roots += 1;
        Ok(())
    }

    /// Cuts a recovery at each of its boundaries.
    fn cut_recovery(
        &mut self,
        workload: &Workload,
        world: &mut SimWorld,
        allowed: RangeInclusive<usize>,
        found: usize,
    ) -> Result<(), Violation> {
        let recording = world.take_recording().expect("a recording was begun");
        let mut replay = recording.replay();
        let mut allowed = allowed;
        self.recoveries += 1;
        loop {
            if replay.at_boundary() {
                for n in 0..3 {
                    let cut = match n {
                        0 => Cut::LoseAll,
                        1 => Cut::KeepAll,
                        _ => Cut::Seeded(self.random.below(u64::MAX)),
                    };
                    let again = replay.cut(&cut);
                    let read = self.read(workload, &again, allowed.clone());
                    let opened = read.and_then(|read| {
                        let (_, found) = reopen(workload, &again, &workload.history, allowed.clone())?;
                        same_state(read, found)
                    });
                    opened.map_err(|v| {
                        Violation(format!("{v}\n in a recovery, at {} with {cut:?}", replay.point()))
                    })?;
                    self.states += 1;
                }
            }
            match replay.advance() {
                None => return Ok(()),
                // The open had returned: the state that it showed is durable.
                Some(Event::Mark(_)) => allowed = found..=found,
                Some(_) => {}
            }
        }
    }

    /// Goes on with operations from a state that was found, and cuts again.
    fn go_on(&mut self, workload: &Workload, world: SimWorld, found: usize) -> Result<(), Violation> {
        // A recovery that builds on damage may show it only after later writes and another crash.
        let model = workload.history.state(found).clone();
        world.clock().advance(LATER_NANOS);
        let mut session = Session::resume(workload.shape, world, model)
            .map_err(|v| Violation(format!("opened a second time: {v}")))?;
        let draw = OpSource::new(self.random.below(u64::MAX), Menu::TINY);
        let with_context = |v: Violation, s: &Session| {
            Violation(format!("{v}\n going on from state {found}:\n{}", s.history.show(0)))
        };
        for _ in 0..2 {
            for _ in 0..self.random.below(6) {
                let op = draw.next(session.history.model(), session.open_transactions());
                session.step(&op).map_err(|v| with_context(v, &session))?;
            }
            session.step(&Op::Sync).map_err(|v| with_context(v, &session))?;
            let op = draw.next(session.history.model(), session.open_transactions());
            session.step(&op).map_err(|v| with_context(v, &session))?;
            let show = session.history.show(0);
            let cut = Cut::Seeded(self.random.below(u64::MAX));
            session
                .crash(&cut)
                .map_err(|v| Violation(format!("{v}\n going on from state {found}:\n{show}")))?;
            self.states += 1;
        }
        Ok(())
    }
}

/// Checks that an opening for reading has shown the same state as one for writing.
fn same_state(read: Option<usize>, found: usize) -> Result<(), Violation> {
    if read.is_none_or(|read| read == found) {
        return Ok(());
    }
    Err(Violation(format!("opened for reading it shows state {read:?}, opened for writing {found}")))
}

/// Opens the devices after a cut, and finds the state that they show.
fn reopen(
    workload: &Workload,
    world: &SimWorld,
    history: &History,
    allowed: RangeInclusive<usize>,
) -> Result<(SimFs, usize), Violation> {
    let fs = workload
        .shape
        .open(world)
        .map_err(|e| Violation(format!("cannot be opened after the power cut: {e}")))?;
    let found = find_state(&fs, history, allowed)?;
    check_total(&fs, &workload.shape)?;
    match overwrite(world) {
        Some(overwrite) => Err(Violation(overwrite)),
        None => Ok((fs, found)),
    }
}
