//! Runs the load of the metadata engine over a log in memory:
//! `meta_load [records] [threads] [random|order] [batch] [cache MiB]`.

use warpfire_bench::load::{self, Load, LoadTiming, Timer};
use warpfire_env::SystemClock;
use warpfire_log::{LogStore, MemLog, RecoveredLog};
use warpfire_meta::{Engine, EngineOptions, PlainSchema, Store};

fn cpu_nanos() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

fn say(what: &str, spent: LoadTiming) {
    let each = |nanos: u64| nanos as f64 / spent.count as f64;
    println!("{what:<8} {:>8.0} ns wall {:>8.0} ns cpu", each(spent.wall_nanos), each(spent.cpu_nanos));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |otherwise: u64| args.next().map_or(Ok(otherwise), |a| a.parse());
    let (records, threads) = (number(5_000_000)?, number(1)?);
    let in_order = args.next().is_some_and(|a| a == "order");
    let mut number = |otherwise: u64| args.next().map_or(Ok(otherwise), |a| a.parse());
    let (batch, cache_mib) = (number(1)?, number(64)?);
    let load = Load { records, value_bytes: 100, batch, sync_every: 0, threads, in_order };
    let timer = Timer { clock: &SystemClock, cpu_nanos: &cpu_nanos };
    let options = EngineOptions { block_cache_bytes: cache_mib << 20, ..EngineOptions::default() };
    let engine = Engine::open(MemLog::new(), RecoveredLog::empty(), PlainSchema, options)?;
    say("insert", load::insert(&engine, load, timer)?);
    let counters = engine.log().counters();
    let written = counters.appended_bytes + counters.record_bytes;
    println!("write amplification {:.2}", written as f64 / (records * 124) as f64);
    println!("runs {:?}", engine.runs());
    println!("bytes per record {:.1}", engine.log().space().live_bytes as f64 / records as f64);
    for _ in 0..2 {
        say("get", load::get(&engine, load, 1_000_000.min(records), timer)?);
        say("scan", load::scan(&engine, timer)?);
    }
    engine.compact()?;
    println!("compacted: runs {:?}", engine.runs());
    println!("bytes per record {:.1}", engine.log().space().live_bytes as f64 / records as f64);
    say("get", load::get(&engine, load, 1_000_000.min(records), timer)?);
    say("get", load::get(&engine, load, 1_000_000.min(records), timer)?);
    say("scan", load::scan(&engine, timer)?);
    engine.close()?;
    Ok(())
}
