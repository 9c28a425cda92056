//! The engine over the real log and pool, on simulated devices that lose power.

use std::collections::BTreeMap;

use warpfire_env::Timestamp;
use warpfire_log::Log;
use warpfire_meta::{
    Admit, Background, Batch, Direction, Engine, EngineOptions, KeyRange, PlainSchema, ScanPage, Store,
};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{Cut, DeviceSpec, DistinctNumbers, SimWorld, mix};
use warpfire_units::Seq;

type RealEngine = Engine<Log, PlainSchema>;

const ZONE_BYTES: u64 = 256 << 10;
const DEVICE_BYTES: u64 = 64 * ZONE_BYTES;

fn options() -> EngineOptions {
    EngineOptions {
        memtable_bytes: 128 << 10,
        // With room for the blocks in which the cursors of some 25 runs begin.
        block_cache_bytes: 512 << 10,
        log_bytes_max: 512 << 10,
        background: Background::Manual,
        read_only: false,
    }
}

fn create(world: &SimWorld) -> RealEngine {
    let shape = CreateOptions { data: 2, parity: 1, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(world.devices(), &shape, &*world.random(), Timestamp::default());
    let pool = pool.expect("blank devices take a pool");
    let (log, recovered) = Log::create(pool).expect("a new pool takes a log");
    Engine::open(log, recovered, PlainSchema, options()).expect("what the log recovers opens")
}

fn reopen(world: &SimWorld) -> RealEngine {
    let (pool, root) =
        Pool::open_degraded(world.devices(), &DistinctNumbers).expect("a power cut leaves the pool");
    let (log, recovered) = Log::open(pool, &root).expect("a power cut leaves the log");
    Engine::open(log, recovered, PlainSchema, options()).expect("what the log recovers opens")
}

/// The n-th commit of every history: keys are overwritten again and again, some are deleted.
fn change(n: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let key = format!("directory/{:05}", mix(n) % 2000).into_bytes();
    (key, (!n.is_multiple_of(5)).then(|| n.to_le_bytes().repeat(1 + (mix(n) % 40) as usize)))
}

fn commit(engine: &RealEngine, n: u64) -> Seq {
    let (key, value) = change(n);
    let mut batch = Batch::new();
    match &value {
        Some(value) => batch.put(&key, value),
        None => batch.delete(&key),
    }
    engine.commit(&batch, None, Admit::User).expect("there is room")
}

/// The map after the commits up to `last`.
fn expected(last: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut map = BTreeMap::new();
    for (key, value) in (1..=last).map(change) {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
    map
}

fn assert_holds(engine: &RealEngine, last: u64, context: &str) {
    let expected = expected(last);
    let mut value = Vec::new();
    for n in 0..2000 {
        let key = format!("directory/{n:05}").into_bytes();
        let found = engine.get(&key, Seq::MAX, &mut value).expect("tables read back").then_some(&value);
        assert_eq!(found, expected.get(&key), "{context}");
    }
}

#[test]
fn power_cuts_leave_a_commit_no_older_than_the_last_sync() {
    for seed in 0..6u64 {
        let mut world = SimWorld::of(seed, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
        let mut engine = create(&world);
        let (mut last, mut synced) = (0, 0);
        for life in 0..5u64 {
            let length = 500 + mix(seed * 100 + life) % 3000;
            for n in last + 1..=last + length {
                let seq = commit(&engine, n);
                assert_eq!(seq, Seq(n));
                if mix(n ^ seed).is_multiple_of(50) {
                    engine.sync(seq).unwrap();
                    synced = n;
                }
                if n % 64 == 0 {
                    engine.background_step().unwrap();
                }
            }
            let cut = match life % 3 {
                0 => Cut::LoseAll,
                1 => Cut::KeepAll,
                _ => Cut::Subset(mix(seed ^ life)),
            };
            world = world.cut(&cut);
            engine = reopen(&world);
            last = engine.seq(&engine.snapshot()).0;
            let context = format!("seed {seed}, life {life}");
            assert!(last >= synced, "{context}: {last} is older than {synced}");
            assert_holds(&engine, last, &context);
        }
        engine.close().unwrap();
        assert_holds(&reopen(&world), last, &format!("seed {seed}, closed"));
    }
}

#[test]
fn an_engine_that_only_reads_shows_the_same_and_writes_nothing() {
    for seed in 0..4u64 {
        let world = SimWorld::of(seed, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
        let engine = create(&world);
        for n in 1..=4000 {
            let seq = commit(&engine, n);
            if mix(n ^ seed).is_multiple_of(50) {
                engine.sync(seq).unwrap();
            }
            if n % 64 == 0 && n < 2000 {
                engine.background_step().unwrap();
            }
        }
        let world = world.cut(&Cut::Seeded(seed));
        let (pool, root) = Pool::open_for_reading(world.devices()).unwrap();
        let (log, recovered) = Log::open(pool, &root).unwrap();
        let options = EngineOptions { read_only: true, ..options() };
        let reader = Engine::open(log, recovered, PlainSchema, options).unwrap();
        let last = reader.seq(&reader.snapshot()).0;
        assert_holds(&reader, last, &format!("seed {seed}, read"));
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        let refused = reader.commit(&batch, None, Admit::Reserve).unwrap_err();
        assert_eq!(refused.to_string(), "the pool is open for reading only");
        reader.sync(Seq::MAX).unwrap();
        reader.background_step().unwrap_err();
        reader.flush().unwrap_err();
        reader.compact().unwrap_err();
        reader.close().unwrap();
        assert_holds(&reader, last, &format!("seed {seed}, closed"));
        drop(reader);
        assert_eq!(world.changes_asked(), 0, "seed {seed}");
        let writer = reopen(&world);
        assert_eq!(writer.seq(&writer.snapshot()).0, last, "seed {seed}");
    }
}

/// Records of about 120 bytes, all in tables, none in memory.
fn filled_and_reopened(world: &SimWorld, records: u64) -> RealEngine {
    let engine = create(world);
    let mut batch = Batch::new();
    for n in 0..records {
        batch.put(format!("directory/{n:08}").as_bytes(), &[b'v'; 100]);
        if batch.len() == 100 || n + 1 == records {
            engine.commit(&batch, None, Admit::User).expect("there is room");
            batch.clear();
        }
    }
    engine.close().expect("nothing fails");
    reopen(world)
}

#[test]
fn a_cold_scan_reads_many_blocks_at_once() {
    const RECORDS: u64 = 20_000;
    let world = SimWorld::of(3, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    for direction in [Direction::Forward, Direction::Backward] {
        let world = world.fork();
        let engine = filled_and_reopened(&world, RECORDS);
        let before = engine.log().pool().counters().total;
        let (mut page, mut seen) = (ScanPage::default(), 0);
        let (mut start, mut end) = (Vec::new(), None);
        loop {
            let range = KeyRange { start: &start, end: end.as_deref() };
            engine.scan(range, Seq::MAX, direction, 500, 1 << 20, &mut page).expect("tables read back");
            seen += page.len() as u64;
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
            match direction {
                Direction::Forward => start = [last.key, &[0]].concat(),
                Direction::Backward => end = Some(last.key.to_vec()),
            }
        }
        assert_eq!(seen, RECORDS);
        let after = engine.log().pool().counters().total;
        // Tables of 64 KiB in stripes of two columns: the least that reading ahead can gain.
        let (reads, blocks) = (after.reads - before.reads, (after.read_bytes - before.read_bytes) / 4096);
        assert!(reads * 3 < blocks, "{direction:?}: {reads} reads for {blocks} blocks");
        // The two-fold room is for headers, blocks read twice where runs begin, and chunks that hold more
        // than tables.
        assert!(blocks * 4096 < 2 * RECORDS * 125, "{direction:?}: {blocks} blocks for {RECORDS} records");
    }
}
