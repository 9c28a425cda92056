//! Damage is found, has the right severity, and never makes the check panic.

use std::sync::Arc;

use warpfire_check::{CheckError, CheckOptions, CheckReport, FindingCode, Severity, check, inspect};
use warpfire_env::Device;
use warpfire_fs::{Fs, FsOptions, FsSchema};
use warpfire_log::Log;
use warpfire_meta::Engine;
use warpfire_pool::Pool;
use warpfire_sim_env::{DeviceSpec, SimDevice, SimWorld};

use crate::rig::{PoolShape, RigRandom, SHAPES, ZONE_BYTES, checked, live, make, options, world};

fn lived(shape: PoolShape, seed: u64) -> SimWorld {
    let world = world(shape, seed);
    let fs = make(&world, shape);
    live(&fs, seed, 400);
    fs.close().expect("sound devices do not fail");
    world
}

fn has(report: &CheckReport, severity: Severity, code: FindingCode) -> bool {
    report.findings.iter().any(|f| f.severity == severity && f.code == code)
}

/// Flips one random bit in each of 60 forks of a pool.
#[test]
fn a_flipped_bit_anywhere_is_repairable_where_there_is_parity_and_never_a_panic() {
    let shape = SHAPES[3];
    let world = lived(shape, 3);
    let clean = checked(&world.devices());
    let mut draw = RigRandom(77);
    let mut found = 0;
    for case in 0..90 {
        let fork = world.fork();
        let device = &fork.sims()[draw.below(shape.2 as u64) as usize];
        // The first zones hold the roots, the commit log and the first bulk segments.
        let at = draw.below(12 * ZONE_BYTES / 4096) * 4096;
        let used = device.peek(at, 4096).iter().any(|b| *b != 0);
        device.rot(at, draw.below(4096 * 8) as usize);
        let report = checked(&fork.devices());
        assert_eq!(report.errors, 0, "case {case}, byte {at}: {:?}", report.findings);
        assert_eq!(report.totals.names, clean.totals.names, "case {case}: nothing is lost within parity");
        found += usize::from(used && !report.findings.is_empty());
    }
    assert!(found > 20, "only {found} of 90 flips were in live blocks");
}

#[test]
fn without_parity_a_flipped_bit_in_a_stripe_is_an_error() {
    let shape = SHAPES[0];
    let world = lived(shape, 4);
    let segments = inspect::segments(&world.devices()).unwrap().to_string();
    assert!(segments.contains("kind: bulk"), "{segments}");
    let device = &world.sims()[0];
    let mut lost = 0;
    for zone in 2..20 {
        // The second block of a zone is the first row of its first stripe.
        if device.peek(zone * ZONE_BYTES, 4096).iter().any(|b| *b != 0) {
            let fork = world.fork();
            fork.sims()[0].rot(zone * ZONE_BYTES + 4096 + 5, 3);
            let report = checked(&fork.devices());
            lost += u64::from(has(&report, Severity::Error, FindingCode::RowsLost));
            // The block of a lost row was called repairable.
            assert_eq!(report.repairable, 0, "{:?}", report.findings);
        }
    }
    assert!(lost > 0, "no flip hit a live stripe");
}

#[test]
fn missing_devices_are_repairable_up_to_parity_and_errors_beyond() {
    let shape = SHAPES[3];
    let world = lived(shape, 5);
    let clean = checked(&world.devices());
    for missing in 0..=3 {
        let left: Vec<Arc<dyn Device>> = world.devices().into_iter().skip(missing).collect();
        let report = checked(&left);
        let severity = if missing <= 2 { Severity::Repairable } else { Severity::Error };
        assert_eq!(has(&report, severity, FindingCode::DeviceMissing), missing > 0, "{missing} missing");
        assert_eq!(report.errors > 0, missing > 2, "{missing} missing: {:?}", report.findings);
        if missing <= 2 {
            assert_eq!(report.totals.names, clean.totals.names, "{missing} missing");
        }
    }
}

#[test]
fn destroyed_devices_within_parity_lose_nothing() {
    let shape = SHAPES[3];
    let world = lived(shape, 6);
    let clean = checked(&world.devices());
    for sim in world.sims().iter().take(2) {
        for zone in 2..96 {
            sim.poke(zone * ZONE_BYTES, &vec![0xA5; ZONE_BYTES as usize]);
        }
    }
    let report = checked(&world.devices());
    assert_eq!(report.errors, 0, "{:?}", report.findings);
    assert!(report.repairable > 0 && report.exit_code() == 4);
    assert_eq!(report.totals.names, clean.totals.names);
}

#[test]
fn a_foreign_or_repeated_device_is_reported() {
    let shape = SHAPES[2];
    let ours = lived(shape, 7);
    let theirs = lived(shape, 8);
    let mut devices = ours.devices();
    devices.push(Arc::clone(&theirs.devices()[0]));
    assert!(has(&checked(&devices), Severity::Error, FindingCode::DeviceForeign));
    let mut devices = ours.devices();
    devices.push(Arc::clone(&devices[0]));
    assert!(has(&checked(&devices), Severity::Error, FindingCode::DeviceTwice));
}

#[test]
fn a_device_without_a_root_is_a_note_unless_one_is_missing() {
    let ours = lived(SHAPES[2], 9);
    let clean = checked(&ours.devices());
    assert!(clean.is_clean(), "{:?}", clean.findings);
    // A file that is no device, and one that is too small to have roots.
    for bytes in [64 << 20, 64 << 10] {
        let stray = SimWorld::of(1, 1, &DeviceSpec::conventional("stray", bytes));
        let mut devices = ours.devices();
        devices.extend(stray.devices());
        let report = checked(&devices);
        assert!(has(&report, Severity::Note, FindingCode::DeviceForeign), "{:?}", report.findings);
        assert!(report.is_clean() && report.totals.devices == clean.totals.devices, "{:?}", report.findings);
        let mut devices = ours.devices();
        devices[0] = stray.devices().remove(0);
        let report = checked(&devices);
        assert!(has(&report, Severity::Repairable, FindingCode::DeviceForeign), "{:?}", report.findings);
        assert_eq!((report.errors, report.exit_code()), (0, 4), "{:?}", report.findings);
    }
}

#[test]
fn devices_without_a_pool_are_an_operational_error() {
    let blank = SimWorld::of(1, 2, &DeviceSpec::conventional("blank", 4 << 20));
    let no_pool = check(&blank.devices(), &CheckOptions::default());
    assert!(matches!(no_pool, Err(CheckError::NoPool(_))), "{no_pool:?}");
    assert_eq!(check(&[], &CheckOptions::default()), Err(CheckError::NoDevices));
}

/// A misdirected header matches its checksum. Only its identity shows that it belongs elsewhere.
#[test]
fn a_misdirected_stripe_is_foreign() {
    let shape = SHAPES[1];
    let world = lived(shape, 10);
    let sim = &world.sims()[0];
    let live: Vec<u64> =
        (2..40).map(|z| z * ZONE_BYTES).filter(|at| sim.peek(*at, 4096).iter().any(|b| *b != 0)).collect();
    let mut foreign = 0;
    for pair in live.windows(2) {
        let fork = world.fork();
        let header = fork.sims()[0].peek(pair[0], 4096);
        fork.sims()[0].poke(pair[1], &header);
        foreign +=
            u64::from(has(&checked(&fork.devices()), Severity::Repairable, FindingCode::HeaderForeign));
    }
    assert!(foreign > 0);
}

#[test]
fn an_older_state_is_told_from_the_newest_by_the_stripes_of_later_sessions() {
    let shape = SHAPES[0];
    let world = lived(shape, 12);
    let (pool, root) = Pool::open(world.devices(), &*world.random()).expect("the pool opens");
    let (log, recovered) = Log::open(pool, &root).expect("the log opens");
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options()).expect("the engine opens"));
    let fs = Fs::open(engine, world.clock(), FsOptions::default()).expect("the files open");
    live(&fs, 13, 100);
    fs.close().expect("sound devices do not fail");
    assert!(checked(&world.devices()).is_clean());
    // The roots of a session begin in the zone without those of the session before.
    let told = [0, 1].map(|zone| {
        let fork = world.fork();
        fork.sims()[0].poke(zone * ZONE_BYTES, &vec![0; ZONE_BYTES as usize]);
        has(&checked(&fork.devices()), Severity::Error, FindingCode::NewerSession)
    });
    assert_eq!(told, [true, false], "the second session has its roots in zone 0");
}

/// The byte at which each root of a zone begins, and the byte after the last one.
fn roots(device: &SimDevice, zone: u64) -> (Vec<u64>, u64) {
    let (mut found, mut at) = (Vec::new(), zone * ZONE_BYTES);
    loop {
        let header = device.peek(at, 4096);
        if header[4..8] != *b"WfRt" {
            return (found, at);
        }
        found.push(at);
        let body = u32::from_le_bytes(header[64..68].try_into().expect("four bytes"));
        at += 4096 + u64::from(body).next_multiple_of(4096);
    }
}

/// On a file or an ordinary drive, a session may write shorter roots over longer ones. The end of a longer
/// one then stands after the last root, without a header.
#[test]
fn a_damaged_root_is_noted_and_bytes_after_the_last_root_only_on_a_device_with_zones() {
    let bytes = 96 * ZONE_BYTES;
    for (spec, is_noted) in [
        (DeviceSpec::conventional("file", bytes), false),
        (DeviceSpec::zoned("flash", bytes, ZONE_BYTES), true),
    ] {
        let world = SimWorld::of(14, 1, &spec);
        let fs = make(&world, SHAPES[0]);
        for seed in 0..4 {
            live(&fs, seed, 100);
            fs.engine().checkpoint().expect("there is room");
        }
        fs.close().expect("sound devices do not fail");
        let noted = |world: &SimWorld| {
            let report = checked(&world.devices());
            assert!(report.is_clean(), "{:?}", report.findings);
            has(&report, Severity::Note, FindingCode::RootDamaged)
        };
        assert!(!noted(&world));

        let (found, end) =
            (0..2).map(|zone| roots(&world.sims()[0], zone)).max_by_key(|of| of.0.len()).expect("two zones");
        assert!(found.len() > 2, "{found:?}");
        let after = world.fork();
        after.sims()[0].poke(end, &[0xA5; 4096]);
        assert_eq!(noted(&after), is_noted, "{}: bytes after the last root", spec.name);
        for (place, what) in [(found[1], "header"), (found[1] + 4096, "body")] {
            let between = world.fork();
            between.sims()[0].rot(place, 70);
            assert!(noted(&between), "{}: the {what} of a root before the newest", spec.name);
        }
    }
}

#[test]
fn every_structure_can_be_dumped() {
    let shape = SHAPES[2];
    let world = lived(shape, 11);
    let devices = world.devices();
    let root = inspect::root(&devices).unwrap().to_string();
    assert!(root.contains("checkpoint:") && root.contains("records:"), "{root}");
    let report = checked(&devices);
    assert!(report.totals.tables > 0);
    let key = warpfire_format::fs::inode_key(warpfire_format::fs::VolumeId::FIRST, 1);
    let key = inspect::key(&devices, &key).unwrap().to_string();
    assert!(key.contains("type: Directory"), "{key}");
    let inode = inspect::inode(&devices, 1).unwrap().to_string();
    assert!(inode.contains("parent: 1"), "{inode}");
    let tables = inspect::tables(&devices).unwrap().to_string();
    let first: u64 = tables.split("table: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let table = inspect::table(&devices, first).unwrap().to_string();
    assert!(table.contains("data_blocks:"), "{table}");
    let segments = inspect::segments(&devices).unwrap().to_string();
    let first: u64 = segments.split("segment: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert!(inspect::segment(&devices, first).unwrap().to_string().contains("columns:"));
    assert!(inspect::stripe(&devices, first, 0).unwrap().to_string().contains("readable: yes"));
    assert!(matches!(inspect::segment(&devices, 999_999), Err(CheckError::NotFound(_))));
}
