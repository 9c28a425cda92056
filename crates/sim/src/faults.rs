//! Devices that fail under load and then work again. Every acknowledged operation must still be there.

use std::time::Duration;

use warpfire_env::Clock;
use warpfire_pool::WRITE_WAIT_MAX;
use warpfire_sim_env::{Cut, Fault, OpClass, SimRandom, mix};

use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, StepOutcome, UNREADABLE, Violation, find_state};
use crate::stack::{MediaKind, Shape};

/// Most operations before the faults are set, and operations after.
const OPERATIONS: u64 = 40;

/// The time that one operation can take on devices that are slow and do not hang.
const SLOW_MAX: Duration = Duration::from_mins(10);

/// Device operations within which a fault strikes, at most.
const STRIKES_WITHIN_MAX: u64 = 150;

/// Device operations within which a fault strikes. Few are often drawn, because a device sees more reads in a
/// run than flushes.
fn draw_strikes_within(random: &SimRandom) -> u64 {
    1 + random.below(STRIKES_WITHIN_MAX >> random.below(6))
}

/// Runs one case: a session in which some devices fail. Half of the cases stay within parity and may use
/// every kind of fault. The others use hangs, and failures that return errors, on any number of devices.
/// Returns 1, the number of cases.
///
/// # Errors
/// Within parity: any failure at all. Beyond: a lost acknowledged state, or an error that is no device's.
pub fn run(seed: u64) -> Result<u64, Violation> {
    let random = SimRandom::new(mix(seed) ^ 0xfa17);
    let mut shape = Shape::draw(&random);
    // The smallest zones, so that segments are often made and freed while faults strike.
    shape.zone_bytes = 256 << 10;
    let within = shape.parity > 0 && random.one_in(2);
    let mut session = Session::make(shape, seed)?;
    let draw = OpSource::new(random.below(u64::MAX), Menu { reopens: within, ..Menu::TINY });
    for _ in 0..random.below(OPERATIONS) {
        let op = draw.next(session.history.model(), session.open_transactions());
        session.step(&op)?;
    }
    session.devices_failed = true;
    let faults = inject(&session, &random, shape, within);
    let with_context = |v: Violation, session: &Session| {
        let history = session.history.show(session.history.newest().saturating_sub(50));
        Violation(format!("{v}\n {shape}\n faults: {faults:?}\n{history}"))
    };
    for _ in 0..OPERATIONS {
        let op = draw.next(session.history.model(), session.open_transactions());
        let before_nanos = session.world.clock().monotonic_nanos();
        let outcome = session.try_step(&op).map_err(|v| with_context(v, &session))?;
        let waited_nanos = session.world.clock().monotonic_nanos() - before_nanos;
        if waited_nanos > wait_nanos_max(&op, &shape, within, &faults) {
            let why = format!("{op} waits {:?} for devices", Duration::from_nanos(waited_nanos));
            return Err(with_context(Violation(why), &session));
        }
        match outcome {
            StepOutcome::Agreed | StepOutcome::Refused => {}
            StepOutcome::Faulted(e) if within => {
                return Err(with_context(Violation(format!("{op} fails within parity: {e}")), &session));
            }
            StepOutcome::Faulted(_) => break,
        }
    }
    recover(&mut session, &random, within).map_err(|v| with_context(v, &session))?;
    Ok(1)
}

/// The longest time that an operation may wait for devices. Within parity a device that does not take a write
/// or a flush is dropped. Long reads, and those of an open, have no limit.
fn wait_nanos_max(op: &Op, shape: &Shape, within: bool, faults: &[(usize, Fault)]) -> u64 {
    let waits_for_reads = |fault: &Fault| matches!(fault, Fault::Hang { op: None | Some(OpClass::Read), .. });
    if !within || *op == Op::Reopen || faults.iter().any(|(_, fault)| waits_for_reads(fault)) {
        return u64::MAX;
    }
    let waits = WRITE_WAIT_MAX * u32::from(shape.parity);
    u64::try_from((waits + SLOW_MAX).as_nanos()).expect("minutes")
}

/// Sets a fault on each of some devices, at most as many as parity covers if `within`.
fn inject(session: &Session, random: &SimRandom, shape: Shape, within: bool) -> Vec<(usize, Fault)> {
    let sims = session.world.sims();
    let mut left: Vec<usize> = (0..sims.len()).collect();
    let most = if within { usize::from(shape.parity) } else { sims.len() };
    let count = 1 + usize::try_from(random.below(most as u64)).expect("few");
    let mut faults = Vec::new();
    for _ in 0..count {
        let nth = usize::try_from(random.below(left.len() as u64)).expect("an index");
        let device = left.swap_remove(nth);
        let fault = if shape.kind == MediaKind::Zoned && random.one_in(4) {
            let zone = random.below(shape.zones);
            let (offset_bytes, len_bytes) = (zone * shape.zone_bytes, shape.zone_bytes);
            Fault::DeadZone { offset_bytes, len_bytes, is_offline: random.one_in(2) }
        } else if within {
            // A full host stops the pool.
            let drawn = || Fault::draw(random, shape.zones * shape.zone_bytes, draw_strikes_within(random));
            std::iter::repeat_with(drawn)
                .find(|fault| !matches!(fault, Fault::Full { .. }))
                .expect("the draw goes on until it finds another kind")
        } else if random.one_in(4) {
            Fault::Full { after_bytes: random.below(shape.zones * shape.zone_bytes) }
        } else {
            let op = [OpClass::Read, OpClass::Write, OpClass::Flush];
            let op = op[usize::try_from(random.below(3)).expect("below 3")];
            let after = random.below(draw_strikes_within(random));
            if random.one_in(4) {
                Fault::Hang { op: Some(op), after, nanos: Fault::draw_hang_nanos(random) }
            } else {
                Fault::Fail { op, after, lasting: random.one_in(2) }
            }
        };
        sims[device].inject(fault.clone());
        faults.push((device, fault));
    }
    faults
}

/// Heals the devices, opens again after a power cut, and goes on with operations.
fn recover(session: &mut Session, random: &SimRandom, within: bool) -> Result<(), Violation> {
    for sim in session.world.sims() {
        sim.heal();
    }
    if !within && random.one_in(4) {
        // After a latch the store changes no more, and every byte that can be read is right.
        read_on(session)?;
    }
    let cut = match random.below(3) {
        0 => Cut::LoseAll,
        1 => Cut::KeepAll,
        _ => Cut::Seeded(random.below(u64::MAX)),
    };
    session.crash(&cut)?;
    let draw = OpSource::new(random.below(u64::MAX), Menu { reopens: true, ..Menu::TINY });
    for _ in 0..5 {
        let op = draw.next(session.history.model(), session.open_transactions());
        session.step(&op)?;
    }
    session.step(&Op::Sync)?;
    session.crash(&Cut::LoseAll)
}

/// Reads everything from a store that may have latched. An unreadable part is no violation.
fn read_on(session: &Session) -> Result<(), Violation> {
    let newest = session.history.newest();
    let allowed = newest.saturating_sub(1)..=newest;
    match find_state(session.fs(), &session.history, allowed) {
        Err(v) if !v.0.contains(UNREADABLE) => Err(v),
        _ => Ok(()),
    }
}
