//! Devices that fail, vanish and return while the pool is in use.

use std::sync::atomic::{AtomicU64, Ordering};

use warpfire::{ErrorKind, Pool, Warpfire};
use warpfire_sim_env::{Fault, OpClass, SimWorld};

use crate::rig::{checked, content, fill, name, refused, simulated, whole};

/// Writes and syncs files one by one. Returns how many were synced, and the error that ended it.
fn until_it_fails(fs: &Warpfire, from: u64, most: u64) -> (u64, Option<warpfire::Error>) {
    for number in from..from + most {
        let outcome = fs.write(name(number), content(number)).and_then(|()| fs.sync());
        if let Err(error) = outcome {
            return (number, Some(error));
        }
    }
    (from + most, None)
}

/// The pool, opened again after its devices work again.
fn reopened(world: &SimWorld) -> Warpfire {
    world.sims().iter().for_each(|device| device.heal());
    Pool::options().background(false).open_on(world.devices()).expect("a pool with sound devices opens")
}

#[test]
fn one_failed_write_or_flush_without_parity_latches_read_only_and_loses_nothing_synced() {
    for op in [OpClass::Write, OpClass::Flush] {
        for after in 0..25 {
            let (world, fs) = simulated(after, 1, 0);
            fill(&fs, 0..5);
            world.sims()[0].inject(Fault::Fail { op, after, lasting: false });
            let (synced, error) = until_it_fails(&fs, 5, 100);
            let error = error.expect("the fault strikes within 100 syncs");
            let said = refused::<()>(Err(error), ErrorKind::ReadOnly);
            assert!(said.contains("open it again"), "{said}");
            refused(fs.write("/more", b"no"), ErrorKind::ReadOnly);
            assert_eq!(whole(&fs, 0..5), 5, "{op:?} {after}: reading goes on");
            drop(fs);
            let fs = reopened(&world);
            assert_eq!(whole(&fs, 0..synced), synced, "{op:?} {after}");
            fill(&fs, synced..synced + 3);
            fs.close().expect("sound devices do not fail");
            assert!(checked(&world.devices()).is_clean(), "{op:?} {after}");
        }
    }
}

#[test]
fn failed_reads_without_parity_are_errors_and_pass() {
    let (world, fs) = simulated(1, 1, 0);
    fill(&fs, 0..40);
    fs.close().expect("sound devices do not fail");
    for after in 0..60 {
        let fork = world.fork();
        fork.sims()[0].inject(Fault::Fail { op: OpClass::Read, after, lasting: false });
        match Pool::options().background(false).open_on(fork.devices()) {
            Ok(fs) => {
                assert!(whole(&fs, 0..40) >= 39, "read {after}: one failed read fails one call");
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Device | ErrorKind::NotAPool),
                "read {after}: {error}"
            ),
        }
        assert_eq!(whole(&reopened(&fork), 0..40), 40, "read {after}");
    }
}

#[test]
fn failures_of_two_of_six_devices_are_not_noticed_but_in_the_counters() {
    for op in [OpClass::Read, OpClass::Write, OpClass::Flush] {
        for after in [0, 1, 2, 5, 11, 23] {
            let (world, fs) = simulated(after, 4, 2);
            fill(&fs, 0..20);
            for device in [0, 3] {
                world.sims()[device].inject(Fault::Fail { op, after, lasting: true });
            }
            let (synced, error) = until_it_fails(&fs, 20, 20);
            assert!(error.is_none(), "{op:?} {after}: {error:?}");
            assert_eq!(whole(&fs, 0..synced), synced, "{op:?} {after}");
            fs.close().expect("two may fail");
            let fs = reopened(&world);
            assert_eq!(whole(&fs, 0..synced), synced, "{op:?} {after}");
        }
    }
}

#[test]
fn devices_that_vanish_under_load_cost_nothing_within_parity_and_nothing_synced_beyond_it() {
    for seed in 0..6 {
        let world = SimWorld::of(seed, 6, &warpfire_sim_env::DeviceSpec::conventional("flash", 64 << 20));
        let options = Pool::options().data(4).parity(2);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        fill(&fs, 0..20);
        let device = |number: u64| &world.sims()[usize::try_from((seed + number) % 6).expect("small")];
        device(0).inject(Fault::Vanish { after: 40 });
        device(2).inject(Fault::Vanish { after: 90 });
        let synced = in_threads(&fs, 60, true);
        assert_eq!(fs.stats().lost_devices(), 2, "seed {seed}");
        device(3).inject(Fault::Vanish { after: 30 });
        let more = in_threads(&fs, 60, false);
        drop(fs);
        let fs = reopened(&world);
        assert_eq!(whole(&fs, 0..20), 20, "seed {seed}");
        for (before, after) in synced.into_iter().zip(more) {
            let end = after.max(before);
            let start = before - before % 10_000;
            assert_eq!(whole(&fs, start..end), end - start, "seed {seed}");
        }
        fill(&fs, 0..20);
        fs.close().expect("all devices are back");
        let report = checked(&world.devices());
        assert_eq!(report.errors, 0, "seed {seed}: {:?}", report.findings);
    }
}

/// Four threads write and sync files. Returns the number of the last synced file of each.
fn in_threads(fs: &Warpfire, files: u64, must_succeed: bool) -> Vec<u64> {
    let failures = AtomicU64::new(0);
    let ends = std::thread::scope(|scope| {
        let failures = &failures;
        let threads = [1u64, 2, 3, 4].map(|thread| {
            scope.spawn(move || {
                // A second run continues where the first ended.
                let start = thread * 10_000 + if must_succeed { 0 } else { files };
                let (end, error) = until_it_fails(fs, start, files);
                if let Some(error) = error {
                    failures.fetch_add(1, Ordering::Relaxed);
                    refused::<()>(Err(error), ErrorKind::ReadOnly);
                }
                end
            })
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert!(!must_succeed || failures.load(Ordering::Relaxed) == 0, "two of six may vanish");
    ends.to_vec()
}

#[test]
fn a_device_that_returns_late_does_not_bring_old_files_back() {
    let (world, fs) = simulated(3, 1, 1);
    fill(&fs, 0..10);
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    for number in 0..10 {
        fs.write(name(number), content(number + 100)).expect("one device may vanish");
    }
    fs.write("/new", b"new").expect("one device may vanish");
    fs.close().expect("one device may vanish");
    let fs = reopened(&world);
    assert_eq!(fs.read("/new").expect("written while it was away"), b"new");
    for number in 0..10 {
        assert!(
            fs.read(name(number)).expect("there") == content(number + 100),
            "file {number} is an old version"
        );
    }
}
