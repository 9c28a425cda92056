//! Measures the metadata engine alone, over a log on new image files: no names, no permissions, keys of 24
//! bytes.

use std::sync::Arc;

use warpfire_env::{Clock, Device, FileDevice, SystemClock, SystemRandom};
use warpfire_log::{Log, LogStore};
use warpfire_meta::{Engine, EngineOptions, MetaError, PlainSchema, Store};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_terminal::Failure;

use crate::backing::PoolSpec;
use crate::load::{self, Load, LoadTiming, Timer};
use crate::memory::PeakMemory;
use crate::names::Order;
use crate::target::Counters;
use crate::workload::{Measure, Shape, processor_nanos};

/// Inserts `shape.count` records with `batch` records per commit, gets as many at random, and scans all of
/// them. The cache of blocks takes at most `cache_bytes`.
pub fn measure(
    spec: &PoolSpec,
    shape: &Shape,
    batch: u64,
    cache_bytes: u64,
) -> Result<Vec<Measure>, Failure> {
    let devices: Result<Vec<Arc<dyn Device>>, Failure> = spec
        .fresh_images()?
        .iter()
        .map(|image| match FileDevice::create(image, spec.device_bytes()) {
            Ok(device) => Ok(Arc::new(device) as Arc<dyn Device>),
            Err(error) => Err(Failure::new(error)),
        })
        .collect();
    let (data, parity) = spec.geometry();
    let options = CreateOptions { data, parity, ..CreateOptions::default() };
    let pool = Pool::create(devices?, &options, &SystemRandom, SystemClock.now()).map_err(Failure::new)?;
    let (log, recovered) = Log::create(pool.clone()).map_err(Failure::new)?;
    let options = EngineOptions { block_cache_bytes: cache_bytes, ..EngineOptions::default() };
    let engine = Engine::open(log, recovered, PlainSchema, options).map_err(Failure::new)?;
    let load = Load {
        records: shape.count,
        value_bytes: usize::try_from(shape.size_bytes).expect("a value fits in memory"),
        batch,
        sync_every: 0,
        threads: shape.threads,
        in_order: shape.order == Order::InOrder,
    };
    let timer = Timer { clock: &SystemClock, cpu_nanos: &processor_nanos };
    let phase = |name: &'static str, work: &dyn Fn() -> Result<LoadTiming, MetaError>| {
        let memory = PeakMemory::begin(std::process::id());
        let before = counters(&pool);
        let spent = work().map_err(Failure::new)?;
        Ok::<_, Failure>(Measure {
            phase: name,
            ops: spent.count,
            bytes: spent.count * (load::KEY_BYTES as u64 + shape.size_bytes),
            nanos: spent.wall_nanos,
            cpu_nanos: Some(spent.cpu_nanos),
            latencies_nanos: Vec::new(),
            devices: Some(counters(&pool).since(before)),
            peak_bytes: memory.peak_bytes(),
            stored_bytes: Some(engine.log().space().live_bytes),
        })
    };
    let measures = vec![
        phase("insert", &|| load::insert(&engine, load, timer))?,
        phase("get", &|| load::get(&engine, load, shape.count, timer))?,
        phase("scan", &|| load::scan(&engine, timer))?,
    ];
    engine.close().map_err(Failure::new)?;
    Ok(measures)
}

fn counters(pool: &Pool) -> Counters {
    let total = pool.counters().total;
    Counters {
        reads: total.reads,
        read_bytes: total.read_bytes,
        writes: total.writes,
        written_bytes: total.written_bytes,
        flushes: total.flushes,
    }
}
