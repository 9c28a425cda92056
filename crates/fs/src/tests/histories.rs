//! Transactions and plain calls of all kinds take place one after the other, in an order that agrees with
//! real time.
//!
//! Threads make names, links, listings, attributes, extended attributes and data, in transactions and by
//! plain calls, and write down every answer with the times between which it was made. The judge looks for an
//! order of all of them in which a plain tree of names gives the same answers. An order is right only if
//! whatever ended before another began comes before it. Each transaction that changes something also appends
//! its number to a log, without asking for its size. So the log has the order of these transactions, and the
//! search is short.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::thread;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_meta::Storage;

use super::TestRandom;
use crate::acl::Caller;
use crate::{FileKind, Fs, FsError, NewMode, NodeRef, Position, RenameMode, SetAttr, XattrMode};

const ROOT: Caller<'static> = Caller::ROOT;
const LOG: &[u8] = b"log";
const XATTR: &[u8] = b"user.x";

/// The directories, which stay, and the names in each of them. `FIXED` are files in the first that stay too.
const DIRS: [&[u8]; 2] = [b"p", b"q"];
const NAMES: u64 = 4;
const FIXED: u64 = 2;

/// A name in one of the directories.
type Place = (usize, u8);

#[derive(Clone, Copy, Debug)]
enum Call {
    Create(Place),
    MakeDir(Place),
    Unlink(Place),
    RemoveDir(Place),
    Rename(Place, Place),
    Link(Place, Place),
    List(usize),
    ReadFile(Place),
    Stat(Place),
    Append(Place, u8),
    WriteFirst(Place, u8),
    Truncate(Place),
    ChangeMode(Place, u16),
    SetXattr(Place, u8),
    GetXattr(Place),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    Failed,
    Names(Vec<(u8, bool)>),
    Bytes(Vec<u8>),
    Attributes { size: u64, links: u32, mode: u32 },
}

/// A transaction, or a plain call.
#[derive(Clone, Debug)]
struct Event {
    start: u64,
    end: u64,
    calls: Vec<(Call, Answer)>,
    /// Its number in the log, if it is there.
    logged: Option<u32>,
}

// ---------------------------------------------------------------------------------------------------------
// The model

#[derive(Clone, Hash, Debug)]
struct ModelFile {
    is_dir: bool,
    bytes: Vec<u8>,
    links: u32,
    mode: u16,
    xattr: Option<u8>,
}

/// The tree as plain calls one after the other would leave it.
#[derive(Clone, Hash, Debug, Default)]
struct Model {
    names: BTreeMap<Place, u32>,
    files: BTreeMap<u32, ModelFile>,
    made: u32,
}

impl Model {
    fn new() -> Model {
        let mut model = Model::default();
        (0..FIXED as u8).for_each(|name| assert_eq!(model.make((0, name), false), Answer::Done));
        model
    }

    fn make(&mut self, at: Place, is_dir: bool) -> Answer {
        if self.names.contains_key(&at) {
            return Answer::Failed;
        }
        self.made += 1;
        let (links, mode) = if is_dir { (2, 0o755) } else { (1, 0o644) };
        self.files.insert(self.made, ModelFile { is_dir, bytes: Vec::new(), links, mode, xattr: None });
        self.names.insert(at, self.made);
        Answer::Done
    }

    fn remove(&mut self, at: Place) {
        if let Some(file) = self.names.remove(&at) {
            let left = self.files.get_mut(&file).expect("every name has its file");
            left.links -= 1;
            if left.links == 0 || left.is_dir {
                self.files.remove(&file);
            }
        }
    }

    fn file(&self, at: Place) -> Option<(u32, &ModelFile)> {
        self.names.get(&at).map(|number| (*number, &self.files[number]))
    }

    fn change(&mut self, at: Place, change: impl FnOnce(&mut ModelFile)) -> Answer {
        match self.names.get(&at) {
            Some(number) if !self.files[number].is_dir => {
                change(self.files.get_mut(number).expect("every name has its file"));
                Answer::Done
            }
            _ => Answer::Failed,
        }
    }

    fn call(&mut self, call: Call) -> Answer {
        match call {
            Call::Create(at) => self.make(at, false),
            Call::MakeDir(at) => self.make(at, true),
            Call::Unlink(at) | Call::RemoveDir(at) => match self.file(at) {
                Some((_, file)) if file.is_dir == matches!(call, Call::RemoveDir(_)) => {
                    self.remove(at);
                    Answer::Done
                }
                _ => Answer::Failed,
            },
            Call::Rename(from, to) => {
                let Some((number, file)) = self.file(from) else { return Answer::Failed };
                match self.file(to) {
                    Some((other, _)) if other == number => return Answer::Done,
                    Some((_, other)) if other.is_dir != file.is_dir => return Answer::Failed,
                    _ => {}
                }
                self.remove(to);
                self.names.remove(&from);
                self.names.insert(to, number);
                Answer::Done
            }
            Call::Link(from, to) => match (self.file(from), self.file(to)) {
                (Some((number, file)), None) if !file.is_dir => {
                    self.names.insert(to, number);
                    self.files.get_mut(&number).expect("every name has its file").links += 1;
                    Answer::Done
                }
                _ => Answer::Failed,
            },
            Call::List(dir) => Answer::Names(
                self.names
                    .iter()
                    .filter(|((d, _), _)| *d == dir)
                    .map(|((_, name), file)| (*name, self.files[file].is_dir))
                    .collect(),
            ),
            Call::ReadFile(at) => match self.file(at) {
                Some((_, file)) if !file.is_dir => Answer::Bytes(file.bytes.clone()),
                _ => Answer::Failed,
            },
            Call::Stat(at) => match self.file(at) {
                Some((_, file)) => Answer::Attributes {
                    size: file.bytes.len() as u64,
                    links: file.links,
                    mode: u32::from(file.mode),
                },
                None => Answer::Failed,
            },
            Call::Append(at, byte) => self.change(at, |file| file.bytes.push(byte)),
            Call::WriteFirst(at, byte) => self.change(at, |file| match file.bytes.first_mut() {
                Some(first) => *first = byte,
                None => file.bytes.push(byte),
            }),
            Call::Truncate(at) => self.change(at, |file| file.bytes.clear()),
            Call::ChangeMode(at, mode) => self.change(at, |file| file.mode = mode),
            Call::SetXattr(at, value) => self.change(at, |file| file.xattr = Some(value)),
            Call::GetXattr(at) => match self.file(at) {
                Some((_, ModelFile { xattr: Some(value), .. })) => Answer::Bytes(vec![*value]),
                _ => Answer::Failed,
            },
        }
    }

    /// Makes all calls of an event. `None` if one answers otherwise.
    fn after(&self, event: &Event) -> Option<Model> {
        let mut model = self.clone();
        event.calls.iter().all(|(call, answer)| model.call(*call) == *answer).then_some(model)
    }
}

// ---------------------------------------------------------------------------------------------------------
// The judge

/// A step of the search: the events placed so far, and the event of each thread that comes next.
struct Step {
    model: Model,
    next: Vec<usize>,
    logged: usize,
    /// The thread to try next.
    thread: usize,
}

/// Finds an order of the events of all threads.
///
/// # Errors
/// If there is none: the events in the middle of which no order goes on.
fn judge(threads: &[Vec<Event>], log: &[u32]) -> Result<(), String> {
    let total: usize = threads.iter().map(Vec::len).sum();
    let mut steps = vec![Step { model: Model::new(), next: vec![0; threads.len()], logged: 0, thread: 0 }];
    let mut failed: HashSet<(Vec<usize>, u64)> = HashSet::new();
    let (mut furthest, mut stuck) = (0, String::new());
    while let Some(step) = steps.last_mut() {
        let waiting = || threads.iter().zip(&step.next).map(|(events, next)| events.get(*next));
        if steps_done(&step.next) == total {
            return if step.logged == log.len() {
                Ok(())
            } else {
                Err("a logged transaction is lost".into())
            };
        }
        // Whatever ended before an event began comes before it.
        let first_end = waiting().flatten().map(|event| event.end).min().unwrap_or(u64::MAX);
        let found = (step.thread..threads.len()).find_map(|thread| {
            let event = threads[thread].get(step.next[thread]).filter(|event| event.start < first_end)?;
            if event.logged.is_some_and(|number| log.get(step.logged) != Some(&number)) {
                return None;
            }
            let model = step.model.after(event)?;
            let mut next = step.next.clone();
            next[thread] += 1;
            let logged = step.logged + usize::from(event.logged.is_some());
            let mut state = DefaultHasher::new();
            model.hash(&mut state);
            (!failed.contains(&(next.clone(), state.finish())))
                .then_some((thread, Step { model, next, logged, thread: 0 }))
        });
        if let Some((thread, next)) = found {
            step.thread = thread + 1;
            steps.push(next);
            continue;
        }
        if steps_done(&step.next) >= furthest {
            furthest = steps_done(&step.next);
            let events: Vec<&Event> = waiting().flatten().collect();
            stuck = format!("after {furthest} of {total} none of these can be next: {events:?}");
        }
        let mut state = DefaultHasher::new();
        step.model.hash(&mut state);
        failed.insert((step.next.clone(), state.finish()));
        steps.pop();
    }
    Err(stuck)
}

fn steps_done(next: &[usize]) -> usize {
    next.iter().sum()
}

// ---------------------------------------------------------------------------------------------------------
// The filesystem

/// Names of the second directory begin after those of the first, so that a rename within one is common.
fn place(draw: &mut TestRandom) -> Place {
    let dir = draw.below(DIRS.len() as u64) as usize;
    // The fixed files keep their names.
    let first = if dir == 0 { FIXED } else { 0 };
    (dir, (first + draw.below(NAMES)) as u8)
}

fn call(draw: &mut TestRandom) -> Call {
    let (at, byte) = (place(draw), draw.next() as u8);
    // Any file: half of the time a fixed one.
    let any = if draw.below(2) == 0 { (0, draw.below(FIXED) as u8) } else { at };
    match draw.below(17) {
        0 | 1 => Call::Create(at),
        2 => Call::MakeDir(at),
        3 => Call::Unlink(at),
        4 => Call::RemoveDir(at),
        5 => Call::Rename(at, place(draw)),
        6 => Call::Link(any, at),
        7 => Call::List(at.0),
        8 | 9 => Call::ReadFile(any),
        10 => Call::Stat(any),
        11 => Call::Append(any, byte),
        12 => Call::WriteFirst(any, byte),
        13 => Call::Truncate(any),
        14 => Call::ChangeMode(any, 0o600 | u16::from(byte & 0o77)),
        15 => Call::SetXattr(any, byte),
        _ => Call::GetXattr(any),
    }
}

/// Whether a plain call of this kind is one call of the filesystem: by name in a directory, or of a file that
/// stays. The others look a name up first.
fn is_one_call(call: Call) -> bool {
    match call {
        Call::Link(from, _) => from.0 == 0 && u64::from(from.1) < FIXED,
        Call::Stat(at)
        | Call::Append(at, _)
        | Call::Truncate(at)
        | Call::ChangeMode(at, _)
        | Call::SetXattr(at, _)
        | Call::GetXattr(at) => at.0 == 0 && u64::from(at.1) < FIXED,
        Call::WriteFirst(..) => false,
        _ => true,
    }
}

/// The directories and files that stay, held open.
struct Held {
    dirs: Vec<NodeRef>,
    files: Vec<NodeRef>,
}

impl Held {
    fn of<E: Storage>(fs: &Fs<E>) -> Held {
        let dirs: Vec<NodeRef> =
            DIRS.iter().map(|name| fs.lookup(&ROOT, &fs.root(), name).unwrap()).collect();
        let files =
            (0..FIXED as u8).map(|name| fs.lookup(&ROOT, &dirs[0], &[b'a' + name]).unwrap()).collect();
        Held { dirs, files }
    }

    fn find<E: Storage>(&self, fs: &Fs<E>, at: Place) -> Result<NodeRef, FsError> {
        match self.files.get(usize::from(at.1)) {
            Some(file) if at.0 == 0 => Ok(Arc::clone(file)),
            _ => fs.lookup(&ROOT, &self.dirs[at.0], &[b'a' + at.1]),
        }
    }
}

fn answer_of<E: Storage>(fs: &Fs<E>, held: &Held, call: Call) -> Result<Answer, FsError> {
    let names = |at: Place| (&held.dirs[at.0], [b'a' + at.1]);
    let regular = |at: Place| match held.find(fs, at) {
        Ok(node) if node.is_dir() => Err(FsError::IsDirectory),
        found => found,
    };
    let mode = |mode: u32| NewMode::exact(mode);
    match call {
        Call::Create(at) => fs.create_file(&ROOT, names(at).0, &names(at).1, mode(0o644), b"").map(drop)?,
        Call::MakeDir(at) => fs.mkdir(&ROOT, names(at).0, &names(at).1, mode(0o755)).map(drop)?,
        Call::Unlink(at) => fs.unlink(&ROOT, names(at).0, &names(at).1)?,
        Call::RemoveDir(at) => fs.rmdir(&ROOT, names(at).0, &names(at).1)?,
        Call::Rename(from, to) => {
            let ((from_dir, from), (to_dir, to)) = (names(from), names(to));
            fs.rename(&ROOT, (from_dir, &from), (to_dir, &to), RenameMode::Replace)?;
        }
        Call::Link(from, to) => fs.link(&ROOT, &held.find(fs, from)?, names(to).0, &names(to).1)?,
        Call::List(dir) => {
            let entries = fs.readdir(&ROOT, &held.dirs[dir], None, 100)?;
            let of = |e: &crate::DirEntry| (e.name[0] - b'a', e.kind == FileKind::Directory);
            return Ok(Answer::Names(entries.iter().map(of).collect()));
        }
        Call::ReadFile(at) => return Ok(Answer::Bytes(fs.read_file(&ROOT, names(at).0, &names(at).1)?)),
        Call::Stat(at) => {
            let attr = fs.getattr(&*held.find(fs, at)?);
            return Ok(Answer::Attributes {
                size: attr.size_bytes,
                links: attr.links,
                mode: attr.mode & 0o7777,
            });
        }
        Call::Append(at, byte) => fs.append(&ROOT, &regular(at)?, &[byte])?,
        Call::WriteFirst(at, byte) => fs.write(&ROOT, &regular(at)?, Position::At(0), &[byte]).map(drop)?,
        Call::Truncate(at) => fs.truncate(&ROOT, &regular(at)?, 0)?,
        Call::ChangeMode(at, mode) => {
            let set = SetAttr { mode: Some(u32::from(mode)), ..SetAttr::default() };
            fs.set_attributes(&ROOT, &regular(at)?, &set)?;
        }
        Call::SetXattr(at, value) => {
            fs.setxattr(&ROOT, &*regular(at)?, XATTR, &[value], XattrMode::Either)?
        }
        Call::GetXattr(at) => return Ok(Answer::Bytes(fs.getxattr(&ROOT, &*held.find(fs, at)?, XATTR)?)),
    }
    Ok(Answer::Done)
}

/// An answer for the judge: a refusal is a refusal, whatever its reason.
fn judged<E: Storage>(fs: &Fs<E>, held: &Held, call: Call) -> (Call, Answer) {
    let answer = match answer_of(fs, held, call) {
        Err(e @ (FsError::Damaged { .. } | FsError::Unknown(_) | FsError::Ended)) => panic!("{call:?}: {e}"),
        other => other.unwrap_or(Answer::Failed),
    };
    (call, answer)
}

/// Runs a history and judges it. Returns the number of conflicts. `upkeep` is called between the events.
pub(super) fn run<E: Storage>(
    fs: &Arc<Fs<E>>,
    seed: u64,
    (threads, each): (u64, u64),
    upkeep: &(dyn Fn(u64) + Sync),
) -> u64 {
    let mode = NewMode::exact(0o755);
    DIRS.iter().for_each(|name| _ = fs.mkdir(&ROOT, &fs.root(), name, mode).unwrap());
    let first = fs.lookup(&ROOT, &fs.root(), DIRS[0]).unwrap();
    for name in 0..FIXED as u8 {
        fs.create_file(&ROOT, &first, &[b'a' + name], NewMode::exact(0o644), b"").unwrap();
    }
    fs.create_file(&ROOT, &fs.root(), LOG, mode, b"").unwrap();
    let held = Held::of(fs);
    let (time, numbers) = (AtomicU64::new(0), AtomicU64::new(1));
    let now = || time.fetch_add(1, Ordering::SeqCst);
    let histories = Mutex::new(Vec::new());
    let conflicts = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (held, histories, conflicts, numbers, now) = (&held, &histories, &conflicts, &numbers, &now);
            scope.spawn(move || {
                let mut draw = TestRandom(seed * 1000 + thread);
                let mut events = Vec::new();
                for _ in 0..each {
                    upkeep(draw.next());
                    if draw.below(3) == 0 {
                        let call = std::iter::repeat_with(|| call(&mut draw)).find(|call| is_one_call(*call));
                        let start = now();
                        let calls = vec![judged(fs, held, call.expect("it goes on for ever"))];
                        events.push(Event { start, end: now(), calls, logged: None });
                        continue;
                    }
                    let start = now();
                    let tx = fs.begin().unwrap();
                    let inside = Held::of(tx.files());
                    let count = 1 + draw.below(4);
                    let calls: Vec<(Call, Answer)> =
                        (0..count).map(|_| judged(tx.files(), &inside, call(&mut draw))).collect();
                    let logged = draw.below(4) > 0;
                    let number = numbers.fetch_add(1, Ordering::Relaxed) as u32;
                    if logged {
                        let log = tx.files().lookup(&ROOT, &tx.files().root(), LOG).unwrap();
                        tx.files().append(&ROOT, &log, &number.to_le_bytes()).unwrap();
                    }
                    match tx.commit() {
                        Ok(()) => {
                            let logged = logged.then_some(number);
                            events.push(Event { start, end: now(), calls, logged });
                        }
                        Err(FsError::Conflict { .. }) => _ = conflicts.fetch_add(1, Ordering::Relaxed),
                        Err(e) => panic!("seed {seed}: {e}"),
                    }
                }
                histories.lock().push(events);
            });
        }
    });
    let log = fs.read_file(&ROOT, &fs.root(), LOG).unwrap();
    let log: Vec<u32> =
        log.chunks(4).map(|number| u32::from_le_bytes(number.try_into().expect("whole numbers"))).collect();
    if let Err(wrong) = judge(&histories.into_inner(), &log) {
        panic!("not serialisable, seed {seed}: {wrong}");
    }
    conflicts.into_inner()
}

#[test]
fn the_judge_keeps_to_real_time_and_to_the_answers() {
    let event =
        |start, end, calls: &[(Call, Answer)]| Event { start, end, calls: calls.to_vec(), logged: None };
    let at = (1, 0);
    let made = (Call::Create(at), Answer::Done);
    let empty = (Call::List(1), Answer::Names(Vec::new()));
    let full = (Call::List(1), Answer::Names(vec![(0, false)]));
    let one = |event: Event| vec![event];
    // Side by side either answer is right; one after the other only the second.
    for seen in [&empty, &full] {
        let threads =
            [one(event(0, 9, std::slice::from_ref(&made))), one(event(1, 5, std::slice::from_ref(seen)))];
        assert_eq!(judge(&threads, &[]), Ok(()));
    }
    let late = |seen: &(Call, Answer)| {
        judge(
            &[one(event(0, 1, std::slice::from_ref(&made))), one(event(2, 3, std::slice::from_ref(seen)))],
            &[],
        )
    };
    assert!(late(&full).is_ok() && late(&empty).unwrap_err().contains("none of these"));
    // Two transactions that each make a name because the other name is missing.
    let other = (Call::List(0), Answer::Names((0..FIXED as u8).map(|name| (name, false)).collect()));
    let skew = [
        one(event(0, 9, &[empty.clone(), (Call::Create((0, 5)), Answer::Done)])),
        one(event(1, 8, &[other, made])),
    ];
    assert!(judge(&skew, &[]).is_err());
}
