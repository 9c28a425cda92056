//! Every fault strikes at its operation, with its effect.

use std::time::Duration;

use warpfire_env::{Clock, Device, DeviceError, OpKind, Random};
use warpfire_sim_env::{DeviceSpec, Fault, OpClass, SimCounters, SimDevice, SimRandom, SimWorld};

const BLOCK: u64 = 4096;

fn world() -> SimWorld {
    SimWorld::of(1, 1, &DeviceSpec::conventional("f", 64 * BLOCK))
}

fn block(fill: u8) -> Vec<u8> {
    vec![fill; 4096]
}

fn read(device: &SimDevice, block: u64) -> Result<u8, DeviceError> {
    let mut buf = [0; 4096];
    device.read(block * BLOCK, &mut buf).map(|()| buf[0])
}

#[test]
fn one_failure_fails_once_and_changes_nothing() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Fail { op: OpClass::Write, after: 1, lasting: false });
    device.write(0, &block(1)).unwrap();
    assert!(matches!(device.write(0, &block(2)), Err(DeviceError::Io { op: "write", .. })));
    assert_eq!(read(device, 0), Ok(1));
    device.write(0, &block(3)).unwrap();
    assert_eq!(read(device, 0), Ok(3));
}

#[test]
fn a_lasting_failure_ends_when_the_device_is_healed() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Fail { op: OpClass::Flush, after: 0, lasting: true });
    device.write(0, &block(1)).unwrap();
    assert!(device.flush().is_err() && device.flush().is_err());
    assert_eq!(device.pending_changes(), 1, "a failed flush makes nothing durable");
    assert_eq!(read(device, 0), Ok(1));
    device.heal();
    device.flush().unwrap();
    assert_eq!(device.pending_changes(), 0);
}

#[test]
fn a_late_operation_takes_place_when_the_hang_ends() {
    const LIMIT: Duration = Duration::from_secs(2);
    const HANG: Duration = Duration::from_secs(60);
    let world = world();
    let device = &world.sims()[0];
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("it fits");
    device.inject(Fault::Hang { op: None, after: 1, nanos: nanos(HANG) });
    device.write(0, &block(1)).unwrap();
    let bytes = block(2);
    let mut ops = [OpKind::Write(BLOCK, &bytes), OpKind::Flush];
    for (n, op) in ops.iter_mut().enumerate() {
        let refused = device.run_within(op, LIMIT);
        assert!(matches!(refused, Err(DeviceError::Late { limit: LIMIT, .. })), "{refused:?}");
        assert_eq!(world.clock().monotonic_nanos(), nanos(LIMIT) * (n as u64 + 1));
    }
    assert_eq!((device.unanswered(), device.peek(BLOCK, 4096)), (2, block(0)));
    // A caller without a limit waits, and finds the late write.
    assert_eq!(read(device, 1), Ok(2));
    assert_eq!(world.clock().monotonic_nanos(), nanos(HANG));
    assert_eq!((device.unanswered(), device.pending_changes()), (0, 0));
    // Healed in the middle of a hang.
    device.inject(Fault::Hang { op: Some(OpClass::Write), after: 1, nanos: nanos(HANG) });
    device.write(0, &block(3)).unwrap();
    device.run_within(&mut OpKind::Write(BLOCK, &block(4)), LIMIT).unwrap_err();
    assert_eq!(read(device, 1), Ok(2), "reads go on");
    device.heal();
    assert_eq!((device.unanswered(), read(device, 1)), (0, Ok(4)));
}

#[test]
fn a_full_device_takes_what_fits() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Full { after_bytes: 2 * BLOCK });
    device.write(0, &block(1)).unwrap();
    device.write(BLOCK, &block(1)).unwrap();
    assert!(matches!(device.write(2 * BLOCK, &block(1)), Err(DeviceError::NoSpace { .. })));
    assert_eq!(read(device, 1), Ok(1));
}

#[test]
fn a_vanished_device_returns_errors_and_comes_back_with_its_content() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Vanish { after: 1 });
    device.write(0, &block(1)).unwrap();
    let gone = DeviceError::Gone { device: "f0".to_owned() };
    assert_eq!(device.write(0, &block(2)), Err(gone.clone()));
    assert_eq!(read(device, 0), Err(gone.clone()));
    assert_eq!(device.flush(), Err(gone.clone()));
    assert_eq!(device.discard(0, BLOCK), Err(gone));
    device.heal();
    assert_eq!(read(device, 0), Ok(1));
}

#[test]
fn a_lost_write_is_acknowledged_and_absent() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &block(1)).unwrap();
    device.inject(Fault::LoseWrite { after: 0 });
    device.write(0, &block(2)).unwrap();
    device.flush().unwrap();
    assert_eq!(read(device, 0), Ok(1));
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::MisdirectWrite { after: 0, to_offset_bytes: 63 * BLOCK });
    device.write(0, &[block(1), block(2)].concat()).unwrap();
    assert_eq!((read(device, 0), read(device, 1), read(device, 63)), (Ok(0), Ok(0), Ok(1)));
}

#[test]
fn a_zoned_device_loses_a_write_behind_its_pointer() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("z", 8 * BLOCK, 4 * BLOCK));
    let device = &world.sims()[0];
    device.inject(Fault::MisdirectWrite { after: 0, to_offset_bytes: 5 * BLOCK });
    device.write(0, &block(1)).unwrap();
    device.write(BLOCK, &block(2)).unwrap();
    assert_eq!((read(device, 0), read(device, 1), read(device, 5)), (Ok(0), Ok(2), Ok(0)));
}

#[test]
fn a_stale_read_returns_the_bytes_before_the_last_write() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &block(1)).unwrap();
    device.write(0, &block(2)).unwrap();
    device.inject(Fault::StaleRead { after: 1 });
    assert_eq!([read(device, 0), read(device, 0), read(device, 0)], [Ok(2), Ok(1), Ok(2)]);
}

#[test]
fn rot_flips_one_bit_for_good() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &block(0)).unwrap();
    device.flush().unwrap();
    device.rot(0, 8 * 100 + 3);
    let mut expected = block(0);
    expected[100] = 8;
    assert_eq!(device.peek(0, 4096), expected);
    assert_eq!(world.cut(&warpfire_sim_env::Cut::LoseAll).sims()[0].peek(0, 4096), expected);
}

#[test]
fn a_slow_device_takes_simulated_time() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Slow { nanos: 5_000 });
    device.write(0, &block(1)).unwrap();
    device.flush().unwrap();
    assert_eq!(world.clock().monotonic_nanos(), 10_000);
}

#[test]
fn two_faults_on_one_operation_strike_one_after_the_other() {
    let world = world();
    let device = &world.sims()[0];
    device.inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: false });
    device.inject(Fault::LoseWrite { after: 0 });
    assert!(device.write(0, &block(1)).is_err());
    device.write(0, &block(1)).unwrap();
    assert_eq!(read(device, 0), Ok(0));
}

#[test]
fn counters_count_requests() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &[block(1), block(1)].concat()).unwrap();
    read(device, 0).unwrap();
    device.flush().unwrap();
    device.discard(0, BLOCK).unwrap();
    let expected =
        SimCounters { reads: 1, read_bytes: 4096, writes: 1, written_bytes: 8192, flushes: 1, discards: 1 };
    assert_eq!(device.counters(), expected);
}

/// Runs drawn operations against drawn faults, and returns every outcome and every byte as text.
fn run(seed: u64) -> String {
    let world = SimWorld::of(seed, 2, &DeviceSpec::conventional("f", 64 * BLOCK));
    let random = SimRandom::new(seed);
    for device in world.sims() {
        for _ in 0..3 {
            device.inject(Fault::draw(&random, 64 * BLOCK, 50));
        }
    }
    // Everything that a seed determines is part of the text, so equal texts mean equal runs.
    let mut story = String::new();
    for _ in 0..200 {
        let device = &world.sims()[usize::from(random.one_in(2))];
        let at = random.below(64) * BLOCK;
        let fill = random.next_u64().to_le_bytes()[0];
        let outcome = match random.below(4) {
            0 => format!("{:?}", read(device, at / BLOCK)),
            1 => format!("{:?}", device.flush()),
            2 => format!("{:?}", device.discard(at, BLOCK)),
            _ => format!("{:?}", device.write(at, &block(fill))),
        };
        story += &outcome;
    }
    for device in world.sims() {
        story += &format!("{:?}{:?}", device.counters(), device.peek(0, 64 * 4096));
    }
    story
}

#[test]
fn a_seed_replays_its_faults() {
    for seed in 0..20 {
        assert!(run(seed) == run(seed), "seed {seed} went two ways");
    }
    assert!(run(1) != run(2));
}

#[test]
fn an_unreadable_range_fails_reads_that_touch_it_and_nothing_else() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &[block(1), block(2), block(3)].concat()).unwrap();
    device.inject(Fault::Unreadable { offset_bytes: BLOCK, len_bytes: BLOCK });
    for _ in 0..2 {
        assert!(read(device, 1).is_err());
        assert!(device.read(0, &mut vec![0; 3 * 4096]).is_err());
        assert_eq!((read(device, 0), read(device, 2)), (Ok(1), Ok(3)));
    }
    device.write(BLOCK, &block(9)).unwrap();
    assert!(read(device, 1).is_err());
    device.heal();
    assert_eq!(read(device, 1), Ok(9));
}

#[test]
fn a_dead_zone_takes_no_write_and_no_reset_and_reads() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("f", 64 * BLOCK, 8 * BLOCK));
    let device = &world.sims()[0];
    device.write(8 * BLOCK, &block(1)).unwrap();
    device.inject(Fault::DeadZone { offset_bytes: 8 * BLOCK, len_bytes: 8 * BLOCK, is_offline: false });
    assert!(device.write(9 * BLOCK, &block(2)).is_err());
    assert!(device.reset_zone(8 * BLOCK, 8 * BLOCK).is_err());
    assert_eq!(read(device, 8), Ok(1));
    device.write(0, &block(3)).unwrap();
    device.reset_zone(0, 8 * BLOCK).unwrap();
}

#[test]
fn rot_under_a_read_stays() {
    let world = world();
    let device = &world.sims()[0];
    device.write(0, &block(0)).unwrap();
    device.inject(Fault::Rot { after: 1, bit: 1 });
    assert_eq!([(); 3].map(|()| read(device, 0)), [Ok(0), Ok(2), Ok(2)]);
}

#[test]
fn discards_and_reports_fail_by_themselves() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("f", 64 * BLOCK, 8 * BLOCK));
    let device = &world.sims()[0];
    for (op, lasting) in [(OpClass::Discard, false), (OpClass::Report, false)] {
        device.inject(Fault::Fail { op, after: 0, lasting });
    }
    assert!(device.reset_zone(0, 8 * BLOCK).is_err() && device.zone_report(0).is_err());
    assert!(device.reset_zone(0, 8 * BLOCK).is_ok() && device.zone_report(0).is_ok());
}
