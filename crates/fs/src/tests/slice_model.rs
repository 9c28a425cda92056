//! Slicing calls against byte vectors: values are taken, split, joined and put elsewhere, and are kept while
//! their files change and are removed, and while the engine packs and cleans.

use warpfire_log::MemLog;
use warpfire_meta::{Storage, Store};

use super::engine::{LogEngine, format, open};
use super::{TestRandom, world_with};
use crate::acl::Caller;
use crate::{AllocMode, Fs, FsError, FsOptions, InsertSource, NewMode, NodeRef, Position, YankedSlice};

const ROOT: Caller<'static> = Caller::ROOT;
const FILES: usize = 4;
const KEPT_MAX: usize = 8;
const TWIN_BYTES_MAX: usize = 6 << 20;

/// The twin: each byte, `None` where there is a hole.
type Twin = Vec<Option<u8>>;

/// Files and yanked values, each with its twin.
struct Model<'f, E: Storage> {
    fs: &'f Fs<E>,
    draw: TestRandom,
    nodes: Vec<NodeRef>,
    twins: Vec<Twin>,
    kept: Vec<(YankedSlice, Twin)>,
    context: String,
}

fn name(which: usize) -> Vec<u8> {
    format!("file {which}").into_bytes()
}

impl<'f, E: Storage> Model<'f, E> {
    fn new(fs: &'f Fs<E>, seed: u64, twins: Vec<Twin>) -> Self {
        let find = |which| match fs.lookup(&ROOT, &fs.root(), &name(which)) {
            Ok(node) => node,
            Err(_) => fs.create(&ROOT, &fs.root(), &name(which), NewMode::exact(0o644)).unwrap(),
        };
        let nodes = (0..FILES).map(find).collect();
        Model { fs, draw: TestRandom(seed), nodes, twins, kept: Vec::new(), context: String::new() }
    }

    fn file(&mut self) -> usize {
        self.draw.below(FILES as u64) as usize
    }

    fn len(&mut self) -> u64 {
        let most = [1, 64, 5_000, 70_000, 1_500_000][self.draw.below(5) as usize];
        1 + self.draw.below(most)
    }

    fn place(&mut self, which: usize) -> u64 {
        let size = self.twins[which].len() as u64;
        match self.draw.below(8) {
            0 => 0,
            1 => size,
            2 => size + self.draw.below(3000),
            _ => self.draw.below(size + 1),
        }
    }

    fn overwrite(&mut self, which: usize, at: usize, bytes: &[Option<u8>]) {
        let twin = &mut self.twins[which];
        if twin.len() < at + bytes.len() && !bytes.is_empty() {
            twin.resize(at + bytes.len(), None);
        }
        if !bytes.is_empty() {
            twin[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn write(&mut self) {
        let which = self.file();
        let len = self.len();
        let at = self.place(which);
        let fill = self.draw.next() as u8;
        let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add((i / 3) as u8)).collect();
        self.fs.write(&ROOT, &self.nodes[which], Position::At(at), &data).unwrap();
        let shown: Twin = data.into_iter().map(Some).collect();
        self.overwrite(which, at as usize, &shown);
    }

    fn yank(&mut self) {
        let which = self.file();
        let len = self.len();
        let at = self.place(which);
        let slice = self.fs.yank(&self.nodes[which], at, len).unwrap();
        let twin: Twin = self.twins[which].iter().skip(at as usize).take(len as usize).copied().collect();
        assert_eq!(slice.len_bytes(), twin.len() as u64, "{}", self.context);
        assert_eq!(slice.data_bytes(), twin.iter().flatten().count() as u64, "{}", self.context);
        self.kept.push((slice, twin));
        if self.kept.len() > KEPT_MAX {
            let gone = self.draw.below(KEPT_MAX as u64) as usize;
            self.kept.swap_remove(gone);
        }
    }

    /// One of the values: whole, clipped, or joined with another.
    fn some(&mut self) -> Option<(YankedSlice, Twin)> {
        let count = self.kept.len() as u64;
        let (slice, twin) = self.kept.get(self.draw.below(count.max(1)) as usize)?.clone();
        let at = self.draw.below(twin.len() as u64 + 2);
        let (left, right) = slice.split_at(at);
        let (left_twin, right_twin) = twin.split_at((at as usize).min(twin.len()));
        Some(match self.draw.below(4) {
            0 => (left, left_twin.to_vec()),
            1 => (right, right_twin.to_vec()),
            2 => {
                let swapped = YankedSlice::join(&[right, left]).unwrap().unwrap();
                (swapped, [right_twin, left_twin].concat())
            }
            _ => (slice, twin),
        })
    }

    fn paste(&mut self) {
        let Some((slice, twin)) = self.some() else { return };
        let which = self.file();
        let at = self.place(which);
        let position = if self.draw.below(3) == 0 { Position::End } else { Position::At(at) };
        let size = self.twins[which].len() as u64;
        let went = self.fs.paste(&ROOT, &self.nodes[which], position, &slice).unwrap();
        assert_eq!(went, if position == Position::End { size } else { at }, "{}", self.context);
        self.overwrite(which, went as usize, &twin);
    }

    fn insert(&mut self) {
        let which = self.file();
        let at = self.place(which);
        let taken = self.some();
        let (inserted, twin) = match &taken {
            Some((slice, twin)) if self.draw.below(4) > 0 => (InsertSource::Slice(slice), twin.clone()),
            _ => {
                let len = self.len();
                (InsertSource::Hole(len), vec![None; len as usize])
            }
        };
        let done = self.fs.insert_range(&ROOT, &self.nodes[which], at, inserted);
        let within = at <= self.twins[which].len() as u64;
        assert_eq!(done.is_ok(), within, "{}: {done:?}", self.context);
        if within {
            self.twins[which].splice(at as usize..at as usize, twin);
        }
    }

    fn remove(&mut self) {
        let which = self.file();
        let len = self.len();
        let at = self.place(which);
        self.fs.remove_range(&ROOT, &self.nodes[which], at, len).unwrap();
        let size = self.twins[which].len();
        self.twins[which].drain((at as usize).min(size)..((at + len) as usize).min(size));
    }

    fn concat(&mut self) {
        let target = self.file();
        let sources: Vec<usize> = (0..self.draw.below(4)).map(|_| self.file()).collect();
        let twin: Twin = sources.iter().flat_map(|source| self.twins[*source].clone()).collect();
        if twin.len() > TWIN_BYTES_MAX {
            self.fs.truncate(&ROOT, &self.nodes[target], 0).unwrap();
            self.twins[target].clear();
            return;
        }
        let nodes: Vec<NodeRef> = sources.iter().map(|source| self.nodes[*source].clone()).collect();
        let len = self.fs.concat(&ROOT, &self.nodes[target], &nodes).unwrap();
        assert_eq!(len, twin.len() as u64, "{}", self.context);
        self.twins[target] = twin;
    }

    fn replace(&mut self) {
        let Some((slice, twin)) = self.some() else { return };
        let which = self.file();
        self.fs.replace_content(&ROOT, &self.nodes[which], &slice).unwrap();
        self.twins[which] = twin;
    }

    fn punch(&mut self) {
        let which = self.file();
        let len = self.len();
        let at = self.place(which);
        self.fs.fallocate(&ROOT, &self.nodes[which], AllocMode::PunchHole, at, len).unwrap();
        self.twins[which].iter_mut().skip(at as usize).take(len as usize).for_each(|byte| *byte = None);
    }

    /// Replaces a file by its own bytes in small pieces, in another order, so that reading it defragments it.
    fn shred(&mut self) {
        const PIECE: usize = 1000;
        let which = self.file();
        let order: Vec<usize> = (0..self.twins[which].len() / PIECE).rev().collect();
        let place = |n: usize| (n * PIECE) as u64;
        let pieces: Vec<YankedSlice> = order
            .iter()
            .map(|n| self.fs.yank(&self.nodes[which], place(*n), PIECE as u64).unwrap())
            .collect();
        let Some(slice) = YankedSlice::join(&pieces).unwrap() else { return };
        self.fs.replace_content(&ROOT, &self.nodes[which], &slice).unwrap();
        let twin = &self.twins[which];
        self.twins[which] = order.iter().flat_map(|n| twin[n * PIECE..(n + 1) * PIECE].to_vec()).collect();
    }

    /// Removes the file; values that were taken from it stay.
    fn unlink(&mut self) {
        let which = self.file();
        self.fs.unlink(&ROOT, &self.fs.root(), &name(which)).unwrap();
        self.nodes[which] =
            self.fs.create(&ROOT, &self.fs.root(), &name(which), NewMode::exact(0o644)).unwrap();
        self.fs.reap().unwrap();
        self.twins[which].clear();
    }

    fn check(&mut self) {
        let which = self.file();
        let attr = self.fs.getattr(&self.nodes[which]);
        let context = &self.context;
        let twin = &self.twins[which];
        assert_eq!(attr.size_bytes, twin.len() as u64, "{context}: size of {which}");
        let allocated = twin.iter().flatten().count() as u64;
        assert_eq!(attr.allocated_bytes, allocated, "{context}: allocated bytes of {which}");
        let mut bytes = vec![0xee; twin.len()];
        assert_eq!(self.fs.read(&self.nodes[which], 0, &mut bytes).unwrap(), twin.len(), "{context}");
        assert_same(&bytes, twin, &format!("{context}: file {which}"));
        if let Some((slice, twin)) = self.some() {
            let from = self.draw.below(twin.len() as u64 + 1);
            let mut bytes = vec![0xee; twin.len() - from as usize + 3];
            let read = self.fs.read_yanked_slice(&slice, from, &mut bytes).unwrap();
            assert_eq!(read, bytes.len() - 3, "{}", self.context);
            assert_same(&bytes[..read], &twin[from as usize..], &format!("{}: a value", self.context));
        }
    }

    fn run(&mut self, steps: u64, what: &str, upkeep: &dyn Fn(u64)) {
        for step in 0..steps {
            self.context = format!("{what} step {step}");
            match self.draw.below(14) {
                0 | 1 => self.write(),
                2..=4 => self.yank(),
                5 | 6 => self.paste(),
                7 => self.insert(),
                8 => self.remove(),
                9 => self.concat(),
                10 => self.punch(),
                11 => self.replace(),
                12 => self.shred(),
                _ => self.unlink(),
            }
            for which in 0..FILES {
                if self.twins[which].len() > TWIN_BYTES_MAX {
                    self.fs.remove_range(&ROOT, &self.nodes[which], 1, u64::MAX).unwrap();
                    self.twins[which].truncate(1);
                }
            }
            upkeep(self.draw.next());
            self.check();
        }
    }
}

fn assert_same(bytes: &[u8], twin: &[Option<u8>], what: &str) {
    if let Some(wrong) = (0..bytes.len()).find(|i| bytes[*i] != twin[*i].unwrap_or(0)) {
        panic!("{what}: byte {wrong} is {} and should be {:?}", bytes[wrong], twin[wrong]);
    }
}

#[test]
fn slicing_calls_agree_with_byte_vectors() {
    let mut defragmented = 0;
    for seed in 0..25 {
        let (engine, clock) = world_with();
        let mut twins = vec![Twin::new(); FILES];
        for life in 0..2 {
            let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
            let mut model = Model::new(&fs, seed * 10 + life, twins);
            let sweep = |draw: u64| {
                if draw.is_multiple_of(4) {
                    _ = fs.engine().background_step().unwrap();
                }
            };
            model.run(60, &format!("seed {seed} life {life}"), &sweep);
            twins = model.twins;
            fs.sync().unwrap();
            defragmented += fs.defragment_counts().regions;
        }
        super::check::check(&*engine, &format!("seed {seed}"));
    }
    assert!(defragmented > 0, "some file in small pieces was read");
}

#[test]
fn slicing_calls_agree_with_byte_vectors_while_the_engine_packs_cleans_and_loses_power() {
    let mut defragmented = 0;
    for seed in 0..12 {
        let mut log = format();
        let mut twins = vec![Twin::new(); FILES];
        for life in 0..3 {
            let is_new = life == 0;
            let fs: Fs<LogEngine> = open(
                log,
                |engine, clock, u, g| if is_new { Fs::format(engine, clock, u, g) } else { Ok(()) },
            );
            let mut model = Model::new(&fs, seed * 10 + life, twins);
            let upkeep = |draw: u64| match draw % 6 {
                0 => fs.engine().flush().unwrap(),
                1 | 2 => _ = fs.engine().background_step().unwrap(),
                3 => fs.engine().compact().unwrap(),
                _ => {}
            };
            let what = format!("seed {seed} life {life}");
            model.run(25, &what, &upkeep);
            fs.sync().unwrap();
            twins = model.twins;
            super::check::check(&**fs.engine(), &what);
            defragmented += fs.defragment_counts().regions;
            let mem: &MemLog = fs.engine().log();
            log = mem.crash();
        }
    }
    assert!(defragmented > 0, "some file in small pieces was read");
}

#[test]
fn a_value_of_a_pool_that_was_reopened_is_foreign() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let node = fs.create(&ROOT, &fs.root(), b"f", NewMode::exact(0o644)).unwrap();
    fs.write(&ROOT, &node, Position::End, &[7; 100_000]).unwrap();
    let slice = fs.yank(&node, 0, 50_000).unwrap();
    let other = super::world();
    let elsewhere = other.create(&ROOT, &other.root(), b"f", NewMode::exact(0o644)).unwrap();
    let refused = other.paste(&ROOT, &elsewhere, Position::End, &slice);
    assert!(matches!(refused, Err(FsError::ForeignSlice)), "{refused:?}");
    drop((node, fs));
    let refused = other.insert_range(&ROOT, &elsewhere, 0, InsertSource::Slice(&slice));
    assert!(matches!(refused, Err(FsError::ForeignSlice)), "{refused:?}");
    assert_eq!(other.getattr(&elsewhere).size_bytes, 0);
}
