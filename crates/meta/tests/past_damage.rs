//! Scans that pass blocks which cannot be read, over the real log and a pool without parity: they meet every
//! key that is in a readable block, and say when they have passed one.

use std::collections::BTreeMap;

use warpfire_env::Timestamp;
use warpfire_log::Log;
use warpfire_meta::{
    Admit, Background, Batch, Direction, Engine, EngineOptions, FoldResult, KeyRange, OlderValue,
    RelocateError, Relocator, ScanPage, Schema, SchemaError, Store,
};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld, mix};
use warpfire_units::{BLOCK_BYTES, Seq, SlicePtr};

const ZONE_BYTES: u64 = 256 << 10;
const ZONES: u64 = 64;
/// Zones 0 and 1 hold roots.
const FIRST_SEGMENT_ZONE: u64 = 2;
const KEYS: u64 = 4000;

/// Values are bytes without a meaning.
#[derive(Clone, Copy)]
struct PlainBytes;

impl Schema for PlainBytes {
    fn fold(
        &self,
        _: &[u8],
        _: OlderValue<'_>,
        _: &[&[u8]],
        _: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError> {
        unreachable!("the tests put no operands")
    }

    fn pointers(&self, _: &[u8], _: &[u8], _: bool, _: &mut dyn FnMut(SlicePtr)) -> Result<(), SchemaError> {
        Ok(())
    }

    fn relocate(
        &self,
        _: &[u8],
        _: &[u8],
        _: bool,
        _: &mut dyn Relocator,
        _: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        Ok(false)
    }
}

fn options() -> EngineOptions {
    EngineOptions {
        memtable_bytes: 16 << 10,
        block_cache_bytes: 16 << 10,
        log_bytes_max: 512 << 10,
        background: Background::Manual,
        read_only: false,
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("name/{:06}", mix(n) % 1_000_000).into_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A pool of one device with tables of several ages, and what they hold. No key has a value in memory.
fn filled(seed: u64) -> (SimWorld, Model) {
    let world = SimWorld::of(seed, 1, &DeviceSpec::conventional("flash", ZONES * ZONE_BYTES));
    let shape = CreateOptions { data: 1, parity: 0, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(world.devices(), &shape, &*world.random(), Timestamp::default());
    let (log, recovered) =
        Log::create(pool.expect("a blank device takes a pool")).expect("a new pool takes a log");
    let engine = Engine::open(log, recovered, PlainBytes, options()).expect("an empty log opens");
    let mut model = Model::new();
    for step in 0..KEYS * 2 {
        let drawn = mix(seed << 32 | step);
        let (key, mut batch) = (key(drawn % KEYS), Batch::new());
        if drawn >> 32 & 7 == 0 {
            batch.delete(&key);
            model.remove(&key);
        } else {
            let value = mix(drawn).to_le_bytes().repeat(1 + (drawn >> 40) as usize % 12);
            batch.put(&key, &value);
            model.insert(key, value);
        }
        engine.commit(&batch, None, Admit::User).expect("there is room");
        if step % 1500 == 1499 {
            engine.flush().expect("there is room");
        }
    }
    engine.flush().expect("there is room");
    engine.close().expect("a sound device does not fail");
    (world, model)
}

/// Opens the pool for reading; `None` if the log itself is hit.
fn reopen(world: &SimWorld) -> Option<Engine<Log, PlainBytes>> {
    let (pool, root) = Pool::open_for_reading(world.devices()).ok()?;
    let (log, recovered) = Log::open(pool, &root).ok()?;
    Engine::open(log, recovered, PlainBytes, EngineOptions { read_only: true, ..options() }).ok()
}

/// All entries of a range, page by page, and whether damage was passed; `None` if the scan fails.
fn scan(engine: &Engine<Log, PlainBytes>, range: KeyRange<'_>, mut page: ScanPage) -> Option<(Model, bool)> {
    let (mut found, mut has_passed) = (Model::new(), false);
    let mut start = range.start.to_vec();
    loop {
        let rest = KeyRange { start: &start, end: range.end };
        engine.scan(rest, Seq::MAX, Direction::Forward, 100, 1 << 20, &mut page).ok()?;
        has_passed |= page.has_passed_damage;
        for entry in page.iter() {
            assert!(found.insert(entry.key.to_vec(), entry.value.to_vec()).is_none(), "a key comes once");
        }
        let Some(last) = page.iter().last().filter(|_| page.more) else { return Some((found, has_passed)) };
        start = [last.key, &[0]].concat();
    }
}

#[test]
fn a_scan_past_damage_meets_every_key_that_can_be_read() {
    let (mut passed, mut exact_beside_damage) = (0, 0);
    for seed in 0..3 {
        let (world, model) = filled(seed);
        let sound = reopen(&world).expect("a sound pool opens");
        let all = KeyRange { start: b"", end: None };
        assert_eq!(scan(&sound, all, ScanPage::past_damage()), Some((model.clone(), false)));
        drop(sound);
        let sims = world.sims();
        let used: Vec<u64> = (FIRST_SEGMENT_ZONE * ZONE_BYTES..ZONES * ZONE_BYTES)
            .step_by(BLOCK_BYTES)
            .filter(|at| sims[0].peek(*at, BLOCK_BYTES).iter().any(|byte| *byte != 0))
            .collect();
        for case in 0..24 {
            let drawn = mix(seed << 20 | case);
            let hurt = world.fork();
            for n in 0..1 + drawn % 3 {
                let at = used[(mix(drawn + n) % used.len() as u64) as usize];
                hurt.sims()[0].poke(at, &[0xA5; BLOCK_BYTES]);
            }
            let Some(engine) = reopen(&hurt) else { continue };
            let readable = |key: &[u8]| {
                let mut value = Vec::new();
                engine.get(key, Seq::MAX, &mut value).ok().map(|is_there| is_there.then_some(value))
            };
            let (low, high) = (key(drawn % KEYS), key(mix(drawn) % KEYS));
            for (start, end) in [(&b""[..], None), (&low, Some(&high[..]))] {
                let range = KeyRange { start, end };
                let inside: Model = model
                    .iter()
                    .filter(|(key, _)| key.as_slice() >= start && end.is_none_or(|end| key.as_slice() < end))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                let (found, has_passed) =
                    scan(&engine, range, ScanPage::past_damage()).expect("damage ends no such scan");
                let strict = scan(&engine, range, ScanPage::default());
                assert_eq!(strict.is_none(), has_passed, "seed {seed} case {case}: both meet the damage");
                if has_passed {
                    passed += 1;
                } else {
                    assert_eq!(found, inside, "seed {seed} case {case}");
                    exact_beside_damage += 1;
                }
                for (key, value) in &inside {
                    match readable(key) {
                        Some(read) => {
                            assert_eq!(read.as_ref(), Some(value), "a read is right or fails");
                            assert_eq!(
                                found.get(key),
                                Some(value),
                                "seed {seed} case {case}: it can be read"
                            );
                        }
                        None => assert!(has_passed, "seed {seed} case {case}: a lost key is noticed"),
                    }
                }
            }
        }
    }
    assert!(passed > 10 && exact_beside_damage > 10, "{passed} and {exact_beside_damage}");
}
