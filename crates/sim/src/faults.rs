//! Devices that fail under load and then work again. Every acknowledged operation must still be there.

use warpfire_sim_env::{Cut, Fault, OpClass, SimRandom, mix};

use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, StepOutcome, UNREADABLE, Violation, find_state};
use crate::stack::Shape;

/// Most operations before the faults are set, and operations after.
const OPERATIONS: u64 = 40;

/// Device operations within which a fault strikes.
const STRIKES_WITHIN: u64 = 150;

/// Runs one case: a session in which some devices fail. Half of the cases stay within parity and may use
/// every kind of fault. The others use failures that return errors, on any number of devices. Returns 1, the
/// number of cases.
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
        match session.try_step(&op).map_err(|v| with_context(v, &session))? {
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
        let fault = if within {
            // A slow device moves the clock inside an operation, at a moment that the model does not know. A
            // full host stops the pool.
            let drawn = || Fault::draw(random, shape.zones * shape.zone_bytes, STRIKES_WITHIN);
            std::iter::repeat_with(drawn)
                .find(|fault| !matches!(fault, Fault::Slow { .. } | Fault::Full { .. }))
                .expect("the draw goes on until it finds another kind")
        } else if random.one_in(4) {
            Fault::Full { after_bytes: random.below(shape.zones * shape.zone_bytes) }
        } else {
            let op = [OpClass::Read, OpClass::Write, OpClass::Flush];
            let op = op[usize::try_from(random.below(3)).expect("below 3")];
            Fault::Fail { op, after: random.below(STRIKES_WITHIN), lasting: random.one_in(2) }
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
