//! The life of a pool: devices join, leave, fail, return and are kept offline between random operations, and
//! the pool gets other shapes, while upkeep gives segments their redundancy back.
//!
//! The run knows which devices are away and when everything was rebuilt. So it knows how many more devices
//! every segment must survive. It compares that with the answer of the product, and takes as many devices
//! away as the product says may be lost.
//!
//! # Invariants
//! 1. No more devices are away at a time than parity covers: a loss beyond that may lose data.
//! 2. Each device that is away, and not rebuilt, costs at most one of the losses that are left
//!    (`losses_must_be_left`).
//! 3. A copy of the world after a power cut, without as many further devices as the product says may be lost,
//!    shows a state that is not older than the last sync (`judge`).

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_env::Device;
use warpfire_log::{Log, LogStore};
use warpfire_pool::Tuning;
use warpfire_sim_env::{Cut, DistinctNumbers, Fault, SimRandom, SimWorld, mix};
use warpfire_units::DeviceIndex;

use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, StepOutcome, Violation, find_state};
use crate::stack::{MediaKind, Shape, overwrite};

/// Verbs in a run.
const VERBS: u64 = 10;

/// Most operations between two verbs.
const OPERATIONS: u64 = 12;

/// Most devices of a run.
const DEVICES_MAX: usize = 12;

/// Turns of background work after which everything that can be whole is whole.
const TURNS: u32 = 3000;

/// Most steps of background work in a rebuild that is begun.
const MEND_STEPS: u64 = 12;

/// One judgement of so many also opens a copy of which all roots are overwritten.
const ONE_WITHOUT_ROOTS_IN: u64 = 3;

/// A change of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Add,
    AddSpare,
    UseSpare,
    Remove,
    Offline,
    Fail,
    Return,
    Rebuild,
    /// The lost devices are given up, and some background work is done.
    BeginRebuild,
    PowerCut,
    /// Another shape for new segments, and perhaps for older ones too, and space kept free for lost devices.
    Tune,
    /// A zoned drive makes a zone read-only.
    ZoneDies,
}

const ALL: [Verb; 12] = [
    Verb::Add,
    Verb::AddSpare,
    Verb::UseSpare,
    Verb::Remove,
    Verb::Offline,
    Verb::Fail,
    Verb::Return,
    Verb::Rebuild,
    Verb::BeginRebuild,
    Verb::PowerCut,
    Verb::Tune,
    Verb::ZoneDies,
];

const IN_MEND: [Verb; 5] = [Verb::PowerCut, Verb::Offline, Verb::Fail, Verb::Return, Verb::BeginRebuild];

/// The devices, as the run knows them.
struct Life {
    session: Session,
    shape: Shape,
    menu: Menu,
    /// k and m of new segments.
    tuned: (u16, u8),
    /// The fewest parity columns that a segment may have.
    least_parity: u8,
    random: SimRandom,
    /// Devices that take no writes.
    away: BTreeSet<usize>,
    /// Those among them of which no segment has a column any more.
    rebuilt: BTreeSet<usize>,
    /// Devices that have left.
    gone: BTreeSet<usize>,
    spares: BTreeSet<usize>,
    /// Devices that returned or have a zone that died, and may lack a column.
    returned: BTreeSet<usize>,
    /// Devices with a zone that died. Nobody knows when the pool meets it: a write there fails on this
    /// device, and then no more devices may fail than parity covers beside it.
    wounded: BTreeSet<usize>,
    done: Vec<(Verb, usize)>,
    tally: LifeTally,
}

/// The counts of lives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LifeTally {
    /// Verbs that were done.
    pub verbs: u64,
    /// Events while a mend was paused that had written a part of a column.
    pub in_mend: MendTally,
}

/// Events, by their kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MendTally {
    /// Comparisons of a copy after a power cut.
    pub judgements: u64,
    /// Power cuts of the life itself.
    pub cuts: u64,
    /// Devices that were lost.
    pub losses: u64,
    /// Devices that came back.
    pub returns: u64,
}

impl LifeTally {
    /// Adds the counts of another life.
    pub fn add(&mut self, other: &LifeTally) {
        self.verbs += other.verbs;
        let MendTally { judgements, cuts, losses, returns } = other.in_mend;
        self.in_mend.judgements += judgements;
        self.in_mend.cuts += cuts;
        self.in_mend.losses += losses;
        self.in_mend.returns += returns;
    }
}

fn index(device: usize) -> DeviceIndex {
    DeviceIndex(u16::try_from(device).expect("few devices"))
}

/// Runs one case.
///
/// # Errors
/// A verb that must succeed fails, an answer differs from the model, or data is lost within the redundancy
/// that the product says is left.
pub fn run(seed: u64) -> Result<LifeTally, Violation> {
    let random = SimRandom::new(mix(seed) ^ 0x11fe);
    let geometries = [(1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 2), (4, 2, 2)];
    let pick = usize::try_from(random.below(geometries.len() as u64)).expect("an index");
    let (data, parity, spare) = geometries[pick];
    let drawn = Shape::draw(&random);
    // Roomy enough for each of the columns that move.
    let shape = Shape { data, parity, spare, zones: 64, zone_bytes: 256 << 10, ..drawn };
    let session = Session::make(shape, seed)?;
    let none = BTreeSet::new;
    // A stripe of a large write takes a mend several pieces.
    let menu = if random.one_in(2) { Menu::TINY } else { Menu { write_bytes_max: 600_000, ..Menu::TINY } };
    let mut life = Life {
        session,
        shape,
        menu,
        tuned: (data, parity),
        least_parity: parity,
        random,
        away: none(),
        rebuilt: none(),
        gone: none(),
        spares: none(),
        returned: none(),
        wounded: none(),
        done: Vec::new(),
        tally: LifeTally::default(),
    };
    life.session.devices_failed = true;
    let with_context = |v: Violation, life: &Life| {
        Violation(format!(
            "{v}\n {shape}\n verbs: {:?}, away {:?}, rebuilt {:?}",
            life.done, life.away, life.rebuilt
        ))
    };
    for _ in 0..VERBS {
        life.operate().map_err(|v| with_context(v, &life))?;
        let verb = life.draw_verb();
        life.step(verb).map_err(|v| with_context(v, &life))?;
        life.operate().map_err(|v| with_context(v, &life))?;
        life.judge().map_err(|v| with_context(v, &life))?;
    }
    Ok(LifeTally { verbs: life.done.len() as u64, ..life.tally })
}

impl Life {
    /// Most verbs beside a column that is half mended are those that such a column must survive.
    fn draw_verb(&self) -> Verb {
        let is_hard = self.session.has_half_a_column() && !self.random.one_in(4);
        let verbs = if is_hard { &IN_MEND[..] } else { &ALL };
        verbs[usize::try_from(self.random.below(verbs.len() as u64)).expect("an index")]
    }

    fn log(&self) -> &Log {
        self.session.fs().engine().log()
    }

    /// Does some operations.
    fn operate(&mut self) -> Result<(), Violation> {
        let draw = OpSource::new(self.random.below(u64::MAX), self.menu);
        for _ in 0..self.random.below(OPERATIONS) {
            let op = draw.next(self.session.history.model(), self.session.open_transactions());
            self.must(&op)?;
        }
        self.must(&Op::Sync)
    }

    fn must(&mut self, op: &Op) -> Result<(), Violation> {
        match self.session.try_step(op)? {
            StepOutcome::Agreed | StepOutcome::Refused => Ok(()),
            StepOutcome::Faulted(e) => Err(Violation(format!("{op} fails within parity: {e}"))),
        }
    }

    /// Draws one of these devices.
    fn draw(&self, of: impl Iterator<Item = usize>) -> Option<usize> {
        let all: Vec<usize> = of.collect();
        let nth = usize::try_from(self.random.below(all.len().max(1) as u64)).expect("an index");
        all.get(nth).copied()
    }

    /// Devices that are in use and take writes.
    fn working(&self) -> impl Iterator<Item = usize> {
        let unfit = |n: &usize| self.away.contains(n) || self.gone.contains(n) || self.spares.contains(n);
        (0..self.session.world.sims().len()).filter(move |n| !unfit(n))
    }

    /// Whether one more device may be away.
    fn may_lose_one(&self) -> bool {
        let failed = self.away.len() + self.wounded.difference(&self.away).count();
        failed < usize::from(self.least_parity) && self.returned.is_empty()
    }

    /// Whether one more device may be away, and the others can be written.
    fn can_lose_one(&self) -> bool {
        self.may_lose_one() && self.working().count() > self.width()
    }

    /// Does a verb, if the devices allow it now.
    fn step(&mut self, verb: Verb) -> Result<(), Violation> {
        let width = self.width();
        let can_join = self.session.world.sims().len() < DEVICES_MAX;
        let device = match verb {
            Verb::Add | Verb::AddSpare if can_join => self.join(verb == Verb::AddSpare)?,
            Verb::UseSpare => {
                let lost = self.draw(self.away.iter().copied().filter(|n| !self.rebuilt.contains(n)));
                let (Some(spare), Some(lost)) = (self.spares.first().copied(), lost) else { return Ok(()) };
                let used = self.log().pool().use_spare(index(spare), Some(index(lost)));
                used.map_err(|e| Violation(format!("spare {spare} is not taken: {e}")))?;
                self.spares.remove(&spare);
                self.rebuild()?;
                self.remove(lost)?;
                lost
            }
            Verb::Remove if self.working().count() > width && self.away.is_empty() => {
                let Some(device) = self.draw(self.working()) else { return Ok(()) };
                let leaving = self.log().pool().set_leaving(index(device), true);
                leaving.map_err(|e| Violation(format!("device {device} does not leave: {e}")))?;
                if !self.fits(self.log().pool().tuning()) {
                    // As the product answers without room: the device stays.
                    let stays = self.log().pool().set_leaving(index(device), false);
                    return stays.map_err(|e| Violation(format!("device {device} does not stay: {e}")));
                }
                self.rebuild()?;
                self.remove(device)?;
                device
            }
            Verb::Offline | Verb::Fail if self.can_lose_one() => {
                let Some(device) = self.draw(self.working()) else { return Ok(()) };
                self.lose(device, verb)?;
                device
            }
            Verb::Return => {
                let Some(device) = self.away.first().copied() else { return Ok(()) };
                self.tally.in_mend.returns += u64::from(self.session.has_half_a_column());
                self.session.world.sims()[device].heal();
                let back = Arc::clone(&self.session.world.devices()[device]);
                let online = self.log().pool().take_online(back);
                online.map_err(|e| Violation(format!("device {device} is not taken back: {e}")))?;
                self.away.remove(&device);
                self.rebuilt.remove(&device);
                self.returned.insert(device);
                device
            }
            Verb::Rebuild => {
                self.rebuild()?;
                0
            }
            Verb::BeginRebuild => {
                // Without a loss little is due.
                if self.rebuilt.len() == self.away.len() && self.can_lose_one() {
                    self.step(Verb::Offline)?;
                }
                self.give_up_lost()?;
                self.mend_in_part()?;
                0
            }
            Verb::PowerCut => {
                self.tally.in_mend.cuts += u64::from(self.session.has_half_a_column());
                let cut = Cut::Seeded(self.random.below(u64::MAX));
                self.session.crash_apart_from_space(&cut)?;
                // A device that had failed works again; one that is kept offline does not.
                let back = self.away.iter().copied().filter(|n| self.log().pool().takes_writes(index(*n)));
                let back: Vec<usize> = back.collect();
                back.iter().for_each(|n| _ = (self.away.remove(n), self.rebuilt.remove(n)));
                self.returned.extend(back);
                0
            }
            Verb::Tune => {
                let (data, parity) = (1 + self.random.below(4) as u16, 1 + self.random.below(2) as u8);
                let converts = self.random.one_in(2);
                if self.working().count() < usize::from(data) + usize::from(parity) {
                    return Ok(());
                }
                let spare_space = self.random.below(2) as u16;
                if usize::from(spare_space) >= self.working().count() {
                    return Ok(());
                }
                let tuning = Tuning { data, parity, converts, spare_space };
                // The product refuses such a shape.
                if !self.fits(tuning) {
                    return Ok(());
                }
                self.tune(tuning)?;
                let shape = usize::from(data) * 100 + usize::from(parity) * 10 + usize::from(converts);
                usize::from(spare_space) * 1000 + shape
            }
            Verb::ZoneDies if self.shape.kind == MediaKind::Zoned && self.may_lose_one() => {
                let Some(device) = self.draw(self.working()) else { return Ok(()) };
                let zone = 2 + self.random.below(self.shape.zones - 2);
                let offset_bytes = zone * self.shape.zone_bytes;
                let dead =
                    Fault::DeadZone { offset_bytes, len_bytes: self.shape.zone_bytes, is_offline: false };
                self.session.world.sims()[device].inject(dead);
                // A segment that is written there lacks the column until it is rewritten.
                self.returned.insert(device);
                self.wounded.insert(device);
                device
            }
            _ => return Ok(()),
        };
        self.done.push((verb, device));
        Ok(())
    }

    /// Columns of a new segment.
    fn width(&self) -> usize {
        usize::from(self.tuned.0) + usize::from(self.tuned.1)
    }

    fn tune(&mut self, tuning: Tuning) -> Result<(), Violation> {
        let tuned = self.log().tune(tuning).map_err(|e| e.to_string());
        let tuned = tuned.and_then(|()| self.log().seal_all().map_err(|e| e.to_string()));
        tuned.map_err(|e| Violation(format!("{tuning:?} is refused: {e}")))?;
        self.tuned = (tuning.data, tuning.parity);
        self.least_parity = self.least_parity.min(tuning.parity);
        self.settle()
    }

    /// Whether the data of the pool fits in this shape, as the product asks before a change.
    fn fits(&self, tuning: Tuning) -> bool {
        let space = self.log().space();
        let needed_bytes = space.live_bytes + space.log_bytes + space.reserve_bytes;
        self.log().pool().capacity_of(tuning) >= needed_bytes
    }

    fn join(&mut self, is_spare: bool) -> Result<usize, Violation> {
        let device = self.session.world.add(self.shape.spec("new"));
        let pool = self.log().pool();
        let joined = match is_spare {
            true => pool.add_spare(device, false, &DistinctNumbers),
            false => pool.add_device(device, false, &DistinctNumbers),
        };
        let joined = joined.map_err(|e| Violation(format!("a device does not join: {e}")))?;
        if is_spare {
            self.spares.insert(usize::from(joined.0));
        }
        Ok(usize::from(joined.0))
    }

    fn lose(&mut self, device: usize, verb: Verb) -> Result<(), Violation> {
        self.tally.in_mend.losses += u64::from(self.session.has_half_a_column());
        if verb == Verb::Offline {
            let offline = self.log().pool().take_offline(index(device));
            offline.map_err(|e| Violation(format!("device {device} is not taken offline: {e}")))?;
        } else {
            self.session.world.sims()[device].inject(Fault::Vanish { after: self.random.below(9) });
            // The pool meets the loss by a write: a small file is on some of the devices.
            for _ in 0..40 {
                if !self.log().pool().takes_writes(index(device)) {
                    break;
                }
                self.operate()?;
            }
            if self.log().pool().takes_writes(index(device)) {
                self.session.world.sims()[device].inject(Fault::Vanish { after: 0 });
                let offline = self.log().pool().take_offline(index(device));
                offline.map_err(|e| Violation(format!("device {device} is not given up: {e}")))?;
            }
        }
        self.away.insert(device);
        self.settle()
    }

    /// As the product does after a change of its devices.
    fn settle(&mut self) -> Result<(), Violation> {
        let settled = self.log().renew_log().map_err(|e| e.to_string());
        let settled =
            settled.and_then(|()| self.session.fs().engine().checkpoint().map_err(|e| e.to_string()));
        settled.map_err(|e| Violation(format!("no checkpoint: {e}")))?;
        self.must(&Op::Sync)
    }

    /// Gives up the devices that are away: their columns are due to move.
    fn give_up_lost(&mut self) -> Result<(), Violation> {
        self.settle()?;
        self.log().vacate(self.away.iter().map(|n| index(*n)).collect());
        Ok(())
    }

    /// Does some background work, which may end in the middle of a mend.
    fn mend_in_part(&mut self) -> Result<(), Violation> {
        for _ in 0..1 + self.random.below(MEND_STEPS) {
            self.must(&Op::Background(1))?;
            if self.session.has_half_a_column() && self.random.one_in(3) {
                break;
            }
        }
        Ok(())
    }

    /// Gives up the devices that are away, and works until nothing is due.
    fn rebuild(&mut self) -> Result<(), Violation> {
        self.give_up_lost()?;
        if self.random.one_in(2) {
            self.mend_in_part()?;
            self.judge()?;
            self.operate()?;
        }
        self.must(&Op::Background(TURNS))?;
        self.settle()?;
        self.must(&Op::Background(TURNS))?;
        self.settle()?;
        self.settle()?;
        let due = self.log().due_work();
        if due.reasons.is_empty() && self.log().weak_segments() == 0 {
            if self.log().pool().tuning().converts {
                self.least_parity = self.tuned.1;
            }
            self.returned.clear();
            let empty = |n: &usize| self.log().segments_on(index(*n)) == 0;
            self.rebuilt = self.away.iter().copied().filter(empty).collect();
        } else if due.blocked.is_none() && self.working().count() > self.width() {
            return Err(Violation(format!("work is left, and nothing blocks it: {due:?}")));
        }
        Ok(())
    }

    fn remove(&mut self, device: usize) -> Result<(), Violation> {
        if self.log().segments_on(index(device)) > 0 {
            // No room. It goes on leaving.
            return Ok(());
        }
        let removed = self.log().pool().remove_device(index(device));
        removed.map_err(|e| Violation(format!("device {device} is not removed: {e}")))?;
        self.gone.insert(device);
        self.away.remove(&device);
        self.wounded.remove(&device);
        self.rebuilt.remove(&device);
        Ok(())
    }

    /// The losses that every segment must survive at least.
    fn losses_must_be_left(&self) -> usize {
        let not_rebuilt = self.away.difference(&self.rebuilt).count() + self.returned.len();
        let parity = usize::from(self.tuned.1);
        let there = self.session.world.sims().len() - self.gone.len() - self.away.len();
        // An opening without more than m devices needs more than m others.
        let opens = parity.saturating_sub(self.away.len()).max(there.saturating_sub(parity + 1));
        usize::from(self.least_parity).saturating_sub(not_rebuilt).min(opens)
    }

    /// Compares the losses that are left with the least that the run knows, and takes as many devices away.
    fn judge(&mut self) -> Result<(), Violation> {
        self.tally.in_mend.judgements += u64::from(self.session.has_half_a_column());
        if let Some(overwrite) = overwrite(&self.session.world) {
            return Err(Violation(overwrite));
        }
        let (left, least) = (self.log().losses_left(), self.losses_must_be_left());
        let left = left.map(usize::from).filter(|left| *left >= least);
        let left = left.ok_or_else(|| {
            Violation(format!("{:?} devices may be lost, and {least} must be", self.log().losses_left()))
        })?;
        let world = self.session.world.cut(&Cut::Seeded(self.random.below(u64::MAX)));
        let mut lost = self.away.clone();
        for _ in 0..left {
            let there = (0..world.sims().len()).filter(|n| !lost.contains(n) && !self.gone.contains(n));
            lost.extend(self.draw(there));
        }
        let left_in = |world: &SimWorld| -> Vec<Arc<dyn Device>> {
            let devices = world.devices().into_iter().enumerate();
            devices.filter(|(n, _)| !lost.contains(n)).map(|(_, device)| device).collect()
        };
        let without = |why: String| Violation(format!("{left} devices may be lost; without {lost:?}: {why}"));
        let allowed = self.session.history.durable()..=self.session.history.newest();
        // A copy of a root follows the next sync, so it may not know yet which devices are offline. It serves
        // as long as no more devices are missing than parity covers.
        if lost.len() <= usize::from(self.least_parity) && self.random.one_in(ONE_WITHOUT_ROOTS_IN) {
            let copy = world.fork();
            self.shape.lose_roots(&copy);
            let opened = self.shape.open_without_roots(&left_in(&copy), copy.clock());
            let fs = opened.map_err(|e| without(format!("cannot be opened without roots: {e}")))?;
            find_state(&fs, &self.session.history, allowed.clone())
                .map_err(|v| without(format!("opened without roots: {v}")))?;
        }
        let opened = self.shape.open_devices(left_in(&world), world.clock());
        let fs = opened.map_err(|e| without(format!("cannot be opened: {e}")))?;
        find_state(&fs, &self.session.history, allowed).map(drop).map_err(|v| without(v.0))
    }
}
