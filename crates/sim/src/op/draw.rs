//! Draws operations: most fit the present state, and some do not.

use warpfire_fs::{FileKind, RenameMode};
use warpfire_sim_env::SimRandom;

use super::{Fill, Op, Span};
use crate::model::{Model, Name, PAGE, Path};
use crate::open_transactions::OpenTransactions;

/// The limits of a draw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Menu {
    /// Nodes above which new ones are drawn rarely.
    pub nodes: usize,
    /// Longest write.
    pub write_bytes_max: u64,
    /// Offsets of writes lie below this, except a few.
    pub offset_max: u64,
    /// Whether the store is sometimes closed and opened.
    pub reopens: bool,
    /// One operation in so many is a sync.
    pub one_sync_in: u64,
    /// Of a hundred operations, the number on transactions, slices and reading.
    pub together: u64,
    /// Whether directories are cloned.
    pub clones: bool,
}

impl Menu {
    /// Small files and few names: a state is cheap to make and to compare.
    pub const TINY: Menu = Menu {
        nodes: 16,
        write_bytes_max: 9_000,
        offset_max: 20_000,
        reopens: false,
        one_sync_in: 6,
        together: 40,
        clones: true,
    };
    /// Files of all sizes: inline, past that, and past a region.
    pub const WIDE: Menu = Menu {
        nodes: 60,
        write_bytes_max: 200_000,
        offset_max: 2_500_000,
        reopens: true,
        one_sync_in: 12,
        together: 35,
        clones: true,
    };
    /// Writes that fill a small pool again and again.
    pub const CRAMPED: Menu = Menu {
        nodes: 40,
        write_bytes_max: 1_500_000,
        offset_max: 3_000_000,
        reopens: true,
        one_sync_in: 25,
        together: 25,
        clones: true,
    };
}

/// Names of snapshots that are drawn, and of bookmarks.
const SNAPSHOTS: u64 = 3;

/// Most clones at a time: each is compared as often as the tree.
const CLONES_MAX: usize = 3;

/// A source of operations.
#[derive(Debug)]
pub struct OpSource {
    pub(super) random: SimRandom,
    pub(super) menu: Menu,
}

impl OpSource {
    /// The operations of a seed.
    #[must_use]
    pub fn new(seed: u64, menu: Menu) -> Self {
        OpSource { random: SimRandom::new(seed), menu }
    }

    /// The next operation, for this state of the model and these open transactions.
    pub fn next(&self, model: &Model, open_transactions: &OpenTransactions) -> Op {
        if self.random.one_in(self.menu.one_sync_in) {
            return Op::Sync;
        }
        if self.random.below(100) < self.menu.together {
            return self.together(model, open_transactions);
        }
        loop {
            let op = self.plain(model);
            // The model's transactions know no volume that is made or deleted beside them.
            let changes_volumes = matches!(op, Op::Clone(..) | Op::DropClone(_));
            if !changes_volumes || open_transactions.open().next().is_none() {
                return op;
            }
        }
    }

    /// An operation on names and files.
    pub(super) fn plain(&self, model: &Model) -> Op {
        let r = &self.random;
        let all = model.paths();
        let crowded = model.len() > self.menu.nodes;
        match r.below(100) {
            0..25 if crowded => self.remove(&all),
            0..7 => Op::Put(self.fresh(&all), self.fill(self.write_len())),
            7..12 => Op::Create(self.fresh(&all)),
            12..17 => Op::Mkdir(self.fresh(&all)),
            17..19 => Op::Symlink(self.fresh(&all), vec![b't'; self.len(1, 300)]),
            19..20 => Op::Mkfifo(self.fresh(&all)),
            20..25 => Op::Link(self.any(&all, |k| k != FileKind::Directory), self.fresh(&all)),
            25..35 => self.remove(&all),
            35..45 => self.rename(&all),
            45..60 => Op::Write(self.file(&all), self.offset(), self.fill(self.write_len())),
            60..67 => Op::Append(self.file(&all), self.fill(self.write_len())),
            67..80 => self.reshape(model, &all),
            80..88 => self.set(model, &all),
            88..90 => Op::Fsync(self.any(&all, |_| true)),
            90..93 => self.snapshot_or_bookmark(model),
            93..95 if self.menu.clones => self.clone_or_detach(model, &all),
            93..99 => Op::Background(1 + u32::try_from(r.below(4)).expect("below 4")),
            _ if self.menu.reopens => Op::Reopen,
            _ => Op::Sync,
        }
    }

    /// Makes or deletes a snapshot or a bookmark. Few snapshots exist at a time: each is compared as often as
    /// the tree.
    fn snapshot_or_bookmark(&self, model: &Model) -> Op {
        let r = &self.random;
        let named = |kind| format!("{kind}{}", r.below(SNAPSHOTS)).into_bytes();
        let (snapshot, mark) = (named("s"), named("b"));
        let (is_snapshot, is_bookmark) = (
            model.snapshots().any(|known| *known == snapshot),
            model.bookmarks().any(|known| *known == mark),
        );
        let kept = (0..SNAPSHOTS).map(|number| format!("s{number}").into_bytes());
        let kept = kept.into_iter().find(|name| model.snapshots().all(|known| known != name));
        match r.below(20) {
            18..20 if model.may_roll_back(&snapshot) && kept.is_some() => {
                Op::RollBack(snapshot, kept.expect("a name is free"))
            }
            // The name of the other kind: both share one set of names.
            0 => Op::Snapshot(mark),
            1 => Op::Bookmark(snapshot.clone(), snapshot),
            2..10 if is_bookmark && r.one_in(2) => Op::DropBookmark(mark),
            2..10 if is_snapshot || r.one_in(8) => Op::Bookmark(snapshot, mark),
            _ if is_snapshot => Op::DropSnapshot(snapshot),
            _ => Op::Snapshot(snapshot),
        }
    }

    /// Makes, detaches or deletes a clone.
    fn clone_or_detach(&self, model: &Model, all: &[(Path, FileKind)]) -> Op {
        let doors: Vec<Path> = model.doors().into_keys().collect();
        if doors.len() < CLONES_MAX && self.random.one_in(2) || doors.is_empty() {
            return Op::Clone(self.any(all, |kind| kind == FileKind::Directory), self.fresh(all));
        }
        let door = doors[self.len(0, doors.len() as u64 - 1)].clone();
        match self.random.below(5) {
            0..2 => Op::DropClone(door),
            _ => Op::Detach(door),
        }
    }

    pub(super) fn len(&self, least: u64, most: u64) -> usize {
        usize::try_from(least + self.random.below(most - least + 1)).expect("lengths fit memory")
    }

    /// Lengths of all magnitudes: as many below 10 as from 1,000 to 10,000.
    pub(super) fn write_len(&self) -> usize {
        let magnitude = self.random.below(u64::from(self.menu.write_bytes_max.ilog2()) + 1);
        self.len(1, (2u64 << magnitude).min(self.menu.write_bytes_max))
    }

    pub(super) fn offset(&self) -> u64 {
        match self.random.below(40) {
            0 => self.random.below(1 << 40),
            1..10 => 0,
            10..20 => self.random.below(self.menu.offset_max) / PAGE * PAGE,
            _ => self.random.below(self.menu.offset_max),
        }
    }

    pub(super) fn fill(&self, len: usize) -> Fill {
        Fill { len, seed: self.random.below(u64::MAX) }
    }

    /// An existing path of a wanted kind. One time in 30, or if there is none, a path that need not exist.
    pub(super) fn any(&self, all: &[(Path, FileKind)], wanted: impl Fn(FileKind) -> bool) -> Path {
        let fitting: Vec<&Path> = all
            .iter()
            .filter(|(path, kind)| !path.is_empty() && wanted(*kind))
            .map(|(path, _)| path)
            .collect();
        if fitting.is_empty() || self.random.one_in(30) {
            return self.fresh(all);
        }
        let nth = self.random.below(fitting.len() as u64);
        fitting[usize::try_from(nth).expect("an index")].clone()
    }

    pub(super) fn file(&self, all: &[(Path, FileKind)]) -> Path {
        self.any(all, |kind| kind == FileKind::Regular)
    }

    /// A path in a directory that need not exist yet. One time in 40, a path below any node.
    fn fresh(&self, all: &[(Path, FileKind)]) -> Path {
        let odd = self.random.one_in(40);
        let parents: Vec<&Path> = all
            .iter()
            .filter(|(path, kind)| (odd || *kind == FileKind::Directory) && path.len() < 12)
            .map(|(path, _)| path)
            .collect();
        let nth = self.random.below(parents.len() as u64);
        let mut path = parents[usize::try_from(nth).expect("an index")].clone();
        // Below a node that is no directory, a name that is too long would break two rules, and either error
        // is right.
        path.push(if odd { vec![b'a'] } else { self.name() });
        path
    }

    fn name(&self) -> Name {
        let letter = b'a' + u8::try_from(self.random.below(16)).expect("below 16");
        match self.random.below(60) {
            0 => vec![letter; 255],
            1 => vec![letter; 256],
            2 => vec![letter, 0xff, b' ', b'\n'],
            _ => vec![letter],
        }
    }

    fn remove(&self, all: &[(Path, FileKind)]) -> Op {
        match self.random.below(10) {
            0..3 => Op::Rmdir(self.any(all, |kind| kind == FileKind::Directory)),
            3 => Op::Unlink(self.any(all, |_| true)),
            _ => Op::Unlink(self.any(all, |kind| kind != FileKind::Directory)),
        }
    }

    fn rename(&self, all: &[(Path, FileKind)]) -> Op {
        let from = self.any(all, |_| true);
        match self.random.below(10) {
            0..4 => Op::Rename(from, self.fresh(all), RenameMode::Replace),
            4..8 => Op::Rename(from, self.any(all, |_| true), RenameMode::Replace),
            8 => Op::Rename(from, self.fresh(all), RenameMode::NoReplace),
            _ => Op::Rename(from, self.any(all, |_| true), RenameMode::Exchange),
        }
    }

    /// An operation that changes a file's size or bytes other than by writing.
    fn reshape(&self, model: &Model, all: &[(Path, FileKind)]) -> Op {
        let path = self.file(all);
        let size = model.size_bytes(&path).unwrap_or(0);
        let within = |bound: u64| self.random.below(bound.max(1));
        let span = Span { offset: within(size + PAGE), len: 1 + within(size + PAGE) };
        let shift = if self.random.one_in(2) {
            Span { offset: within(size + 1), len: 1 + within(3 * PAGE) }
        } else {
            Span { offset: within(size / PAGE + 1) * PAGE, len: (1 + within(4)) * PAGE }
        };
        match self.random.below(12) {
            0..2 => Op::Truncate(path, within(size + 1)),
            2 => Op::Truncate(path, size + self.offset()),
            3 => Op::Truncate(path, 0),
            4 => Op::Allocate(path, span),
            5..7 => Op::Punch(path, span),
            7 => Op::Insert(path, shift),
            8 => Op::Collapse(path, shift),
            _ => {
                let to = self.any(all, |kind| kind == FileKind::Regular);
                // A range is not copied onto itself.
                let at = if to == path { size + within(PAGE) } else { self.offset() };
                let len = span.len.min(self.menu.write_bytes_max * 4);
                Op::CopyRange(path, Span { offset: within(size + 1), len }, to, at)
            }
        }
    }

    fn set(&self, model: &Model, all: &[(Path, FileKind)]) -> Op {
        let r = &self.random;
        let path = self.any(all, |kind| kind != FileKind::Symlink);
        let plain = self.any(all, |kind| matches!(kind, FileKind::Regular | FileKind::Directory));
        let number = |bound| u32::try_from(r.below(bound)).expect("small");
        match r.below(8) {
            0 => Op::SetMode(path, number(0o1000)),
            1 => Op::SetOwner(path, number(100), number(100)),
            // From 1901 to 2174, so before and after the time of the clock.
            2 => Op::SetTime(path, i64::try_from(r.below(1 << 33)).expect("small") - (1 << 31)),
            3..6 => {
                let name = format!("user.{}", number(5)).into_bytes();
                let len = if r.one_in(5) { self.len(0, 5000) } else { self.len(0, 60) };
                Op::SetXattr(plain, name, self.fill(len))
            }
            _ => {
                let names = model.xattrs(&plain);
                let drawn = names.get(self.len(0, 4)).cloned();
                Op::RemoveXattr(plain, drawn.unwrap_or_else(|| b"user.none".to_vec()))
            }
        }
    }
}
