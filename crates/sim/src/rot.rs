//! Devices that are lost, rot or do not answer after a close. Within parity everything must read exactly;
//! beyond it an error is allowed, wrong bytes are not.

use std::sync::Arc;

use warpfire_env::{Clock, Device};
use warpfire_fs::FsError;
use warpfire_sim_env::{Cut, Fault, SimDevice, SimRandom, SimWorld, mix};
use warpfire_units::BLOCK_BYTES;

use crate::model::{Model, Picture, show_path};
use crate::observe::{observe_all, observe_readable};
use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, Violation, is_fault};
use crate::stack::{Shape, SimFs, StackError};

/// Geometries to try: data columns, parity columns, spare devices.
const GEOMETRIES: [(u16, u8, u16); 6] = [(4, 2, 0), (1, 1, 0), (2, 1, 0), (10, 4, 0), (1, 2, 2), (4, 2, 3)];

/// The widest geometry.
pub const WIDEST: (u16, u8, u16) = (242, 8, 0);

/// The damage to one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    /// It is not there.
    Lost,
    /// One block in so many has a flipped bit.
    Rotten(u64),
    /// Every block is zeros.
    Blank,
    /// After so many operations it does not answer for so many nanoseconds.
    Hanging(u64, u64),
}

/// The devices that are still there, and the damage to each damaged device, by its number.
type HarmedDevices = (Vec<Arc<dyn Device>>, Vec<(usize, Harm)>);

/// Runs one case of a geometry drawn from the seed. Returns 1, the number of cases.
///
/// # Errors
/// Within parity: anything that cannot be read, or is wrong. Beyond: anything that is wrong.
pub fn run(seed: u64) -> Result<u64, Violation> {
    let random = SimRandom::new(mix(seed) ^ 0x0707);
    let nth = usize::try_from(random.below(GEOMETRIES.len() as u64)).expect("an index");
    run_geometry(seed, GEOMETRIES[nth], OPERATIONS)
}

/// Operations before the harm.
const OPERATIONS: u64 = 120;

/// Operations of a device within which it begins to hang: while the pool is opened or read.
const HANGS_WITHIN: u64 = 300;

/// Runs one case of a geometry.
///
/// # Errors
/// As `run`.
pub fn run_geometry(seed: u64, geometry: (u16, u8, u16), operations: u64) -> Result<u64, Violation> {
    let random = SimRandom::new(mix(seed) ^ 0x0706);
    let (data, parity, spare) = geometry;
    let shape = Shape { data, parity, spare, ..Shape::draw(&random) };
    let mut session = Session::make(shape, seed)?;
    let menu = if random.one_in(2) { Menu::TINY } else { Menu::WIDE };
    let draw = OpSource::new(random.below(u64::MAX), menu);
    for _ in 0..random.below(operations) {
        let op = draw.next(session.history.model(), session.open_transactions());
        session.step(&op)?;
    }
    session.step(&Op::Sync)?;
    let beyond = random.one_in(3);
    // Beyond parity the acknowledged end of the commit log may look torn. After a clean close nothing depends
    // on it.
    if beyond || random.one_in(2) {
        session.step(&Op::Reopen)?;
        session.fs().close().map_err(|e| Violation(format!("cannot be closed: {e}")))?;
    }
    let model = session.history.model().clone();
    let world = session.world.cut(&Cut::KeepAll);
    drop(session);
    let (devices, harms) = harm(&world, &random, usize::from(parity), beyond);
    let with_context = |v: Violation| Violation(format!("{v}\n {shape}\n harm: {harms:?}"));
    if beyond {
        be_honest(shape, &world, devices, &model).map_err(with_context)?;
    } else {
        be_exact(shape, &world, devices, &model).map_err(with_context)?;
    }
    Ok(1)
}

/// Damages as many devices as parity covers at most, or one more.
fn harm(world: &SimWorld, random: &SimRandom, parity: usize, beyond: bool) -> HarmedDevices {
    let sims = world.sims();
    let mut left: Vec<usize> = (0..sims.len()).collect();
    let most = u64::try_from(parity).expect("few");
    let count = if beyond { parity + 1 } else { usize::try_from(1 + random.below(most)).expect("few") };
    let mut harms = Vec::new();
    for _ in 0..count {
        let nth = usize::try_from(random.below(left.len() as u64)).expect("an index");
        let device = left.swap_remove(nth);
        let harm = match random.below(7) {
            0 | 1 => Harm::Lost,
            2 => Harm::Blank,
            3 => Harm::Hanging(random.below(HANGS_WITHIN), Fault::draw_hang_nanos(random)),
            _ => Harm::Rotten(1 << random.below(6)),
        };
        hurt(&sims[device], harm, random);
        harms.push((device, harm));
    }
    let lost = |n: usize| harms.iter().any(|(device, harm)| *device == n && *harm == Harm::Lost);
    let devices = world.devices().into_iter().enumerate().filter(|(n, _)| !lost(*n)).map(|(_, d)| d);
    (devices.collect(), harms)
}

/// Damages one device.
fn hurt(sim: &SimDevice, harm: Harm, random: &SimRandom) {
    if let Harm::Hanging(after, nanos) = harm {
        return sim.inject(Fault::Hang { op: None, after, nanos });
    }
    let block = BLOCK_BYTES as u64;
    for n in 0..sim.info().size_bytes / block {
        let at = n * block;
        // Blocks that were never written hold zeros and stay as they are.
        if sim.peek(at, BLOCK_BYTES).iter().all(|b| *b == 0) {
            continue;
        }
        match harm {
            Harm::Lost | Harm::Hanging(..) => {}
            Harm::Blank => sim.poke(at, &[0; BLOCK_BYTES]),
            Harm::Rotten(one_in) if random.one_in(one_in) => {
                sim.rot(at, usize::try_from(random.below(block * 8)).expect("a bit of a block"));
            }
            Harm::Rotten(_) => {}
        }
    }
}

fn clock_of(world: &SimWorld) -> Arc<dyn Clock> {
    world.clock()
}

/// Opens the devices for reading. Nothing may be written.
fn read_only(
    shape: Shape,
    world: &SimWorld,
    devices: Vec<Arc<dyn Device>>,
    compared: impl FnOnce(Result<SimFs, StackError>) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let before = world.changes_asked();
    compared(shape.open_for_reading(devices, clock_of(world)))
        .map_err(|v| Violation(format!("opened for reading: {v}")))?;
    if world.changes_asked() == before {
        return Ok(());
    }
    Err(Violation("a device was written while the pool was open for reading".to_owned()))
}

/// Within parity: everything is there, and the filesystem can be closed and opened again.
fn be_exact(
    shape: Shape,
    world: &SimWorld,
    devices: Vec<Arc<dyn Device>>,
    model: &Model,
) -> Result<(), Violation> {
    read_only(shape, world, devices.clone(), |opened| {
        let fs = opened.map_err(|e| Violation(format!("cannot be opened: {e}")))?;
        compare(&fs, model, false)
    })?;
    let fs = shape
        .open_devices(devices.clone(), clock_of(world))
        .map_err(|e| Violation(format!("cannot be opened: {e}")))?;
    compare(&fs, model, false)?;
    fs.close().map_err(|e| Violation(format!("cannot be closed: {e}")))?;
    drop(fs);
    let again = shape
        .open_devices(devices, clock_of(world))
        .map_err(|e| Violation(format!("cannot be opened a second time: {e}")))?;
    compare(&again, model, false)
}

/// Beyond parity: everything visible is right, or an error reports damage.
fn be_honest(
    shape: Shape,
    world: &SimWorld,
    devices: Vec<Arc<dyn Device>>,
    model: &Model,
) -> Result<(), Violation> {
    let honest = |opened: Result<SimFs, StackError>| match opened {
        Ok(fs) => compare(&fs, model, true),
        // The newest root that is left may be older than the filesystem.
        Err(StackError::Fs(FsError::NotFound)) => Ok(()),
        Err(StackError::Fs(e)) if !is_fault(&e) => {
            Err(Violation(format!("opening fails with another error than damage: {e}")))
        }
        Err(_) => Ok(()),
    };
    read_only(shape, world, devices.clone(), honest)?;
    honest(shape.open_devices(devices, clock_of(world)))
}

/// Compares the readable part of a filesystem with the model. With `may_fail`, an unreadable part is no
/// violation.
fn compare(fs: &SimFs, model: &Model, may_fail: bool) -> Result<(), Violation> {
    let (mut found, failures) = observe_readable(fs);
    let mut wanted: Picture = model.picture();
    if may_fail {
        // Beyond parity the records of snapshots may be unreadable.
        wanted.clear_all_but_the_tree();
    } else {
        let all = observe_all(fs);
        let unreadable = |(path, e)| Violation(format!("{} cannot be read: {e}", show_path(&path)));
        let all = all.map_err(unreadable)?;
        found = Picture { entries: found.entries, ..all };
    }
    for (path, e) in &failures {
        if !may_fail || !is_fault(e) {
            return Err(Violation(format!("{} cannot be read: {e}", show_path(path))));
        }
    }
    // Paths below a failure are not visible. One of them may be the first name of a file with several.
    wanted.entries.retain(|path, _| !failures.iter().any(|(failed, _)| path.starts_with(failed)));
    found.entries.retain(|path, _| !failures.iter().any(|(failed, _)| path.starts_with(failed)));
    if may_fail {
        for picture in [&mut wanted, &mut found] {
            picture.entries.values_mut().for_each(|entry| entry.same_as.clear());
        }
    }
    if found == wanted {
        return Ok(());
    }
    Err(Violation(format!("the filesystem differs from the model\n{}", wanted.differences(&found))))
}
