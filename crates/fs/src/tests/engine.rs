//! The real engine over a log in memory: files while it packs, cleans and loses power.

use std::sync::Arc;

use warpfire_log::{MemLog, RecoveredLog};
use warpfire_meta::{Background, Engine, EngineOptions, Store};

use super::{Ticking, file_model};
use crate::{Fs, FsError, FsOptions, FsSchema};

pub(crate) type LogEngine = Engine<MemLog, FsSchema>;

/// A log in memory, and the result of its recovery: an engine is opened from both.
pub(crate) type Log = (MemLog, RecoveredLog);

pub(crate) fn format() -> Log {
    (MemLog::new(), RecoveredLog::empty())
}

/// Opens an engine and, after `prepare`, the filesystem in it.
pub(crate) fn open(
    (log, recovered): Log,
    prepare: impl Fn(&LogEngine, &dyn warpfire_env::Clock, u32, u32) -> Result<(), FsError>,
) -> Fs<LogEngine> {
    let options = EngineOptions {
        memtable_bytes: 256 << 10,
        block_cache_bytes: 1 << 20,
        log_bytes_max: 1 << 20,
        background: Background::Manual,
        read_only: false,
    };
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options).unwrap());
    let clock = Arc::new(Ticking::default());
    prepare(&engine, &*clock, 0, 0).unwrap();
    Fs::open(engine, clock, FsOptions::default()).unwrap()
}

#[test]
fn files_read_like_vectors_whatever_the_engine_does_to_their_bytes() {
    for seed in 0..12 {
        let fs = open(format(), Fs::format);
        let upkeep = |draw: u64| match draw % 6 {
            0 => fs.engine().flush().unwrap(),
            1 | 2 => _ = fs.engine().background_step().unwrap(),
            3 => fs.engine().compact().unwrap(),
            _ => {}
        };
        file_model::story(&fs, 2000 + seed, 40, seed % 3 == 0, &upkeep);
        fs.sync().unwrap();
        super::check::check(&**fs.engine(), &format!("seed {seed}"));
    }
}
