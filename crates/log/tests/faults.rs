//! Devices that fail: at the Nth read, write or flush, once or for good, by vanishing, or without an answer.
//!
//! Within parity the client notices nothing, except that a full host stops the pool. Beyond it the log
//! latches read-only, every write returns that, and everything synced is there after reopening.

mod rig;

use rig::{Client, SHAPES, Shape, open, shape};
use warpfire_log::{LogError, LogStore, Stream};
use warpfire_sim_env::{Fault, OpClass, SimRandom, SimWorld, mix};

const STEPS: u64 = 40;

/// Longer than any operation waits for a device.
const HOUR_NANOS: u64 = 3600 * 1_000_000_000;

fn fault(kind: u64, after: u64) -> Fault {
    let fail = |op, lasting| Fault::Fail { op, after, lasting };
    let hang = |op| Fault::Hang { op, after, nanos: HOUR_NANOS };
    match kind {
        0 => fail(OpClass::Read, false),
        1 => fail(OpClass::Read, true),
        2 => fail(OpClass::Write, false),
        3 => fail(OpClass::Write, true),
        4 => fail(OpClass::Flush, false),
        5 => fail(OpClass::Flush, true),
        6 => Fault::Vanish { after },
        7 => Fault::Full { after_bytes: after * 4096 },
        8 => hang(Some(OpClass::Read)),
        9 => hang(Some(OpClass::Write)),
        10 => hang(Some(OpClass::Flush)),
        _ => hang(None),
    }
}

/// Takes random steps until the first error, which must be the latch. Returns whether there was one.
fn live(client: &mut Client, random: &SimRandom, context: &str) -> bool {
    for _ in 0..STEPS {
        match client.step(random) {
            Ok(()) => {}
            Err(LogError::ReadOnly(_)) => return true,
            Err(e) => panic!("{context}: {e}"),
        }
    }
    false
}

/// After the devices work again, everything acknowledged is there, and perhaps more.
fn reopen_and_check(world: &SimWorld, client: &Client, context: &str) {
    for device in world.sims() {
        device.heal();
    }
    let opened = open(world).unwrap_or_else(|e| panic!("{context}, reopened: {e}"));
    Client::recovered(opened, &client.history, client.acked, context);
}

/// Returns whether the log latched.
fn nth_failure(shape: Shape, kind: u64, after: u64, victims: usize) -> bool {
    let context = format!("{shape:?}, kind {kind}, operation {after}, {victims} devices");
    let world = shape.world(mix(kind ^ after << 8));
    let random = SimRandom::new(mix(after ^ kind << 32));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    for device in &world.sims()[..victims] {
        device.inject(fault(kind, after));
    }
    let latched = live(&mut client, &random, &context);
    // A full host stops the pool: it is the host of the other devices too, as far as the pool knows.
    let within = victims <= usize::from(shape.parity) && !matches!(fault(kind, after), Fault::Full { .. });
    assert!(!(within && latched), "{context}: latched within parity");
    if latched {
        let error = client.log.append(Stream::Small, b"x").expect_err("a latched log takes nothing");
        assert!(matches!(error, LogError::ReadOnly(_)), "{context}: {error}");
        assert!(matches!(client.log.sync(), Err(LogError::ReadOnly(_))), "{context}: sync");
    } else if within {
        client.check(&context);
    }
    reopen_and_check(&world, &client, &context);
    latched
}

#[test]
fn any_operation_of_one_device_may_fail_within_parity() {
    for shape in [SHAPES[1], SHAPES[2], SHAPES[3]] {
        for kind in 0..12 {
            for after in 0..40 {
                nth_failure(shape, kind, after, 1);
            }
        }
    }
}

#[test]
fn any_operation_of_two_devices_may_fail_within_parity() {
    for kind in 0..12 {
        for after in (0..40).step_by(2) {
            nth_failure(SHAPES[3], kind, after, 2);
        }
    }
}

#[test]
fn writes_that_fail_beyond_parity_latch_and_lose_nothing_that_was_synced() {
    for (shape, victims) in [(SHAPES[0], 1), (SHAPES[1], 2), (SHAPES[2], 2), (SHAPES[3], 3)] {
        for kind in 2..8 {
            let latched = (0..40).filter(|after| nth_failure(shape, kind, *after, victims)).count();
            assert!(latched > 0, "{shape:?}, kind {kind}: no failure struck");
        }
    }
}

#[test]
fn reads_that_fail_beyond_parity_are_errors_and_pass() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).expect("blank devices take a log");
    let slice = log.append(Stream::Large, &[7; 30_000]).expect("there is room")[0];
    log.sync().expect("nothing fails");
    for device in world.sims() {
        device.inject(Fault::Fail { op: OpClass::Read, after: 0, lasting: true });
    }
    let mut bytes = vec![0; 30_000];
    assert!(matches!(log.read(slice, &mut bytes), Err(LogError::Damaged(_))));
    world.sims().iter().for_each(|d| d.heal());
    log.read(slice, &mut bytes).expect("the devices are back");
    assert!(bytes.iter().all(|b| *b == 7));
}

#[test]
fn a_damaged_segment_is_the_first_victim() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).expect("blank devices take a log");
    let slices: Vec<_> =
        (0..60u8).map(|n| log.append(Stream::Large, &[n; 20_000]).expect("there is room")[0]).collect();
    log.sync().expect("nothing fails");
    for slice in slices.iter().filter(|s| s.segment != slices[20].segment).step_by(2) {
        log.release(slice.segment, u64::from(slice.len_bytes));
    }
    world.sims()[0].inject(Fault::Fail { op: OpClass::Read, after: 0, lasting: false });
    world.sims()[1].inject(Fault::Fail { op: OpClass::Read, after: 0, lasting: false });
    let mut bytes = vec![0; 20_000];
    let damaged = slices[20];
    assert_eq!(log.damage_seen(), 0);
    while !log.pool().damaged_segments().contains(&damaged.segment) {
        world.sims()[2].inject(Fault::Fail { op: OpClass::Read, after: 0, lasting: false });
        let _read_or_refused = log.read(damaged, &mut bytes);
    }
    assert!(log.damage_seen() > 0);
    assert_eq!(log.victims(1), [damaged.segment]);
}

#[test]
fn an_opened_pool_with_a_device_missing_goes_on_and_takes_it_back() {
    for shape in [SHAPES[1], SHAPES[2], SHAPES[3]] {
        for lost in 0..shape.devices {
            let context = format!("{shape:?} without device {lost}");
            let world = shape.world(7);
            let random = SimRandom::new(7);
            let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
            assert!(!live(&mut client, &random, &context));
            client.sync().expect("nothing fails");
            drop(client.log);
            world.sims()[lost].inject(Fault::Vanish { after: 0 });
            let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
            let mut client = Client::recovered(opened, &client.history, client.acked, &context);
            assert!(!live(&mut client, &random, &context));
            client.check(&context);
            client.sync().expect("nothing more fails");
            drop(client.log);
            world.sims()[lost].heal();
            let opened = open(&world).unwrap_or_else(|e| panic!("{context}, back: {e}"));
            Client::recovered(opened, &client.history, client.acked, &context);
        }
    }
}
