//! Columns that move at once: while one stripe is written, the next ones are read. The drives of these tests
//! take operations of several threads, as image files and block devices do.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use warpfire_env::{Device, DeviceError, DeviceInfo, MemDevice, Timestamp};
use warpfire_pool::{
    AtOnce, ColumnMove, PieceWork, Pool, PoolError, ResilveredSegment, Suspects, Turns, Vacated,
};
use warpfire_sim_env::DistinctNumbers;
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::rig::{
    DEVICE_BYTES, WrittenSegment, assert_reads, block_at, id, open_with, options, write_segment,
};

const NO_PANIC: &str = "no holder panics";
const STRIPES: usize = 4;
const STRIPE_BYTES: usize = 90_000;

/// The rows of a stripe on one of two data columns.
const SHARD_BYTES: usize = STRIPE_BYTES.div_ceil(2 * BLOCK_BYTES) * BLOCK_BYTES;

/// What the drives of a pool do at the same time. Only whole shards count.
#[derive(Default)]
struct Traffic {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Reads that have begun, and those of them that have not ended.
    reads: usize,
    reading: usize,
    writes: usize,
    writing: usize,
    /// A write waits until so many reads have begun for each write before it, and so many more.
    reads_for_write: usize,
    /// Writes on this drive fail from its second one on.
    failing: Option<usize>,
    writes_on_failing: usize,
    has_met: bool,
}

struct Drive {
    memory: MemDevice,
    number: usize,
    traffic: Arc<Traffic>,
}

impl Device for Drive {
    fn info(&self) -> &DeviceInfo {
        self.memory.info()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let is_long = buf.len() >= SHARD_BYTES;
        if is_long {
            let mut state = self.traffic.state.lock().expect(NO_PANIC);
            state.reads += 1;
            state.reading += 1;
            state.has_met |= state.writing > 0;
            self.traffic.changed.notify_all();
        }
        let read = self.memory.read(at, buf);
        if is_long {
            self.traffic.state.lock().expect(NO_PANIC).reading -= 1;
        }
        read
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if buf.len() < SHARD_BYTES {
            return self.memory.write(at, buf);
        }
        let mut state = self.traffic.state.lock().expect(NO_PANIC);
        state.writing += 1;
        state.has_met |= state.reading > 0;
        let wanted = state.reads_for_write * (state.writes + 2).min(STRIPES);
        let waits = |state: &mut State| state.reads < wanted;
        let long = Duration::from_secs(60);
        let (mut state, waited) =
            self.traffic.changed.wait_timeout_while(state, long, waits).expect(NO_PANIC);
        assert!(!waited.timed_out(), "the next stripe is read while this one is written");
        state.writes += 1;
        state.writing -= 1;
        if state.failing == Some(self.number) {
            state.writes_on_failing += 1;
            if state.writes_on_failing > 1 {
                let (device, reason) = (self.info().name.clone(), "it is worn out".to_owned());
                return Err(DeviceError::Invalid { device, reason });
            }
        }
        drop(state);
        self.memory.write(at, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }

    fn works_beside_others(&self) -> bool {
        true
    }
}

struct Rig {
    drives: Vec<Arc<Drive>>,
    traffic: Arc<Traffic>,
    pool: Pool,
    written: WrittenSegment,
}

impl Rig {
    /// A pool of two data columns with a segment of some stripes.
    fn new(devices: usize, parity: u8) -> Rig {
        let traffic = Arc::new(Traffic::default());
        let drive = |number: usize| {
            let memory = MemDevice::new(format!("drive {number}"), DEVICE_BYTES);
            Arc::new(Drive { memory, number, traffic: Arc::clone(&traffic) })
        };
        let drives: Vec<Arc<Drive>> = (0..devices).map(drive).collect();
        let opened = drives.iter().map(|drive| Arc::clone(drive) as Arc<dyn Device>).collect();
        let pool = Pool::create(opened, &options(2, parity), &DistinctNumbers, Timestamp::default())
            .expect("a pool");
        let written = write_segment(&pool, id(1), &[STRIPE_BYTES; STRIPES]);
        *traffic.state.lock().expect(NO_PANIC) = State::default();
        Rig { drives, traffic, pool, written }
    }

    /// The devices of some columns.
    fn devices_of(&self, columns: &[usize]) -> BTreeSet<DeviceIndex> {
        columns.iter().map(|column| self.written.descriptor.columns[*column].0).collect()
    }

    fn move_away(&self, columns: &[usize], turns: &mut dyn Turns) -> ResilveredSegment {
        let vacated = Vacated::from(self.devices_of(columns));
        let resilvered = self.pool.resilver_in_pieces(id(1), Suspects::Recorded, &vacated, turns);
        resilvered.expect("that a column stays is no error")
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.traffic.state.lock().expect(NO_PANIC));
    }

    /// Panics unless the moved columns are, byte for byte, as they were where they lay.
    fn assert_moved(&self, moved: &ResilveredSegment) {
        let descriptor = moved.descriptor.clone();
        let now = WrittenSegment { descriptor, payload: Vec::new(), stripes: Vec::new() };
        for ColumnMove { column, .. } in &moved.moves {
            for stripe in 0..STRIPES {
                let shard = |of: &WrittenSegment| {
                    let (device, at) = block_at(of, stripe, usize::from(*column), None);
                    let mut bytes = vec![0; BLOCK_BYTES + SHARD_BYTES];
                    self.drives[device].memory.read(at, &mut bytes).expect("memory");
                    bytes
                };
                assert!(shard(&now) == shard(&self.written), "column {column} of stripe {stripe}");
            }
        }
        assert_reads(&self.pool, &self.written);
    }
}

#[test]
fn while_a_stripe_is_written_the_next_one_is_read() {
    let rig = Rig::new(4, 1);
    rig.set(|state| state.reads_for_write = 1);
    let moved = rig.move_away(&[0], &mut AtOnce);
    assert_eq!((moved.moves.len(), &moved.failure), (1, &None));
    rig.assert_moved(&moved);
}

#[test]
fn lost_columns_are_reconstructed_ahead() {
    let Rig { drives, traffic, pool, written } = Rig::new(6, 2);
    drop(pool);
    let lost: Vec<usize> = (0..2).map(|column| usize::from(written.descriptor.columns[column].0.0)).collect();
    let there = drives.iter().filter(|drive| !lost.contains(&drive.number));
    let pool = open_with(there.map(|drive| Arc::clone(drive) as Arc<dyn Device>).collect(), &[&written]);
    let rig = Rig { drives, traffic, pool, written };
    rig.set(|state| *state = State { reads_for_write: 1, ..State::default() });
    let moved = rig.move_away(&[0, 1], &mut AtOnce);
    assert_eq!((moved.moves.len(), &moved.failure), (2, &None));
    rig.assert_moved(&moved);
}

/// Turns beside programs.
struct Short {
    done: Vec<PieceWork>,
}

impl Turns for Short {
    fn piece_bytes(&self) -> u64 {
        1 << 30
    }

    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()> {
        self.done.push(work);
        ControlFlow::Continue(())
    }
}

#[test]
fn beside_programs_nothing_is_read_while_a_stripe_is_written() {
    let rig = Rig::new(4, 1);
    let mut turns = Short { done: Vec::new() };
    let moved = rig.move_away(&[0], &mut turns);
    assert_eq!((moved.moves.len(), &moved.failure), (1, &None));
    rig.assert_moved(&moved);
    rig.set(|state| assert!(!state.has_met && state.writes == STRIPES));
    assert_eq!(turns.done.len(), 2 * STRIPES);
}

/// Turns that end the work after some pieces.
struct Ending {
    left: usize,
    work: PieceWork,
}

impl Turns for Ending {
    fn piece_bytes(&self) -> u64 {
        u64::MAX
    }

    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()> {
        self.work.read_bytes += work.read_bytes;
        self.work.written_bytes += work.written_bytes;
        self.left -= 1;
        if self.left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[test]
fn each_stripe_takes_its_turns_and_any_of_them_may_end_the_work() {
    let rig = Rig::new(4, 1);
    let free = || rig.pool.status().devices.iter().map(|device| device.free_zones).collect::<Vec<u32>>();
    let before = free();
    for left in 1..=2 * STRIPES {
        let mut turns = Ending { left, work: PieceWork::default() };
        let ended = rig.move_away(&[0], &mut turns);
        assert!(ended.is_ended && ended.moves.is_empty());
        assert_eq!((&ended.descriptor.columns, free()), (&rig.written.descriptor.columns, before.clone()));
        let stripes = |count: usize| (count * SHARD_BYTES) as u64;
        let of_done = PieceWork { read_bytes: stripes(left.div_ceil(2)), written_bytes: stripes(left / 2) };
        assert_eq!(turns.work, of_done, "after {left} pieces");
    }
    let moved = rig.move_away(&[0], &mut Ending { left: usize::MAX, work: PieceWork::default() });
    assert_eq!((moved.moves.len(), &moved.failure), (1, &None));
    rig.assert_moved(&moved);
}

#[test]
fn a_target_that_fails_in_the_middle_costs_its_column_only() {
    let rig = Rig::new(6, 2);
    // The devices without a column of the segment take the two that move.
    let used = rig.devices_of(&[0, 1, 2, 3]);
    let target = (0..6).find(|number| !used.contains(&DeviceIndex(*number))).expect("two devices are unused");
    rig.set(|state| state.failing = Some(usize::from(target)));
    let moved = rig.move_away(&[0, 1], &mut AtOnce);
    assert!(matches!(moved.failure, Some(PoolError::Failed { .. })), "{:?}", moved.failure);
    assert_eq!(moved.moves.len(), 1);
    assert_ne!(moved.moves[0].to.0, DeviceIndex(target));
    rig.assert_moved(&moved);
}

#[test]
fn a_stripe_that_cannot_be_read_ahead_leaves_the_column_where_it_was() {
    let rig = Rig::new(4, 1);
    // The third stripe has one sound column of three.
    for column in [0, 1] {
        let (device, at) = block_at(&rig.written, 2, column, Some(3));
        rig.drives[device].memory.write(at, &[7; BLOCK_BYTES]).expect("memory");
    }
    let moved = rig.move_away(&[0], &mut AtOnce);
    assert!(matches!(moved.failure, Some(PoolError::Unreadable { stripe: 2, .. })), "{:?}", moved.failure);
    assert!(moved.moves.is_empty() && !moved.is_ended);
    assert_eq!(moved.descriptor.columns, rig.written.descriptor.columns);
}
