//! The load of the metadata engine: inserts in random or in sorted order, a sync, random reads, a scan.
//!
//! The caller passes the clock and a function for processor time, so the workload `meta` and the example
//! `meta_load` share this code.

use warpfire_env::Clock;
use warpfire_log::{Admit, LogError, LogStore};
use warpfire_meta::{
    Batch, CommitError, Direction, Engine, KeyRange, MetaError, PlainSchema, ScanPage, Store,
};
use warpfire_units::Seq;

/// The shape of the load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Records to insert, over all threads.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Records in one commit.
    pub batch: u64,
    /// Commits between two syncs of one thread; 0 syncs only at the end.
    pub sync_every: u64,
    /// Threads that insert.
    pub threads: u64,
    /// Whether the keys of each thread are sorted; otherwise they are scattered.
    pub in_order: bool,
}

/// Time that a part of the load took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadTiming {
    /// Operations.
    pub count: u64,
    /// Wall time, in nanoseconds.
    pub wall_nanos: u64,
    /// Processor time of the whole process, in nanoseconds.
    pub cpu_nanos: u64,
}

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;

/// The key of the n-th record. Scattered keys are a permutation of the numbers, so no two are equal.
fn key_of(n: u64, in_order: bool) -> [u8; KEY_BYTES] {
    let n = if in_order { n } else { n.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes() ^ 0x5bd1 };
    let mut key = *b"key-00000000000000000000";
    let mut rest = n;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn value_of(n: u64, value: &mut [u8]) {
    // Half of a value repeats and half is noise, so that it compresses about as well as metadata does.
    let mut noise = n;
    for chunk in value.chunks_mut(16) {
        noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let len = chunk.len().min(8);
        chunk[..len].copy_from_slice(&noise.to_le_bytes()[..len]);
    }
}

/// The sources of time.
#[derive(Clone, Copy)]
pub struct Timer<'a> {
    /// For wall time.
    pub clock: &'a dyn Clock,
    /// Processor time of the process, in nanoseconds.
    pub cpu_nanos: &'a (dyn Fn() -> u64 + Sync),
}

impl Timer<'_> {
    fn time<T>(
        &self,
        count: u64,
        work: impl FnOnce() -> Result<T, MetaError>,
    ) -> Result<LoadTiming, MetaError> {
        let (wall, cpu) = (self.clock.monotonic_nanos(), (self.cpu_nanos)());
        work()?;
        Ok(LoadTiming {
            count,
            wall_nanos: self.clock.monotonic_nanos() - wall,
            cpu_nanos: (self.cpu_nanos)() - cpu,
        })
    }
}

/// Inserts all records and syncs.
///
/// # Errors
/// A commit or the sync fails.
pub fn insert<L: LogStore>(
    engine: &Engine<L, PlainSchema>,
    load: Load,
    timer: Timer<'_>,
) -> Result<LoadTiming, MetaError> {
    let one_thread = |thread: u64| -> Result<(), MetaError> {
        let share = load.records / load.threads;
        let (mut batch, mut value) = (Batch::new(), vec![b'v'; load.value_bytes]);
        let mut commits = 0;
        for n in thread * share..(thread + 1) * share {
            value_of(n, &mut value);
            batch.put(&key_of(n, load.in_order), &value);
            if batch.len() as u64 == load.batch || n + 1 == (thread + 1) * share {
                let seq = engine.commit(&batch, None, Admit::User).map_err(|e| match e {
                    CommitError::Failed(e) => e,
                    other => MetaError::Log(LogError::ReadOnly(other.to_string().into())),
                })?;
                batch.clear();
                commits += 1;
                if load.sync_every != 0 && commits % load.sync_every == 0 {
                    engine.sync(seq)?;
                }
            }
        }
        Ok(())
    };
    timer.time(load.records, || {
        if load.threads == 1 {
            one_thread(0)?;
        } else {
            std::thread::scope(|scope| {
                let work = &one_thread;
                let all: Vec<_> = (0..load.threads).map(|t| scope.spawn(move || work(t))).collect();
                all.into_iter().try_for_each(|t| t.join().expect("an inserting thread does not panic"))
            })?;
        }
        engine.sync(Seq::MAX)
    })
}

/// Gets `count` of the records that `load` inserted, scattered over all of them.
///
/// # Errors
/// A read fails.
///
/// # Panics
/// A record is missing.
pub fn get<L: LogStore>(
    engine: &Engine<L, PlainSchema>,
    load: Load,
    count: u64,
    timer: Timer<'_>,
) -> Result<LoadTiming, MetaError> {
    let mut value = Vec::new();
    timer.time(count, || {
        for i in 0..count {
            let n = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (load.records / load.threads * load.threads);
            assert!(engine.get(&key_of(n, load.in_order), Seq::MAX, &mut value)?, "record {n} was inserted");
        }
        Ok(())
    })
}

/// Scans all records. The count of the result is the number of records found.
///
/// # Errors
/// A read fails.
pub fn scan<L: LogStore>(engine: &Engine<L, PlainSchema>, timer: Timer<'_>) -> Result<LoadTiming, MetaError> {
    let snapshot = engine.snapshot();
    let (mut page, mut start, mut count) = (ScanPage::default(), Vec::new(), 0);
    let spent = timer.time(0, || {
        loop {
            let range = KeyRange { start: &start, end: None };
            engine.scan(range, snapshot.seq(), Direction::Forward, 4096, 1 << 20, &mut page)?;
            count += page.len() as u64;
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(()) };
            start.clear();
            start.extend_from_slice(last.key);
            start.push(0);
        }
    })?;
    Ok(LoadTiming { count, ..spent })
}
