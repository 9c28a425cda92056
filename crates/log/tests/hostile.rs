//! Roots and pointers that verify and make no sense: typed errors, no panic.

mod rig;

use rig::shape;
use warpfire_format::log_state::LogState;
use warpfire_log::{Log, LogError, LogStore, Stream};
use warpfire_pool::Pool;
use warpfire_sim_env::DistinctNumbers;
use warpfire_units::{SegmentId, SlicePtr};

/// Opens a log whose root was changed, after it decoded.
fn open_changed(change: impl Fn(&mut LogState)) -> Result<(), LogError> {
    let shape = shape(1, 0, 1);
    let world = shape.world(1);
    let log = shape.create(&world).expect("it succeeds in this test");
    log.log(b"a record").expect("it succeeds in this test");
    log.checkpoint(b"client", log.position()).expect("it succeeds in this test");
    drop(log);
    let (pool, root) =
        Pool::open_degraded(world.devices(), &DistinctNumbers).expect("it succeeds in this test");
    let (mut state, client) = LogState::decode(&root.payload).expect("it succeeds in this test");
    change(&mut state);
    pool.write_root(&state.encode(client)).expect("it succeeds in this test");
    let (pool, root) =
        Pool::open_degraded(world.devices(), &DistinctNumbers).expect("it succeeds in this test");
    Log::open(pool, &root).map(|_| ())
}

#[test]
fn numbers_at_their_end_are_refused() {
    open_changed(|_| {}).expect("an unchanged root opens");
    let changes: [fn(&mut LogState); 6] = [
        |s| s.next_pos = u64::MAX,
        |s| (s.next_pos, s.keep_from) = (u64::MAX, u64::MAX),
        |s| s.barrier = u64::MAX,
        |s| s.sequence = u64::MAX,
        |s| s.checkpoint = u64::MAX,
        |s| s.next_segment = SegmentId::new(u64::MAX).unwrap(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let refused = open_changed(change);
        assert!(matches!(refused, Err(LogError::Corrupt { .. })), "change {n}: {refused:?}");
    }
}

#[test]
fn pointers_behind_the_end_of_an_open_segment_are_bad() {
    let shape = shape(2, 1, 3);
    let log = shape.create(&shape.world(1)).unwrap();
    let slice = log.append(Stream::Large, &[1; 5000]).unwrap()[0];
    for offset_bytes in [4097, 1 << 40, u64::MAX - 5000, u64::MAX - 10, u64::MAX] {
        let mut bytes = vec![0; 5000];
        let bad = SlicePtr { offset_bytes, ..slice };
        let refused = log.read(bad, &mut bytes);
        assert!(matches!(refused, Err(LogError::BadPointer(_))), "{bad}: {refused:?}");
    }
}
