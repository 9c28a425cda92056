//! Checkpoints of tables that no test could write: the segments are fabricated and hold nothing.

use warpfire_env::Timestamp;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::StripeRun;
use warpfire_pool::CreateOptions;
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::{DeviceIndex, ZoneIndex};

use super::*;

/// The id of the first fabricated segment. Those of the logs are below.
const FIRST: u64 = 1000;

fn fabricated(n: u64, runs: u16) -> SegmentDescriptor {
    let column =
        |device| (DeviceIndex(device), ZoneIndex(u32::try_from(n % 1000 + 2).expect("a small number")));
    SegmentDescriptor {
        id: SegmentId::new(FIRST + n).expect("not zero"),
        epoch: 1,
        stream: SegmentStream::Small,
        data: 2,
        parity: 1,
        columns: (0..3).map(column).collect(),
        lost: Vec::new(),
        stripes: (0..runs).map(|n| StripeRun { rows: 1 + n % 2, count: 1 }).collect(),
        state: SegmentState::Sealed,
    }
}

/// A pool with a table of fabricated segments.
struct Rig {
    world: SimWorld,
    pool: Pool,
    state_log: StateLog,
    table: Vec<SegmentDescriptor>,
    chain: Vec<SegmentDescriptor>,
    next_id: u64,
    checkpoint: u64,
}

impl Rig {
    fn new(segments: u64, runs: u16) -> Rig {
        Rig::on(3, segments, runs)
    }

    fn on(devices: usize, segments: u64, runs: u16) -> Rig {
        let world = SimWorld::of(1, devices, &DeviceSpec::conventional("flash", 128 << 20));
        let options = CreateOptions { data: 2, parity: 1, zone_bytes: Some(4 << 20), force: false };
        let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default());
        let pool = pool.expect("blank devices take a pool");
        let commit_log = pool.allocate(SegmentId::FIRST, SegmentStream::CommitLog).expect("there is room");
        let table: Vec<_> = (0..segments).map(|n| fabricated(n, runs)).collect();
        let mut state_log = StateLog::new();
        state_log.put_segments(table.iter().cloned().map(SavedChange::Segment).collect());
        let chain = vec![commit_log.descriptor()];
        let mut rig = Rig { world, pool, state_log, table, chain, next_id: 2, checkpoint: 0 };
        rig.checkpoint();
        rig
    }

    /// As `Log::write_root` does. Returns the bytes that the busiest device wrote.
    fn checkpoint(&mut self) -> u64 {
        let written = || self.world.sims().iter().map(|d| d.counters().written_bytes).collect::<Vec<u64>>();
        let before = written();
        let next_id = || {
            self.next_id += 1;
            SegmentId::new(self.next_id - 1).expect("counts from 2")
        };
        self.state_log.spill(&self.pool, || self.table.clone(), next_id).expect("nothing fails");
        self.pool.flush().expect("nothing fails");
        self.checkpoint += 1;
        let root = LogState {
            next_segment: SegmentId::new(1 << 40).expect("not zero"),
            next_pos: 1,
            keep_from: 1,
            barrier: 0,
            sequence: 0,
            checkpoint: self.checkpoint,
            first_stripe: 0,
            state_sequence: self.state_log.sequence(),
            chain: self.chain.clone(),
            state_chain: self.state_log.chain(),
        };
        self.pool.write_root(&root.encode(self.state_log.tail())).expect("nothing fails");
        for id in self.state_log.take_replaced() {
            self.pool.free(id).expect("nothing fails");
        }
        let after = written();
        after.iter().zip(before).map(|(after, before)| after - before).max().expect("there are devices")
    }

    /// Grows one segment by a stripe, as a session does that fills it.
    fn change(&mut self, n: u64) {
        let segment = &mut self.table[usize::try_from(n).expect("a small number")];
        segment.push_stripe(3);
        self.state_log.put_segments(vec![SavedChange::Segment(segment.clone())]);
    }

    /// Opens the pool and compares the state that the newest root leads to.
    fn assert_opens(self) {
        drop(self.pool);
        let (pool, root) = Pool::open_for_reading(self.world.devices()).expect("nothing fails");
        let (state, tail) = LogState::decode(&root.payload).expect("it was encoded");
        let (saved, read) = read_state(&pool, &state, tail).expect("nothing fails");
        assert_eq!(state.checkpoint, self.checkpoint);
        assert!(saved.segments.into_values().eq(self.table), "the table comes back");
        assert!(!read.lacks_columns);
    }
}

/// Bytes of the first checkpoint, which saves the whole table, and of the largest and the mean one of a
/// hundred that follow a change of one segment.
fn measure(segments: u64, runs: u16) -> (u64, u64, u64) {
    let mut rig = Rig::new(segments, runs);
    let whole =
        rig.table.iter().map(|d| SegmentDescriptor::encoded_bytes_max(3, 0, d.stripes.len())).sum::<usize>();
    let (mut most, mut sum) = (0, 0);
    for n in 0..100 {
        rig.change(segments - 1 - n / 20);
        let written = rig.checkpoint();
        most = most.max(written);
        sum += written;
    }
    rig.assert_opens();
    (whole as u64, most, sum / 100)
}

#[test]
fn a_checkpoint_after_one_change_costs_the_same_whatever_the_table_holds() {
    let (few_whole, _, few) = measure(600, 1);
    let (whole, most, mean) = measure(65_536, 1);
    println!(
        "600 segments: {few_whole} bytes whole, {few} a checkpoint; 65,536: {whole} whole, {mean}, {most} at most"
    );
    assert!(most < 64 << 10, "{most} bytes on one device for one changed segment of 65,536");
    assert!(mean < 2 * few, "{mean} bytes with 65,536 segments, {few} with 600");
}

#[test]
fn a_checkpoint_of_segments_with_many_runs_costs_a_twentieth_of_the_table() {
    let (whole, most, mean) = measure(4_000, 1_000);
    println!("4,000 segments of 1,000 runs: {whole} bytes whole, {mean} a checkpoint, {most} at most");
    assert!(most < 64 << 10 && mean * 20 < whole, "{mean} bytes, {most} at most, of {whole}");
}

#[test]
fn a_chain_is_written_anew_before_it_is_three_times_the_state() {
    let mut rig = Rig::new(1_000, 200);
    let base = rig.state_log.base_bytes;
    let mut longest = 0;
    let mut bases = 0;
    for n in 0..6_000 {
        rig.change(n % 500);
        let before = rig.state_log.chain_bytes;
        rig.checkpoint();
        longest = longest.max(rig.state_log.chain_bytes);
        bases += u64::from(rig.state_log.chain_bytes < before);
    }
    assert!(bases > 0, "the chain was written anew");
    let most = 2 * rig.state_log.base_bytes.max(base) + STATE_CHAIN_SLACK_BYTES + STATE_TAIL_MAX_BYTES as u64;
    assert!(longest <= most, "{longest} bytes of chain for {base} of state, {bases} times written anew");
    rig.assert_opens();
}

/// Nothing names a spare segment, so nothing moved it: a device with one could not be removed.
#[test]
fn a_spare_segment_does_not_keep_a_device_in_the_pool() {
    let mut rig = Rig::on(6, 1, 1);
    let spares = 3;
    let bytes = spares * rig.pool.geometry(SegmentKind::Mirror).segment_payload_bytes;
    let next_id = || {
        rig.next_id += 1;
        SegmentId::new(rig.next_id - 1).expect("counts from 2")
    };
    let bytes = usize::try_from(bytes).expect("a small number");
    assert!(rig.state_log.make_room(&rig.pool, bytes, next_id).expect("nothing fails"), "there is room");
    let has = |columns: &[(DeviceIndex, ZoneIndex)], device| columns.iter().any(|(at, _)| *at == device);
    let spares_on = |rig: &Rig, device| {
        rig.state_log.spares.iter().filter(|spare| has(&spare.descriptor().columns, device)).count()
    };
    let devices = (0..6).map(DeviceIndex).filter(|device| !has(&rig.chain[0].columns, *device));
    let device = devices.max_by_key(|device| spares_on(&rig, *device)).expect("the log is on two devices");
    assert!(spares_on(&rig, device) > 0, "the spares are on some of the other devices");
    let before = rig.state_log.segments();
    rig.pool.set_leaving(device, true).expect("five devices stay");
    rig.checkpoint();
    assert_eq!(spares_on(&rig, device), 0);
    assert!(rig.state_log.segments() < before, "the others stay: {before} before");
    rig.pool.remove_device(device).expect("no segment is on it");
}

impl Rig {
    /// Makes room for so many bytes behind the chain. Returns the number of segments for them, if there are
    /// enough.
    fn make_room(&mut self, bytes: u64) -> Option<usize> {
        let next_id = || {
            self.next_id += 1;
            SegmentId::new(self.next_id - 1).expect("counts from 2")
        };
        let bytes = usize::try_from(bytes).expect("a small number");
        let has_room = self.state_log.make_room(&self.pool, bytes, next_id).expect("nothing fails");
        has_room.then_some(self.state_log.spares.len())
    }
}

#[test]
fn room_is_made_for_the_bytes_that_the_present_segment_does_not_take() {
    let mut rig = Rig::new(1, 1);
    assert!(rig.state_log.current.is_none(), "the state is in the root");
    let segment_bytes = rig.pool.geometry(SegmentKind::Mirror).segment_payload_bytes;
    assert_eq!(rig.make_room(0), Some(0));
    assert_eq!(rig.make_room(1), Some(1));
    assert_eq!(rig.make_room(segment_bytes), Some(1));
    assert_eq!(rig.make_room(segment_bytes + 1), Some(2));
    assert_eq!(rig.make_room(3 * segment_bytes), Some(3));
    assert_eq!(rig.make_room(1), Some(3), "those that are there stay");
    // The first of them becomes the end of the chain.
    rig.state_log.append(&[7; 100_000]).expect("nothing fails");
    let open_bytes = rig.state_log.current.as_ref().expect("the chain has an end").remaining_bytes();
    assert!(open_bytes + 100_000 <= segment_bytes);
    assert_eq!(rig.make_room(open_bytes + 2 * segment_bytes), Some(2));
    assert_eq!(rig.make_room(open_bytes + 2 * segment_bytes + 1), Some(3));
}

/// The chain leaves the segments of the commit log, and the zones of a table and of a victim.
#[test]
fn the_chain_leaves_the_segments_that_free_others() {
    let mut rig = Rig::new(1, 1);
    let segment_bytes = rig.pool.geometry(SegmentKind::Mirror).segment_payload_bytes;
    assert_eq!(rig.make_room(segment_bytes), Some(1));
    // A table and a victim take two mirrors each, with three columns.
    let kept = LOG_RESERVE_SEGMENTS + 4;
    let free = |rig: &Rig| rig.pool.free_segments(SegmentKind::Mirror);
    while free(&rig) > kept + 2 {
        let id = SegmentId::new(100_000 + free(&rig)).expect("not zero");
        rig.pool.allocate(id, SegmentStream::CommitLog).expect("there is room");
    }
    assert_eq!(free(&rig), kept + 2);
    assert_eq!(rig.make_room(4 * segment_bytes), None, "three more are missing");
    assert_eq!((rig.state_log.spares.len(), free(&rig)), (1, kept + 2), "none was taken");
    assert_eq!(rig.make_room(3 * segment_bytes), Some(3));
    assert_eq!(free(&rig), kept);
    assert_eq!(rig.make_room(3 * segment_bytes), Some(3), "no more are needed");
    assert_eq!(rig.make_room(3 * segment_bytes + 1), None);
}

#[test]
fn a_root_has_room_for_every_segment_of_the_chain() {
    let mut rig = Rig::new(1, 1);
    assert_eq!((rig.state_log.chain_bytes_max(), rig.state_log.segments()), (0, 0));
    let segment_bytes = rig.pool.geometry(SegmentKind::Mirror).segment_payload_bytes;
    assert_eq!(rig.make_room(4 * segment_bytes), Some(4));
    assert_eq!((rig.state_log.chain_bytes_max(), rig.state_log.segments()), (0, 4));
    let bytes = usize::try_from(2 * segment_bytes).expect("a small number") + 1;
    rig.state_log.append(&vec![7; bytes]).expect("nothing fails");
    assert_eq!((rig.state_log.chain().len(), rig.state_log.segments()), (3, 4), "one is spare");
    let mut encoded = Vec::new();
    rig.state_log.chain().iter().for_each(|descriptor| descriptor.encode(&mut encoded));
    let most = rig.state_log.chain_bytes_max();
    assert!(encoded.len() <= most && most < 2 * encoded.len(), "{} bytes, {most} at most", encoded.len());
}
