//! Events: which of them report a failing device, and how often.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpfire_pool::{CreateOptions, PoolError, SegmentKind};
use warpfire_sim_env::{DeviceSpec, Fault, OpClass, SimWorld};

use crate::rig::{DEVICE_BYTES, ZONE_BYTES, create, id, options, world, write_segment};

/// Writes down each event as a line: its name, and its fields without the texts.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if !["message", "error"].contains(&field.name()) {
            write!(self.0, " {field}={value:?}").expect("a string takes all text");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().name().to_owned());
        event.record(&mut fields);
        self.0.lock().expect("no test panics inside").push(fields.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The lines of the events with this name.
fn events(name: &str, run: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), run);
    let mut lines = lines.0.lock().expect("no test panics inside").clone();
    lines.retain(|line| line.split(' ').next() == Some(name));
    lines
}

#[test]
fn a_device_that_refuses_discards_is_reported_once() {
    let (world, _) = world(110, 2, 1, 1);
    world.sims()[1].inject(Fault::Fail { op: OpClass::Discard, after: 0, lasting: true });
    let reported = events("discard_failed", || {
        let pool = create(&world, &CreateOptions { force: true, ..options(1, 1) }).unwrap();
        for n in 1..=5 {
            drop(write_segment(&pool, id(n), &[20_000]));
        }
        assert!(pool.status().devices[1].counters.errors > 3, "each zone was refused");
    });
    assert_eq!(reported, ["discard_failed device=1"]);
}

#[test]
fn a_dropped_device_is_reported_once_as_gone_or_as_failed() {
    for (fault, is_gone) in [
        (Fault::Vanish { after: 0 }, true),
        (Fault::Fail { op: OpClass::Write, after: 0, lasting: true }, false),
    ] {
        let (world, pool) = world(111, 3, 2, 1);
        world.sims()[2].inject(fault);
        let reported = events("device_dropped", || {
            drop(write_segment(&pool, id(1), &[90_000, 5000]));
            drop(write_segment(&pool, id(2), &[90_000]));
        });
        assert_eq!(reported, [format!("device_dropped device=2 is_gone={is_gone}")]);
    }
}

/// A full pool without retired zones neither speaks of them nor waits longer for the first one that retires.
#[test]
fn a_full_pool_speaks_of_retired_zones_only_where_it_has_some() {
    let world = SimWorld::of(112, 1, &DeviceSpec::zoned("flash", DEVICE_BYTES, ZONE_BYTES));
    let pool = create(&world, &CreateOptions { zone_bytes: None, ..options(1, 0) }).unwrap();
    let all = pool.free_segments(SegmentKind::Bulk);
    (1..=all).for_each(|n| drop(write_segment(&pool, id(n), &[20_000])));
    let without = events("pool_full_with_retired_zones", || {
        assert!((0..2).all(|_| !pool.find_free_zones()));
    });
    assert_eq!(without, [""; 0]);

    world.sims()[0].inject(Fault::Fail { op: OpClass::Discard, after: 0, lasting: false });
    pool.free(id(1)).unwrap();
    let refused = pool.allocate(id(1000), warpfire_pool::SegmentStream::Large);
    assert!(matches!(refused, Err(PoolError::NoSpace)));
    let with = events("pool_full_with_retired_zones", || assert!(pool.find_free_zones()));
    assert_eq!(with, ["pool_full_with_retired_zones retired=1 freed=1"]);
    drop(write_segment(&pool, id(1000), &[20_000]));
}
