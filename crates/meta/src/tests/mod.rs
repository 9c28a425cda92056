//! The engine against its naive twin, against crashes, threads and full pools.

mod bookmarks;
mod bundles;
mod census;
mod conflicts;
mod full;
mod held;
mod hidden;
mod limits;
mod model;
mod passing;
mod past;
mod released;
mod removals;
mod removed;
mod reserved;
mod rewriting;
mod rollbacks;
mod runs;
mod snapshot_bytes;
mod snapshots;
mod space;
mod syncs;
mod threads;

use warpfire_log::{Admit, MemLog, RecoveredLog};
use warpfire_units::Seq;

use crate::schema::PlainSchema;
use crate::{Background, Batch, CommitError, Engine, EngineOptions, Store};

type PlainEngine = Engine<MemLog, PlainSchema>;

fn small(background: Background) -> EngineOptions {
    EngineOptions {
        memtable_bytes: 64 << 10,
        block_cache_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        background,
        read_only: false,
    }
}

fn open(log: MemLog, background: Background) -> PlainEngine {
    Engine::open(log, RecoveredLog::empty(), PlainSchema, small(background)).unwrap()
}

fn put(engine: &PlainEngine, key: &[u8], value: &[u8]) -> Result<Seq, CommitError> {
    let mut batch = Batch::new();
    batch.put(key, value);
    engine.commit(&batch, None, Admit::User)
}

fn get(engine: &PlainEngine, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    engine.get(key, Seq::MAX, &mut value).unwrap().then_some(value)
}
