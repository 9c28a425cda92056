//! Full pools recover: with any contents, deletion always works, and afterwards there is room again.

use std::collections::BTreeMap;

use warpfire_env::Timestamp;
use warpfire_log::{Admit, Log, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::Seq;

use crate::testing::{ListSchema, Rng, pointer_item, text_item};
use crate::{Background, Batch, CommitError, Engine, EngineOptions, MetaError, SliceStore, Store};

type ListEngine<L> = Engine<L, ListSchema>;

const ZONE_BYTES: u64 = 256 << 10;

/// Texts up to this length are put as they are; longer ones are written as slices first.
const TEXT_BYTES_MAX: usize = 3000;

/// Refusals in a row after which a pool counts as full.
const REFUSALS: u32 = 8;

/// What an empty map may leave: tables of a few entries, and half-empty segments that are still written.
const LEFT_LIVE_BYTES: u64 = 64 << 10;

fn is_full(e: &CommitError) -> bool {
    matches!(e, CommitError::Failed(e) if e.is_no_space())
}

struct FullPool<L: LogStore> {
    engine: ListEngine<L>,
    rng: Rng,
    /// Length of each key's value.
    model: BTreeMap<u64, usize>,
    syncs_one_in: u64,
    context: String,
}

impl<L: LogStore> FullPool<L> {
    fn new(log: L, recovered: RecoveredLog, seed: u64, context: &str) -> Self {
        let mut rng = Rng(seed);
        let options = EngineOptions {
            memtable_bytes: (32 << 10) << rng.below(6),
            block_cache_bytes: 64 << 10,
            log_bytes_max: (8 << 10) << rng.below(7),
            background: Background::Manual,
            read_only: false,
        };
        let engine = Engine::open(log, recovered, ListSchema, options).unwrap();
        let syncs_one_in = [2, 20, 400][rng.below(3) as usize];
        FullPool {
            engine,
            rng,
            model: BTreeMap::new(),
            syncs_one_in,
            context: format!("{context}, seed {seed}"),
        }
    }

    fn put(&mut self, key: u64, len: usize) -> Result<(), CommitError> {
        let bytes = vec![key as u8; len];
        let mut batch = Batch::new();
        if len <= TEXT_BYTES_MAX {
            batch.put(&key.to_be_bytes(), &text_item(&bytes));
            return self.engine.commit(&batch, None, Admit::User).map(drop);
        }
        let stream = if len < 16 << 10 { Stream::Small } else { Stream::Large };
        let slices = self.engine.write(stream, &bytes, Admit::User)?;
        let items: Vec<Vec<u8>> = slices.iter().map(|s| pointer_item(*s)).collect();
        batch.put(&key.to_be_bytes(), &items.concat());
        let done = self.engine.commit(&batch, None, Admit::User).map(drop);
        self.engine.release(&slices);
        done
    }

    fn now_and_then(&mut self) {
        if self.rng.below(self.syncs_one_in) == 0 {
            self.engine.sync(Seq::MAX).unwrap_or_else(|e| panic!("{}: sync: {e}", self.context));
        }
        if self.rng.below(100) == 0 {
            let stepped = self.engine.background_step();
            assert!(
                stepped.as_ref().map_or_else(MetaError::is_no_space, |_| true),
                "{}: {stepped:?}",
                self.context
            );
        }
    }

    /// Puts values of all sizes until none fits. Returns the number of bytes that did.
    fn fill(&mut self) -> usize {
        let (mut refusals, mut bytes) = (0, 0);
        while refusals < REFUSALS {
            let len = match self.rng.below(3) {
                0 => 100 + self.rng.below(900) as usize,
                1 => 1000 + self.rng.below(9_000) as usize,
                _ => 10_000 + self.rng.below(50_000) as usize,
            };
            let key = self.rng.below(3000);
            match self.put(key, len) {
                Ok(()) => {
                    bytes += len;
                    self.model.insert(key, len);
                }
                Err(e) if is_full(&e) => refusals += 1,
                Err(e) => panic!("{}: {e}", self.context),
            }
            self.now_and_then();
        }
        bytes
    }

    /// Deletes about one key in `one_in`.
    fn delete(&mut self, one_in: u64) {
        let keys: Vec<u64> = self.model.keys().copied().collect();
        for key in keys {
            if self.rng.below(one_in) != 0 {
                continue;
            }
            let mut batch = Batch::new();
            batch.delete(&key.to_be_bytes());
            if let Err(e) = self.engine.commit(&batch, None, Admit::Reserve) {
                panic!("{}: delete: {e}; {:?}; {:?}", self.context, self.engine.log().space(), self.engine);
            }
            self.model.remove(&key);
            self.now_and_then();
        }
    }

    fn rest(&mut self) {
        self.engine.sync(Seq::MAX).unwrap_or_else(|e| panic!("{}: sync: {e}", self.context));
        let mut steps = 0;
        while self.engine.background_step().unwrap_or_else(|e| {
            panic!("{}: step: {e}; {:?}; {:?}", self.context, self.engine.log().space(), self.engine)
        }) {
            steps += 1;
            assert!(steps < 10_000, "{}: background work never ends", self.context);
        }
    }

    fn assert_holds(&self) {
        let mut found = Vec::new();
        for key in 0..3000 {
            let there = self.engine.get(&u64::to_be_bytes(key), Seq::MAX, &mut found).unwrap();
            assert_eq!(there, self.model.contains_key(&key), "{}: key {key}", self.context);
        }
    }

    fn assert_empty(&mut self) {
        self.rest();
        self.engine.compact().unwrap_or_else(|e| {
            panic!("{}: compact: {e}; {:?}; {:?}", self.context, self.engine.log().space(), self.engine)
        });
        self.rest();
        self.assert_holds();
        let space = self.engine.log().space();
        assert!(space.live_bytes <= LEFT_LIVE_BYTES, "{}: {space:?}", self.context);
    }

    /// Fills and empties; fills again, and ages by deleting half and filling up.
    fn live(&mut self, rounds: u64) {
        let first = self.fill();
        self.assert_holds();
        self.delete(1);
        self.assert_empty();
        let second = self.fill();
        assert!(second >= first / 2, "{}: {first} bytes fitted at first, {second} then", self.context);
        for _ in 0..rounds {
            self.delete(2);
            self.fill();
        }
        self.assert_holds();
        self.delete(1);
        self.assert_empty();
    }
}

fn over_memory(seed: u64, rounds: u64) {
    let segments = 18 + seed % 20;
    let options = MemLogOptions { capacity_bytes: segments * (256 << 10), segment_bytes: 256 << 10 };
    FullPool::new(MemLog::with_options(options), RecoveredLog::empty(), seed, "in memory").live(rounds);
}

fn over_devices(seed: u64, data: u16, parity: u8, rounds: u64) {
    let zones = 16 + seed % 22;
    let spec = DeviceSpec::append_only("flash", zones * ZONE_BYTES);
    let world = SimWorld::of(seed, usize::from(data) + usize::from(parity), &spec);
    let shape = CreateOptions { data, parity, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(world.devices(), &shape, &*world.random(), Timestamp::default()).unwrap();
    let (log, recovered) = Log::create(pool).unwrap();
    FullPool::new(log, recovered, seed, &format!("{data}+{parity} of {zones} zones")).live(rounds);
}

/// Seeds per kind of pool; `WARPFIRE_FULL_SEEDS` tries more.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("WARPFIRE_FULL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn a_full_log_in_memory_comes_back() {
    seeds().for_each(|seed| over_memory(seed, 3));
}

#[test]
fn a_full_pool_of_one_device_comes_back() {
    seeds().for_each(|seed| over_devices(seed, 1, 0, 3));
}

#[test]
fn a_full_pool_with_parity_comes_back() {
    seeds().for_each(|seed| over_devices(seed, 2, 1, 3));
}

#[test]
fn a_pool_that_is_full_again_and_again_comes_back() {
    over_devices(1, 1, 0, 20);
    over_devices(2, 2, 1, 20);
}

/// A caller that pins the slices of its commit finds room before. Under the pin reclaim frees nothing.
#[test]
fn a_commit_under_a_pin_finds_room_before_it() {
    for seed in 0..3 {
        let spec = DeviceSpec::append_only("flash", 24 * ZONE_BYTES);
        let world = SimWorld::of(seed, 1, &spec);
        let shape = CreateOptions { data: 1, parity: 0, zone_bytes: Some(ZONE_BYTES), force: false };
        let pool = Pool::create(world.devices(), &shape, &*world.random(), Timestamp::default()).unwrap();
        let (log, recovered) = Log::create(pool).unwrap();
        let mut full = FullPool::new(log, recovered, seed, "under pins");
        full.fill();
        full.delete(2);
        full.engine.sync(Seq::MAX).unwrap();
        for key in 10_000..10_100 {
            full.engine.find_room(1000, Admit::User);
            let _pin = full.engine.pin().unwrap();
            full.put(key, 500).unwrap_or_else(|e| panic!("seed {seed}, key {key}: {e}"));
        }
    }
}
