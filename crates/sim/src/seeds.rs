//! Random sessions: operations and power cuts from one seed, on devices and in memory of a drawn shape.

use warpfire_meta::{ORIGINS_MAX, SnapshotStore};
use warpfire_sim_env::{Cut, SimRandom, mix};

use crate::op::{End, Menu, Op, OpSource};
use crate::session::{Session, StepOutcome, Violation};
use crate::stack::{MediaKind, Shape};

/// Sessions between two power cuts.
const CUTS: u64 = 4;

/// Steps of background work after which an empty filesystem must be at rest.
const REST_STEPS: u32 = 10_000;

/// Blocks of the one table that is left of an empty filesystem: its record, its root directory and counters,
/// and an index.
const EMPTY_BYTES: u64 = 64 << 10;

/// The counts of a seed's run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SeedTally {
    /// Operations done.
    pub operations: u64,
    /// Operations that the full pool refused.
    pub refused: u64,
    /// Power cuts survived.
    pub cuts: u64,
}

/// The set-up of a seed's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeedPlan {
    /// The devices and the engine.
    pub shape: Shape,
    /// The operations to draw from.
    pub menu: Menu,
}

impl SeedPlan {
    /// The plan of a seed. `kind` overrides the kind of the devices.
    #[must_use]
    pub fn of(seed: u64, kind: Option<MediaKind>) -> SeedPlan {
        let random = SimRandom::new(mix(seed) ^ 0x5eed);
        let mut shape = Shape::draw(&random);
        if let Some(kind) = kind {
            shape.kind = kind;
        }
        let menu = match random.below(4) {
            0 => Menu::TINY,
            1 => Menu::CRAMPED,
            _ => Menu::WIDE,
        };
        if menu == Menu::CRAMPED {
            (shape.zones, shape.zone_bytes) = (18 + random.below(20), 256 << 10);
        }
        SeedPlan { shape, menu }
    }
}

/// Runs one seed. Calls `trace` with each operation before it is done.
///
/// # Errors
/// The first violation, and the operations that led to it.
pub fn run(
    seed: u64,
    plan: SeedPlan,
    operations: u64,
    trace: &mut dyn FnMut(&Op),
) -> Result<SeedTally, Violation> {
    let random = SimRandom::new(mix(seed));
    let mut session = Session::make(plan.shape, seed)?;
    let mut tally = SeedTally::default();
    let draw = OpSource::new(random.below(u64::MAX), plan.menu);
    for _ in 0..CUTS {
        let here = 1 + random.below(operations / CUTS * 2);
        for _ in 0..here {
            let op = draw.next(session.history.model(), session.open_transactions());
            trace(&op);
            if let StepOutcome::Refused = session.step(&op).map_err(|v| with_context(v, &session))? {
                tally.refused += 1;
            }
            tally.operations += 1;
        }
        // Only half of the time: a check reads everything, and a crash must also come without that.
        if random.one_in(2) {
            session.check().map_err(|v| with_context(v, &session))?;
        }
        let cut = match random.below(6) {
            0 => Cut::LoseAll,
            1 => Cut::KeepAll,
            _ => Cut::Seeded(random.below(u64::MAX)),
        };
        let before = session.history.show(session.history.durable());
        session.crash(&cut).map_err(|v| Violation(format!("{v}\n since the last sync:\n{before}")))?;
        tally.cuts += 1;
    }
    drain(&mut session).map_err(|v| with_context(v, &session))?;
    Ok(tally)
}

fn with_context(violation: Violation, session: &Session) -> Violation {
    let from = session.history.newest().saturating_sub(30);
    Violation(format!("{violation}\n the last operations:\n{}", session.history.show(from)))
}

/// Deletes everything and runs background work until it rests. Bytes that still count as live are a leak.
fn drain(session: &mut Session) -> Result<(), Violation> {
    let open: Vec<_> = session.open_transactions().open().map(|tx| Op::End(tx, End::Abort)).collect();
    let kept: Vec<_> = session.open_transactions().slots().keys().map(|slot| Op::DropValue(*slot)).collect();
    let model = session.history.model();
    let snapshots: Vec<_> = model.snapshots().cloned().map(Op::DropSnapshot).collect();
    let bookmarks: Vec<_> = model.bookmarks().cloned().map(Op::DropBookmark).collect();
    // The clones in a clone come first.
    let clones: Vec<_> = model.doors().into_keys().rev().map(Op::DropClone).collect();
    for op in open.iter().chain(&kept).chain(&snapshots).chain(&bookmarks).chain(&clones) {
        session.step(op)?;
    }
    for (path, kind) in session.history.model().paths().into_iter().skip(1).rev() {
        let op = if kind == warpfire_fs::FileKind::Directory { Op::Rmdir(path) } else { Op::Unlink(path) };
        if let StepOutcome::Refused = session.step(&op)? {
            return Err(Violation(format!("{op} is refused for lack of space")));
        }
    }
    let rest = |session: &mut Session| -> Result<(), Violation> {
        session.step(&Op::Sync)?;
        session.step(&Op::Background(REST_STEPS))?;
        let forget = || session.fs().forget_volumes();
        while forget().map_err(|e| Violation(format!("clones cannot be forgotten: {e}")))? {}
        session.step(&Op::Sync).map(drop)
    };
    rest(session)?;
    session.step(&Op::Reopen)?;
    rest(session)?;
    session.check()?;
    // Each round forgets the clones in which no other one reads on, and then drops what they showed.
    let mut live_bytes = u64::MAX;
    for _ in 0..=ORIGINS_MAX {
        let engine = session.fs().engine();
        let space = warpfire_log::LogStore::space(engine.log());
        engine
            .compact()
            .map_err(|e| Violation(format!("an empty filesystem cannot be compacted: {e}; {space:?}")))?;
        rest(session)?;
        session.check()?;
        live_bytes = warpfire_log::LogStore::space(session.fs().engine().log()).live_bytes;
        if live_bytes <= EMPTY_BYTES {
            return Ok(());
        }
    }
    let rollbacks = session.fs().engine().rollbacks();
    Err(Violation(format!(
        "the filesystem is empty and {live_bytes} bytes are live; rollbacks with a record: {rollbacks:?}"
    )))
}
