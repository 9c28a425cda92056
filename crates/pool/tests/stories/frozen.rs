//! Frozen states: what the devices hold stays readable while the pool goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpfire_env::{AlignedBuf, Device};
use warpfire_pool::{Pool, SegmentKind};

use crate::rig::{assert_reads, devices_without, id, open_with, world, write_segment};

/// Fills all zones that bulk segments may take. Returns the number of segments.
fn fill(pool: &Pool, first: u64) -> u64 {
    let free = pool.free_segments(SegmentKind::Bulk);
    for number in 0..free {
        let _ = write_segment(pool, id(first + number), &[5000, 100_000]);
    }
    assert_eq!(pool.free_segments(SegmentKind::Bulk), 0);
    free
}

#[test]
fn a_frozen_state_stays_readable_until_it_is_dropped() {
    let (world, pool) = world(1, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[5000, 100_000, 70_000]);
    let (frozen, devices) = pool.freeze(<[_]>::len);
    let (second, ()) = pool.freeze(|_| ());
    assert_eq!(devices, 3);
    let free = pool.free_segments(SegmentKind::Bulk);
    pool.free(id(1)).unwrap();
    assert_eq!((pool.kept_zones(), pool.free_segments(SegmentKind::Bulk)), (3, free));
    fill(&pool, 100);
    assert_reads(&open_with(devices_without(&world, &[]), &[&written]), &written);
    drop(frozen);
    assert_eq!(pool.kept_zones(), 3, "the other state is frozen still");
    assert!(!second.is_given_up());
    drop(second);
    assert_eq!((pool.kept_zones(), pool.free_segments(SegmentKind::Bulk)), (0, 1));
    fill(&pool, 200);
}

#[test]
fn zones_that_were_freed_before_are_used_while_a_state_is_frozen() {
    let (_world, pool) = world(2, 3, 2, 1);
    let _ = write_segment(&pool, id(1), &[5000]);
    pool.free(id(1)).unwrap();
    let (frozen, ()) = pool.freeze(|_| ());
    fill(&pool, 100);
    assert_eq!(pool.kept_zones(), 0);
    assert!(!pool.find_free_zones() && !frozen.is_given_up(), "it keeps nothing");
}

#[test]
fn a_pool_without_room_takes_the_zones_of_frozen_states() {
    let (_world, pool) = world(3, 3, 2, 1);
    let _ = write_segment(&pool, id(1), &[5000]);
    let _ = write_segment(&pool, id(2), &[5000]);
    let (first, ()) = pool.freeze(|_| ());
    pool.free(id(1)).unwrap();
    fill(&pool, 100);
    assert!(pool.find_free_zones());
    assert!(first.is_given_up());
    assert_eq!((pool.kept_zones(), fill(&pool, 200)), (0, 1));
    // A later one is not concerned, nor does the end of the first one thaw it.
    let (later, ()) = pool.freeze(|_| ());
    drop(first);
    pool.free(id(2)).unwrap();
    assert_eq!((pool.kept_zones(), later.is_given_up()), (3, false));
    drop(later);
    assert_eq!(pool.kept_zones(), 0);
}

/// All bytes of a device.
fn content(device: &Arc<dyn Device>) -> AlignedBuf {
    let len = usize::try_from(device.info().size_bytes).expect("a small device");
    let mut content = AlignedBuf::zeroed(len);
    device.read(0, &mut content[..len]).expect("a sound device");
    content
}

/// Sets the flag when it is dropped.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_written_while_a_reader_loads() {
    let (_world, pool) = world(4, 3, 2, 1);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A reader that panics ends the writer too.
        let ending = EndsOnDrop(&ends);
        let writer = scope.spawn(|| {
            for number in (1..).take_while(|_| !ends.load(Ordering::Relaxed)) {
                // A state that is frozen for long keeps all zones.
                while pool.free_segments(SegmentKind::Bulk) == 0 {
                    let _given_up = pool.find_free_zones();
                    std::thread::yield_now();
                }
                let _ = write_segment(&pool, id(number), &[5000, 300, 40_000]);
                pool.write_root(&number.to_le_bytes()).unwrap();
                pool.free(id(number)).unwrap();
            }
        });
        for _ in 0..20 {
            let (_frozen, ()) = pool.freeze(|devices| {
                let before: Vec<_> = devices.iter().map(content).collect();
                std::thread::yield_now();
                assert!(
                    devices.iter().zip(&before).all(|(device, before)| content(device)[..] == before[..])
                );
            });
        }
        drop(ending);
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_panics_thaws_the_state() {
    let (_world, pool) = world(5, 3, 2, 1);
    let _ = write_segment(&pool, id(1), &[5000]);
    let reader = std::panic::AssertUnwindSafe(|| pool.freeze(|_| panic!("a reader fails")).1);
    assert!(std::panic::catch_unwind(reader).is_err());
    pool.free(id(1)).unwrap();
    assert_eq!(pool.kept_zones(), 0);
    let _ = write_segment(&pool, id(2), &[5000]);
}
