//! A client of the log that keeps a history of its records, and compares every recovery with it.
//!
//! Each record adds or drops an *entry*: a key, and the slices of its bytes. The key alone determines the
//! bytes. So the rig can compute the content of every slice that a recovered record names.

#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part of the rig")]

pub mod filled;
pub mod hooked;

use std::collections::{BTreeMap, HashMap};

use warpfire_env::{Random, Timestamp};
use warpfire_log::{Log, LogError, LogPos, LogStore, RecoveredLog, Stream, WorkFor};
use warpfire_pool::{CreateOptions, Pool, PoolError};
use warpfire_sim_env::{Cut, DeviceKind, DeviceSpec, DistinctNumbers, Recording, SimRandom, SimWorld, mix};
use warpfire_units::{SegmentId, SlicePtr};

pub const ZONE_BYTES: u64 = 128 << 10;
pub const ZONES: u64 = 40;

/// Bytes of saved state in a root, at most, while the state log has room. Less than a small life has, so that
/// the rig's pools use the state log as large ones do.
const STATE_TAIL_BYTES: usize = 600;

/// The geometry and devices of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub data: u16,
    pub parity: u8,
    pub devices: usize,
    pub zoned: bool,
}

pub const fn shape(data: u16, parity: u8, devices: usize) -> Shape {
    Shape { data, parity, devices, zoned: false }
}

pub const SHAPES: [Shape; 5] =
    [shape(1, 0, 1), shape(1, 1, 2), shape(2, 1, 3), shape(4, 2, 6), Shape { zoned: true, ..shape(2, 1, 3) }];

impl Shape {
    pub fn world(self, seed: u64) -> SimWorld {
        let size = ZONES * ZONE_BYTES;
        let spec = if self.zoned {
            DeviceSpec::zoned_drive("flash", size, ZONE_BYTES, (3, warpfire_pool::ACTIVE_ZONES_MIN))
        } else {
            DeviceSpec::append_only("flash", size)
        };
        SimWorld::of(seed, self.devices, &spec)
    }

    pub fn create(self, world: &SimWorld) -> Result<Log, LogError> {
        let zone_bytes = (!self.zoned).then_some(ZONE_BYTES);
        let options = CreateOptions { data: self.data, parity: self.parity, zone_bytes, force: false };
        let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default());
        Ok(Log::create(pool.expect("blank devices take a pool"))?.0)
    }
}

pub fn open(world: &SimWorld) -> Result<(Log, RecoveredLog), String> {
    let (pool, root) =
        Pool::open_degraded(world.devices(), &DistinctNumbers).map_err(|e: PoolError| e.to_string())?;
    Log::open(pool, &root).map_err(|e| e.to_string())
}

/// Calls `judge` with each world that a power cut may leave of a recording: at every boundary of device
/// writes, with none, all and a random part of the writes that no flush covered. The text names the cut.
pub fn at_each_cut(
    recording: &Recording,
    random: &SimRandom,
    context: &str,
    mut judge: impl FnMut(SimWorld, &str),
) {
    let mut replay = recording.replay();
    loop {
        if replay.at_boundary() {
            for cut in [Cut::LoseAll, Cut::KeepAll, Cut::Seeded(random.below(u64::MAX))] {
                let context = format!("{context}, event {}, {cut:?}", replay.point());
                judge(replay.cut(&cut), &context);
            }
        }
        if replay.advance().is_none() {
            return;
        }
    }
}

/// Checks that no device saw a write over bytes that were still in use.
pub fn assert_append_only(world: &SimWorld, context: &str) {
    for device in world.sims() {
        let violations = device.overwrites();
        let kind = device.spec().kind;
        assert!(violations.is_empty(), "{context}: {kind:?} {} saw {violations:?}", device.spec().name);
    }
    assert!(world.sims().iter().all(|d| d.spec().kind != DeviceKind::Conventional), "the rig is strict");
}

fn narrow(n: u64) -> usize {
    usize::try_from(n).expect("the rig's numbers are small")
}

/// The bytes that belong to a key.
pub fn content(key: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..=len as u64 / 8).flat_map(|n| mix(key ^ mix(n)).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

pub type Entries = BTreeMap<u64, Vec<SlicePtr>>;

fn add_record(key: u64, slices: &[SlicePtr], ballast: usize) -> Vec<u8> {
    let mut out = vec![1];
    out.extend(key.to_le_bytes());
    out.extend((slices.len() as u64).to_le_bytes());
    for s in slices {
        out.extend(s.segment.get().to_le_bytes());
        out.extend(s.offset_bytes.to_le_bytes());
        out.extend(u64::from(s.len_bytes).to_le_bytes());
    }
    out.extend(content(!key, ballast));
    out
}

fn drop_record(key: u64) -> Vec<u8> {
    [&[2][..], &key.to_le_bytes()].concat()
}

fn key_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[1..9].try_into().expect("a record has a key"))
}

/// Applies one record and returns how long it was, ballast apart.
fn apply(entries: &mut Entries, record: &[u8]) -> usize {
    let u64_at = |at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("the rig wrote eight bytes here"))
    };
    let key = key_of(record);
    if record[0] == 2 {
        entries.remove(&key).expect("an entry is dropped once");
        return 9;
    }
    let count = narrow(u64_at(9));
    let slice = |n: usize| SlicePtr {
        segment: SegmentId::new(u64_at(17 + 24 * n)).expect("the rig wrote an id here"),
        offset_bytes: u64_at(25 + 24 * n),
        len_bytes: u32::try_from(u64_at(33 + 24 * n)).expect("the rig wrote a length here"),
    };
    let before = entries.insert(key, (0..count).map(slice).collect());
    assert!(before.is_none(), "a key is used once");
    17 + 24 * count
}

fn entries_at(history: &[Vec<u8>], count: usize) -> Entries {
    let mut entries = Entries::new();
    for record in &history[..count] {
        apply(&mut entries, record);
    }
    entries
}

fn encode_state(entries: &Entries, count: usize) -> Vec<u8> {
    let mut state = (count as u64).to_le_bytes().to_vec();
    for (key, slices) in entries {
        state.extend(add_record(*key, slices, 0));
    }
    state
}

fn decode_state(state: &[u8]) -> (Entries, usize) {
    let mut entries = Entries::new();
    let Some((count, mut rest)) = state.split_first_chunk::<8>() else { return (entries, 0) };
    while !rest.is_empty() {
        let used = apply(&mut entries, rest);
        rest = &rest[used..];
    }
    (entries, narrow(u64::from_le_bytes(*count)))
}

/// A log, and the entries that it ought to hold.
pub struct Client {
    pub log: Log,
    /// Every record so far; record n has number n+1.
    pub history: Vec<Vec<u8>>,
    /// Records covered by a sync that has returned. A record names its slices, or needs all appends.
    pub acked: usize,
    pub entries: Entries,
    /// Slices of entries dropped by records that may not be durable yet.
    to_release: Vec<Vec<SlicePtr>>,
    next_key: u64,
}

impl Client {
    pub fn new(log: Log) -> Self {
        let log = log.with_state_tail_bytes(STATE_TAIL_BYTES);
        Client { log, history: vec![], acked: 0, entries: Entries::new(), to_release: vec![], next_key: 1 }
    }

    /// Compares a recovery with the history that led to it, and goes on from there.
    pub fn recovered(
        (log, recovered): (Log, RecoveredLog),
        history: &[Vec<u8>],
        acked: usize,
        context: &str,
    ) -> Self {
        let (mut entries, mut count) = decode_state(&recovered.state);
        let mut first = true;
        for record in recovered.records {
            // Records may begin before the checkpoint's state, and then follow each other without gaps.
            let (LogPos(pos), bytes) = record.unwrap_or_else(|e| panic!("{context}: {e}"));
            let n = narrow(pos) - 1;
            assert!(n <= count && (first || n + 1 >= count), "{context}: record {pos} after {count}");
            first = false;
            assert!(n < history.len() && history[n] == bytes, "{context}: record {pos} is another");
            if n == count {
                apply(&mut entries, &bytes);
                count += 1;
            }
        }
        assert!(acked <= count, "{context}: {acked} records were acknowledged, {count} are there");
        assert_eq!(entries, entries_at(history, count), "{context}: entries after {count} records");
        assert_eq!(log.position(), LogPos(count as u64 + 1), "{context}: the next place");
        let mut live = HashMap::new();
        for slice in entries.values().flatten() {
            *live.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        log.set_live(&live);
        let client = Client {
            log: log.with_state_tail_bytes(STATE_TAIL_BYTES),
            history: history[..count].to_vec(),
            acked: count,
            entries,
            to_release: vec![],
            next_key: 1 + history[..count].iter().map(|record| key_of(record)).max().unwrap_or(0),
        };
        client.check(context);
        client
    }

    /// Checks that every entry reads back, and that space adds up.
    pub fn check(&self, context: &str) {
        for (key, slices) in &self.entries {
            let len = slices.iter().map(|s| s.len_bytes as usize).sum();
            let mut bytes = vec![0; len];
            let mut rest = &mut bytes[..];
            let mut reads = vec![];
            for slice in slices {
                let (now, later) = rest.split_at_mut(slice.len_bytes as usize);
                reads.push((*slice, now));
                rest = later;
            }
            self.log.read_many(&mut reads).unwrap_or_else(|e| panic!("{context}: entry {key}: {e}"));
            assert!(bytes == content(*key, len), "{context}: entry {key} has other bytes");
        }
        let space = self.log.space();
        let sum = space.live_bytes + space.garbage_bytes + space.free_bytes;
        assert_eq!(sum, space.total_bytes, "{context}: {space:?}");
        let held: u64 = self.entries.values().flatten().map(|s| u64::from(s.len_bytes)).sum();
        let pending: u64 = self.to_release.iter().flatten().map(|s| u64::from(s.len_bytes)).sum();
        assert_eq!(space.live_bytes, held + pending, "{context}: live bytes");
    }

    pub fn add(&mut self, stream: Stream, len: usize, ballast: usize) -> Result<(), LogError> {
        let key = self.next_key;
        self.next_key += 1;
        let slices = self.log.append(stream, &content(key, len))?.to_vec();
        let record = add_record(key, &slices, ballast);
        // Half of the records need no more than the slices that they name.
        if key.is_multiple_of(2) {
            slices.iter().for_each(|slice| self.log.need(*slice));
            self.log.log_named(&record)?;
        } else {
            self.log.log(&record)?;
        }
        apply(&mut self.entries, &record);
        self.history.push(record);
        Ok(())
    }

    pub fn drop_entry(&mut self, nth: usize) -> Result<(), LogError> {
        let Some((&key, _)) = self.entries.iter().nth(nth) else { return Ok(()) };
        let record = drop_record(key);
        self.log.log_named(&record)?;
        self.history.push(record);
        self.to_release.extend(self.entries.remove(&key));
        Ok(())
    }

    fn acknowledge(&mut self) {
        self.acked = self.history.len();
        for slice in self.to_release.drain(..).flatten() {
            self.log.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    pub fn sync(&mut self) -> Result<(), LogError> {
        self.log.sync()?;
        self.acknowledge();
        Ok(())
    }

    /// A sync of the records and of the bytes that they need.
    pub fn sync_records(&mut self) -> Result<(), LogError> {
        self.log.sync_records()?;
        self.acknowledge();
        Ok(())
    }

    /// A checkpoint of every entry. The last `keep` records stay in the log nevertheless.
    pub fn checkpoint(&mut self, keep: u64) -> Result<(), LogError> {
        let state = encode_state(&self.entries, self.history.len());
        let position = self.log.position().0;
        self.log.checkpoint(&state, LogPos(position.saturating_sub(keep).max(1)))?;
        self.acknowledge();
        Ok(())
    }

    /// Gives everything all the redundancy that the devices allow. Log segments with too few copies become
    /// unnecessary by a checkpoint, as after each opening of the metadata engine. Other segments are mended,
    /// or the entries with bytes in them are replaced.
    pub fn regain_redundancy(&mut self) -> Result<(), LogError> {
        self.checkpoint(0)?;
        while self.log.mend(WorkFor::Caller)? {}
        // Ends: each round leaves fewer segments as they are, and new ones have all their redundancy.
        loop {
            let weak = self.log.damaged()?;
            let is_weak = |slices: &[SlicePtr]| slices.iter().any(|slice| weak.contains(&slice.segment));
            let Some(nth) = self.entries.values().position(|slices| is_weak(slices)) else { break };
            let slices = self.entries.values().nth(nth).expect("an entry was found");
            let len = slices.iter().map(|slice| slice.len_bytes as usize).sum();
            self.drop_entry(nth)?;
            self.add(Stream::Cold, len, 0)?;
            self.sync()?;
        }
        assert!(self.log.damaged()?.is_empty(), "no segment is left with less redundancy");
        Ok(())
    }

    /// One random step. If the pool is full, drops half of the entries instead.
    pub fn step(&mut self, random: &SimRandom) -> Result<(), LogError> {
        match self.try_step(random) {
            Err(LogError::NoSpace) => {
                for _ in 0..self.entries.len().div_ceil(2) {
                    self.drop_entry(0)?;
                }
                self.sync()?;
                self.checkpoint(0)
            }
            other => other,
        }
    }

    fn try_step(&mut self, random: &SimRandom) -> Result<(), LogError> {
        let streams = [Stream::Small, Stream::Large, Stream::Table, Stream::Cold];
        let stream = streams[narrow(random.below(4))];
        let below = |bound| narrow(random.below(bound));
        match random.below(100) {
            0..25 => self.add(stream, 1 + below(300), 0),
            25..40 => self.add(stream, 1 + below(20_000), 0),
            40..43 => self.add(stream, 1 + below(200_000), 0),
            43..50 => self.add(stream, 1 + below(50), below(30_000)),
            50..51 => self.add(stream, 1 + below(50), below(200_000)),
            51..54 => {
                let slices = self.log.append(stream, &content(random.next_u64(), 1 + below(9_000)))?;
                for slice in slices {
                    self.log.release(slice.segment, u64::from(slice.len_bytes));
                }
                Ok(())
            }
            54..70 => self.drop_entry(below(self.entries.len().max(1) as u64)),
            70..78 => self.sync(),
            78..93 => self.sync_records(),
            93..95 => self.log.trim(|_| std::ops::ControlFlow::Continue(())).map(drop),
            _ => self.checkpoint(random.below(3)),
        }
    }
}
