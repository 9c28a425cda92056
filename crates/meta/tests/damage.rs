//! Flash that rots under the engine, over the real log and pool of 4 + 2 devices: the engine writes
//! reconstructed bytes elsewhere as soon as it meets damage. Bytes beyond parity stay an error and stop
//! nothing else.

use warpfire_env::Timestamp;
use warpfire_log::{Log, LogStore};
use warpfire_meta::{
    Admit, Background, Batch, Engine, EngineOptions, FoldResult, OlderValue, RelocateError, Relocator,
    Schema, SchemaError, SliceStore, Store, Stream,
};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, Fault, OpClass, SimWorld, mix};
use warpfire_units::{BLOCK_BYTES, SegmentId, Seq, SlicePtr};

const ZONE_BYTES: u64 = 256 << 10;
const ZONES: u64 = 64;

/// Zones 0 and 1 hold roots.
const FIRST_SEGMENT_ZONE: u64 = 2;

const KEYS: u64 = 600;

/// Every value is the pointer to one slice.
#[derive(Clone, Copy)]
struct OnePointer;

fn encode(slice: SlicePtr) -> Vec<u8> {
    let mut value = slice.segment.get().to_le_bytes().to_vec();
    value.extend(slice.offset_bytes.to_le_bytes());
    value.extend(slice.len_bytes.to_le_bytes());
    value
}

fn decode(value: &[u8]) -> SlicePtr {
    let number = |from: usize| u64::from_le_bytes(value[from..from + 8].try_into().expect("eight bytes"));
    SlicePtr {
        segment: SegmentId::new(number(0)).expect("segments count from 1"),
        offset_bytes: number(8),
        len_bytes: u32::from_le_bytes(value[16..20].try_into().expect("four bytes")),
    }
}

impl Schema for OnePointer {
    fn fold(
        &self,
        _: &[u8],
        _: OlderValue<'_>,
        _: &[&[u8]],
        _: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError> {
        unreachable!("the tests put no operands")
    }

    fn pointers(
        &self,
        _: &[u8],
        value: &[u8],
        _: bool,
        visit: &mut dyn FnMut(SlicePtr),
    ) -> Result<(), SchemaError> {
        visit(decode(value));
        Ok(())
    }

    fn relocate(
        &self,
        _: &[u8],
        value: &[u8],
        _: bool,
        relocator: &mut dyn Relocator,
        out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        let Some(moved) = relocator.move_slice(decode(value))? else { return Ok(false) };
        assert_eq!(moved.len(), 1, "short slices stay whole");
        *out = encode(moved[0]);
        Ok(true)
    }
}

type RealEngine = Engine<Log, OnePointer>;

fn options() -> EngineOptions {
    EngineOptions {
        memtable_bytes: 16 << 10,
        block_cache_bytes: 16 << 10,
        log_bytes_max: 512 << 10,
        background: Background::Manual,
        read_only: false,
    }
}

fn world() -> SimWorld {
    SimWorld::of(7, 6, &DeviceSpec::append_only("flash", ZONES * ZONE_BYTES))
}

fn create(world: &SimWorld) -> RealEngine {
    let shape = CreateOptions { data: 4, parity: 2, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(world.devices(), &shape, &*world.random(), Timestamp::default());
    let pool = pool.expect("blank devices take a pool");
    let (log, recovered) = Log::create(pool).expect("a new pool takes a log");
    Engine::open(log, recovered, OnePointer, options()).expect("what the log recovers opens")
}

fn reopen(world: &SimWorld) -> RealEngine {
    let (pool, root) =
        Pool::open_degraded(world.devices(), &DistinctNumbers).expect("the devices hold a pool");
    let (log, recovered) = Log::open(pool, &root).expect("the pool holds a log");
    Engine::open(log, recovered, OnePointer, options()).expect("what the log recovers opens")
}

fn key(n: u64) -> Vec<u8> {
    format!("file/{:04}", mix(n) % 10_000).into_bytes()
}

fn content(n: u64) -> Vec<u8> {
    mix(n).to_le_bytes().repeat(300 + (mix(n) % 500) as usize)
}

fn write(engine: &RealEngine, keys: std::ops::Range<u64>) {
    for n in keys {
        let slices = engine.log().append(Stream::Large, &content(n)).expect("there is room");
        let mut batch = Batch::new();
        batch.put(&key(n), &encode(slices[0]));
        engine.commit(&batch, None, Admit::User).expect("there is room");
        engine.release(&slices);
    }
    engine.flush().expect("there is room");
}

/// The bytes of the key's slice; `None` if they are lost.
fn read(engine: &RealEngine, n: u64) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    assert!(engine.get(&key(n), Seq::MAX, &mut value).ok()?, "key {n} was put");
    let slice = decode(&value);
    let mut bytes = vec![0; slice.len_bytes as usize];
    engine.read(&mut [(slice, &mut bytes)]).ok()?;
    Some(bytes)
}

fn assert_whole(engine: &RealEngine) {
    // Where two numbers share a key, the later one's content is there.
    let newest = |n: u64| (n..KEYS).rev().find(|m| key(*m) == key(n)).expect("n itself");
    for n in 0..KEYS {
        assert_eq!(read(engine, n), Some(content(newest(n))), "key {n}");
    }
}

/// Flips a bit in every block of some devices' zones.
fn rot(world: &SimWorld, devices: &[usize], zones: std::ops::Range<u64>) {
    for device in devices {
        for at in (zones.start * ZONE_BYTES..zones.end * ZONE_BYTES).step_by(BLOCK_BYTES) {
            world.sims()[*device].rot(at, (mix(at) % 32_768) as usize);
        }
    }
}

fn work_until_idle(engine: &RealEngine) {
    let step = |_: &u32| engine.background_step().expect("damage fails no work");
    let steps = (0..2000).take_while(step).count();
    assert!(steps < 2000, "background work comes to an end");
    // The sync of another write frees the zones that the last step emptied.
    write(engine, KEYS - 1..KEYS);
    engine.sync(Seq::MAX).expect("nothing is written to what fails");
}

fn scrub(engine: &RealEngine) {
    let mut after = None;
    while let Some(done) =
        engine.scrub_step(after, warpfire_log::WorkFor::Caller).expect("damage fails no scrub").verified()
    {
        after = Some(done.segment);
    }
}

#[test]
fn bytes_that_reads_reconstruct_are_written_elsewhere_at_once() {
    let world = world();
    let engine = create(&world);
    write(&engine, 0..KEYS);
    rot(&world, &[1, 4], FIRST_SEGMENT_ZONE..ZONES);
    assert_whole(&engine);
    let damaged = engine.log().pool().damaged_segments();
    assert!(damaged.len() > 2, "{damaged:?}");
    work_until_idle(&engine);
    assert_eq!(engine.log().pool().damaged_segments(), [], "emptied segments are freed");
    assert_eq!(engine.log().damaged().unwrap(), []);
    // Only data that has all its parity again survives two more devices.
    rot(&world, &[0, 2], FIRST_SEGMENT_ZONE..ZONES);
    assert_whole(&engine);
}

#[test]
fn a_scrub_finds_what_no_read_has_met() {
    let world = world();
    let engine = create(&world);
    write(&engine, 0..KEYS);
    rot(&world, &[3, 5], FIRST_SEGMENT_ZONE..ZONES);
    scrub(&engine);
    assert!(engine.log().damage_seen() > 2);
    work_until_idle(&engine);
    let seen = engine.log().damage_seen();
    scrub(&engine);
    assert_eq!(engine.log().damage_seen(), seen, "nothing damaged is left");
    assert_whole(&engine);
}

#[test]
fn columns_that_a_device_missed_are_written_again_after_a_scrub() {
    let world = world();
    let engine = create(&world);
    write(&engine, 0..KEYS / 2);
    world.sims()[2].inject(Fault::Fail { op: OpClass::Write, after: 3, lasting: false });
    write(&engine, KEYS / 2..KEYS);
    engine.close().unwrap();
    world.sims()[2].heal();
    let engine = reopen(&world);
    scrub(&engine);
    work_until_idle(&engine);
    rot(&world, &[0, 5], FIRST_SEGMENT_ZONE..ZONES);
    assert_whole(&engine);
}

#[test]
fn lost_bytes_stay_an_error_and_the_rest_is_moved() {
    let world = world();
    let engine = create(&world);
    write(&engine, 0..KEYS);
    // A few zones of three devices: beyond parity, where segments lie in them.
    rot(&world, &[0, 2, 3], FIRST_SEGMENT_ZONE + 3..FIRST_SEGMENT_ZONE + 5);
    let before: Vec<Option<Vec<u8>>> = (0..KEYS).map(|n| read(&engine, n)).collect();
    let lost = before.iter().filter(|b| b.is_none()).count();
    assert!(lost > 0 && lost < before.len(), "{lost} of {KEYS} lost");
    work_until_idle(&engine);
    for (n, before) in before.iter().enumerate().take(KEYS as usize - 1) {
        assert_eq!(&read(&engine, n as u64), before, "key {n}");
    }
    assert!(!engine.background_step().unwrap(), "an unrecoverable segment is not tried for ever");
}

#[test]
fn lost_tables_stop_neither_compaction_nor_writes() {
    let world = world();
    let engine = create(&world);
    write(&engine, 0..KEYS);
    rot(&world, &[0, 2, 3], FIRST_SEGMENT_ZONE..ZONES);
    for n in 0..KEYS {
        // Some of it can still be read; all that matters is that damage is noticed.
        drop(read(&engine, n));
    }
    for round in 0..40u64 {
        let fresh = KEYS + round * 100;
        write(&engine, fresh..fresh + 100);
        while engine.background_step().unwrap() {}
        assert!(read(&engine, fresh + 99).is_some(), "round {round}: new data is not where the damage was");
    }
}
