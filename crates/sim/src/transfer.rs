//! Streams between two pools: every crash state of the receiver, with streams that are cut, and resumed.
//!
//! ```text
//!   source: operations ─▶ snapshot first ─▶ operations ─▶ snapshot second
//!                              │ full stream                   │ increment
//!   receiver, recorded:  cut, resumed, finished          cut, resumed, finished
//!   each boundary × cuts ─▶ reopen ─▶ nothing, first or second? ─▶ sometimes: the rest ─▶ second
//! ```
//!
//! # Promises
//! 1. The target shows nothing, the tree of the first snapshot, or that of the second, and no less than was
//!    shown durably. The receiver has the snapshots of exactly these trees (`Judge::shown`).
//! 2. What arrived before a mark that was kept is not sent again: the state after a crash counts that mark
//!    (`Judge::resume`).
//! 3. The rest of the stream leads to the same tree and the same hash (`Judge::resume`).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_format::Uuid;
use warpfire_fs::{FsError, ReceiveState, ReceiveTarget, SendBase, SendOrder, SentStream};
use warpfire_sim_env::{Cut, Event, Recording, SimRandom, SimWorld, mix};

use crate::drive::{background, node};
use crate::model::{Name, Path, Picture};
use crate::observe::observe_below;
use crate::op::{Menu, Op, OpSource};
use crate::session::{Session, Violation};
use crate::space::fsck;
use crate::stack::{Shape, SimFs, overwrite};

/// The snapshots of the source, in order.
const SNAPSHOTS: [&[u8]; 2] = [b"first", b"second"];

/// The directory of the receiver that shows them.
const TARGET: &[u8] = b"copy";

/// Names of attributes that are not sent.
const OWN_XATTRS: &[u8] = b"trusted.warpfire.";

/// A receiver needs room for the spool beside two trees.
const RECEIVER_ZONES: u64 = 96;

/// Time that passes between two steps, so that no two snapshots have the same time.
const STEP_NANOS: u64 = 1_000_001;

/// Later than any time of a recording.
const LATER_NANOS: u64 = 1 << 50;

/// Times that a stream is cut before it gets through.
const CUTS_MAX: u64 = 3;

/// In one state of so many the rest of the streams is received.
const ONE_RESUMED_IN: u64 = 4;

/// In one state of so many the devices are checked offline too.
const ONE_CHECKED_IN: u64 = 30;

/// Drawn cuts at each boundary.
const SAMPLES: u64 = 3;

/// Pending changes of which all subsets are tried.
const SUBSET_CHANGES_MAX: usize = 3;

/// What holds from a moment of the recording on.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// Trees that are shown durably: 0 to 2.
    durable: usize,
    /// Trees that may be shown.
    newest: usize,
    /// Records of the stream after the durable tree that have been kept.
    kept: u64,
}

/// The sender: a pool with two snapshots.
struct Source {
    session: Session,
    mark_bytes: u64,
    /// The trees of the snapshots.
    trees: [Picture; 2],
    /// Whether the second is sent since a bookmark of the first.
    by_bookmark: bool,
}

/// The bookmark of the first snapshot.
const BOOKMARK: &[u8] = b"the first was sent";

fn failed(what: &str) -> impl Fn(String) -> Violation {
    move |why| Violation(format!("{what}: {why}"))
}

impl Source {
    fn draw(seed: u64, random: &SimRandom) -> Result<Source, Violation> {
        let mut session = Session::make(Shape::of_crash(seed, None), seed)?;
        let menu = Menu { write_bytes_max: 30_000, together: 20, clones: false, ..Menu::TINY };
        let draw = OpSource::new(random.below(u64::MAX), menu);
        let mut trees = [Picture::default(), Picture::default()];
        for (name, tree) in SNAPSHOTS.iter().zip(&mut trees) {
            for _ in 0..15 + random.below(30) {
                let op = draw.next(session.history.model(), session.open_transactions());
                session.step(&op)?;
            }
            session.step(&Op::Snapshot(name.to_vec()))?;
            let then = session.fs().open_snapshot(name);
            let then = then.map_err(|e| Violation(format!("the sender's snapshot cannot be opened: {e}")))?;
            let found = observe_below(&*then, &then.root());
            *tree = comparable(found.map_err(|(_, e)| Violation(format!("the sender cannot be read: {e}")))?);
        }
        let mark_bytes = 2_000 << random.below(5);
        let by_bookmark = !seed.is_multiple_of(2);
        if by_bookmark {
            let made = session.fs().create_bookmark(SNAPSHOTS[0], BOOKMARK);
            made.map_err(|e| Violation(format!("the sender makes no bookmark: {e}")))?;
        }
        Ok(Source { session, mark_bytes, trees, by_bookmark })
    }

    /// The stream of the snapshot with this number, or the rest of it.
    fn send(&self, number: usize, state: Option<&ReceiveState>) -> Result<(Vec<u8>, SentStream), Violation> {
        let fs = self.session.fs();
        let info = |number: usize| {
            fs.snapshot(SNAPSHOTS[number]).map_err(|e| Violation(format!("the sender has no snapshot: {e}")))
        };
        let (snapshot, base) = (info(number)?, (number > 0).then(|| info(number - 1)).transpose()?);
        let bookmark = match &base {
            Some(_) if self.by_bookmark => Some(
                fs.bookmark(BOOKMARK).map_err(|e| Violation(format!("the sender has no bookmark: {e}")))?,
            ),
            _ => None,
        };
        let base = match &bookmark {
            Some(bookmark) => Some(SendBase::Bookmark(bookmark)),
            None => base.as_ref().map(SendBase::Snapshot),
        };
        let order = SendOrder {
            pool: Uuid::new(1).expect("one is a number"),
            snapshot: &snapshot,
            base,
            root: b"/",
            continued_at: state.map(|state| state.mark).filter(|mark| mark.records > 0),
            mark_bytes: self.mark_bytes,
        };
        let mut stream = Vec::new();
        let sent = fs.send(&order, &mut |bytes| {
            stream.extend_from_slice(bytes);
            ControlFlow::Continue(())
        });
        Ok((stream, sent.map_err(|e| Violation(format!("the stream cannot be sent: {e}")))?))
    }
}

/// A picture without what a stream does not carry.
fn comparable(mut picture: Picture) -> Picture {
    for entry in picture.entries.values_mut() {
        entry.ctime = Timestamp::default();
        entry.xattrs.retain(|name, _| !name.starts_with(OWN_XATTRS));
    }
    picture
}

fn target() -> ReceiveTarget {
    ReceiveTarget::new(TARGET).expect("the name of the target is one")
}

/// Receives the two streams with cuts, and records the devices. Returns what held at each mark.
fn record(
    shape: &Shape,
    seed: u64,
    source: &Source,
    random: &SimRandom,
) -> Result<(Recording, Vec<Moment>), Violation> {
    let made = shape.world(seed);
    let fs = shape.make(&made).map_err(|e| failed("the receiver cannot be made")(e.to_string()))?;
    fs.close().map_err(|e| failed("the receiver cannot be closed")(e.to_string()))?;
    drop(fs);
    let mut world = made.fork();
    world.record();
    let fs = shape.open(&world).map_err(|e| failed("the receiver cannot be opened")(e.to_string()))?;
    let fs = Arc::new(fs);
    let mut moments = Vec::new();
    let mut note = |world: &SimWorld, moment: Moment| {
        world.mark(moments.len() as u64);
        moments.push(moment);
    };
    for number in 0..SNAPSHOTS.len() {
        let mut cuts = random.below(CUTS_MAX + 1);
        loop {
            let receiving = failed("a stream is refused");
            let state = fs.receive_state(&target()).map_err(|e| receiving(e.to_string()))?;
            let (stream, sent) = source.send(number, state.as_ref())?;
            let mut receiver = fs.receive(&target(), None).map_err(|e| receiving(e.to_string()))?;
            let len = match cuts {
                0 => stream.len(),
                _ => usize::try_from(random.below(stream.len() as u64)).expect("shorter than the stream"),
            };
            let mut rest = &stream[..len];
            while !rest.is_empty() {
                let at = 1 + usize::try_from(random.below(6_000)).expect("few bytes");
                let (part, behind) = rest.split_at(at.min(rest.len()));
                rest = behind;
                world.clock().advance(STEP_NANOS);
                receiver.feed(part).map_err(|e| receiving(e.to_string()))?;
                let state = fs.receive_state(&target()).map_err(|e| receiving(e.to_string()))?;
                let kept = state.map_or(0, |state| state.mark.records);
                note(&world, Moment { durable: number, newest: number, kept });
                let steps = u32::try_from(random.below(3)).expect("few steps");
                background(fs.engine().as_ref(), steps).map_err(|e| receiving(e.to_string()))?;
            }
            if cuts > 0 {
                cuts -= 1;
                continue;
            }
            note(&world, Moment { durable: number, newest: number + 1, kept: 0 });
            world.clock().advance(STEP_NANOS);
            let received = receiver.finish(&|tx| tx.commit()).map_err(|e| receiving(e.to_string()))?;
            if received.hash != sent.end.hash {
                return Err(Violation("the receiver and the sender have different hashes".to_owned()));
            }
            note(&world, Moment { durable: number + 1, newest: number + 1, kept: 0 });
            break;
        }
    }
    let recording = world.take_recording().expect("a recording was begun");
    Ok((recording, moments))
}

struct Judge<'a> {
    source: &'a Source,
    shape: &'a Shape,
    random: &'a SimRandom,
    states: u64,
}

impl Judge<'_> {
    /// Tries the cuts at each boundary of a recording.
    fn try_all(&mut self, recording: &Recording, moments: &[Moment]) -> Result<(), Violation> {
        let mut replay = recording.replay();
        let mut now = Moment::default();
        loop {
            if replay.at_boundary() {
                let seed = self.random.below(u64::MAX);
                let cuts: Vec<Cut> = if replay.pending_changes() <= SUBSET_CHANGES_MAX {
                    replay.cuts(SAMPLES, seed).collect()
                } else {
                    let drawn = (0..SAMPLES).map(|n| Cut::Seeded(mix(seed ^ n)));
                    [Cut::LoseAll, Cut::KeepAll].into_iter().chain(drawn).collect()
                };
                for cut in cuts {
                    let at = replay.point();
                    self.try_state(replay.cut(&cut), now)
                        .map_err(|v| Violation(format!("{v}\n at event {at} with {cut:?}, {now:?}")))?;
                    self.states += 1;
                }
            }
            match replay.advance() {
                None => return Ok(()),
                Some(Event::Mark(mark)) => {
                    now = moments[usize::try_from(*mark).expect("marks are few")];
                }
                Some(_) => {}
            }
        }
    }

    fn open(&self, world: &SimWorld) -> Result<Arc<SimFs>, Violation> {
        let opened = self.shape.open(world);
        opened.map(Arc::new).map_err(|e| failed("cannot be opened after the power cut")(e.to_string()))
    }

    fn try_state(&self, world: SimWorld, now: Moment) -> Result<(), Violation> {
        world.clock().advance(LATER_NANOS);
        if self.random.one_in(ONE_CHECKED_IN) {
            fsck(&world.fork())?;
        }
        let fs = self.open(&world)?;
        let shown = self.shown(&fs)?;
        if !(now.durable..=now.newest).contains(&shown) {
            return Err(Violation(format!("{shown} trees are shown")));
        }
        if self.random.one_in(ONE_RESUMED_IN) {
            self.resume(&world, &fs, shown, now)?;
            drop(fs);
            let again = self.open(&world.cut(&Cut::LoseAll))?;
            if self.shown(&again)? != SNAPSHOTS.len() {
                return Err(Violation("a crash has taken a received tree back".to_owned()));
            }
        }
        overwrite(&world).map_or(Ok(()), |overwrite| Err(Violation(overwrite)))
    }

    /// How many of the trees the receiver has got: it shows the last one, and its snapshots show each.
    fn shown(&self, fs: &SimFs) -> Result<usize, Violation> {
        let reading = failed("the receiver cannot be read");
        let listed = fs.snapshots().map_err(|e| reading(e.to_string()))?;
        let names: BTreeSet<Name> = listed.iter().map(|snapshot| snapshot.name.clone()).collect();
        let shown = names.len();
        if !SNAPSHOTS.iter().take(shown).all(|name| names.contains(*name)) {
            return Err(Violation(format!("{shown} snapshots, and other ones than those received")));
        }
        for (name, wanted) in SNAPSHOTS.iter().zip(&self.source.trees).take(shown) {
            let then = fs.open_snapshot(name).map_err(|e| reading(e.to_string()))?;
            compare(&String::from_utf8_lossy(name), wanted, &*then)?;
        }
        match (shown.checked_sub(1), node(fs, &target_path())) {
            (Some(last), _) => compare("the target", &self.source.trees[last], fs)?,
            (None, Err(FsError::NotFound)) => {}
            (None, _) => return Err(Violation("the target shows an unfinished tree".to_owned())),
        }
        Ok(shown)
    }

    /// Receives the trees that are missing.
    fn resume(&self, world: &SimWorld, fs: &Arc<SimFs>, shown: usize, now: Moment) -> Result<(), Violation> {
        let resuming = failed("the rest of a stream is refused");
        for number in shown..SNAPSHOTS.len() {
            world.clock().advance(STEP_NANOS);
            let state = fs.receive_state(&target()).map_err(|e| resuming(e.to_string()))?;
            let records = state.as_ref().map_or(0, |state| state.mark.records);
            if number == now.durable && records < now.kept {
                return Err(Violation(format!("of {} records that were kept {records} are left", now.kept)));
            }
            let (stream, sent) = self.source.send(number, state.as_ref().filter(|s| !s.is_complete))?;
            let mut receiver = fs.receive(&target(), None).map_err(|e| resuming(e.to_string()))?;
            if !receiver.is_complete() {
                receiver.feed(&stream).map_err(|e| resuming(e.to_string()))?;
            }
            let received = receiver.finish(&|tx| tx.commit()).map_err(|e| resuming(e.to_string()))?;
            if received.hash != sent.end.hash {
                return Err(Violation("after a resume the hash is another one".to_owned()));
            }
        }
        match self.shown(fs)? {
            shown if shown == SNAPSHOTS.len() => Ok(()),
            shown => Err(Violation(format!("everything is received and {shown} trees are shown"))),
        }
    }
}

fn target_path() -> Path {
    vec![TARGET.to_vec()]
}

/// Compares a tree of the sender with the target in a filesystem.
fn compare<E: warpfire_meta::Storage>(
    what: &str,
    wanted: &Picture,
    fs: &warpfire_fs::Fs<E>,
) -> Result<(), Violation> {
    let top = node(fs, &target_path()).map_err(|e| Violation(format!("{what} has no tree: {e}")))?;
    let found = observe_below(fs, &top).map_err(|(_, e)| Violation(format!("{what} cannot be read: {e}")))?;
    let found = comparable(found);
    if found == *wanted { Ok(()) } else { Err(Violation(format!("{what}:\n{}", wanted.differences(&found)))) }
}

/// Runs one case, and returns the number of crash states.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64) -> Result<u64, Violation> {
    let random = SimRandom::new(mix(seed) ^ 0x57_e0);
    let source = Source::draw(seed, &random)?;
    let shape = Shape { zones: RECEIVER_ZONES, ..Shape::of_crash(mix(seed), None) };
    let (recording, moments) = record(&shape, seed, &source, &random)
        .map_err(|v| Violation(format!("{v}\n while it is recorded on {shape}")))?;
    let mut judge = Judge { source: &source, shape: &shape, random: &random, states: 0 };
    judge.try_all(&recording, &moments).map_err(|v| Violation(format!("{v}\n {shape}")))?;
    Ok(judge.states)
}
