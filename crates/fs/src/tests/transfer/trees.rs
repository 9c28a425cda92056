//! Random trees and histories.

use super::*;
use crate::tests::engine::{format, open};
use crate::tests::world;

/// Sends a history step by step, and compares the receiver with each snapshot.
fn chain<E: Storage + SnapshotStore>(
    source: &Fs<E>,
    other: &Arc<Fs<E>>,
    seed: u64,
    steps: u64,
    root: &str,
    between: &dyn Fn(&E, &mut TestRandom),
) {
    chain_by(source, other, (seed, steps), root, between, &|name| name);
}

/// As `chain`. `base_of` gets the name of a snapshot that was sent, and returns the name of the next base.
pub(super) fn chain_by<E: Storage + SnapshotStore>(
    source: &Fs<E>,
    other: &Arc<Fs<E>>,
    (seed, steps): (u64, u64),
    root: &str,
    between: &dyn Fn(&E, &mut TestRandom),
    base_of: &dyn Fn(String) -> String,
) {
    let mut random = TestRandom(seed);
    if root != "/" {
        source.mkdir(&ROOT, &source.root(), &root.as_bytes()[1..], NewMode::exact(0o755)).unwrap();
    }
    let mut before: Option<String> = None;
    let mut top_before = None;
    for step in 0..steps {
        let count = 1 + random.below(if step == 0 { 120 } else { 60 });
        Changes { fs: source, random: &mut random }.make(count);
        if source
            .resolve(&ROOT, &source.root(), root.as_bytes(), Follow::No)
            .map_or(true, |dir| !dir.is_dir())
        {
            return;
        }
        // Another directory of this name is sent whole.
        let top = source.resolve(&ROOT, &source.root(), root.as_bytes(), Follow::No).unwrap().ino();
        if top_before.replace(top).is_some_and(|before| before != top) {
            return;
        }
        let name = format!("s{step}");
        source.create_snapshot(name.as_bytes()).unwrap();
        between(source.engine(), &mut random);
        let what = format!("seed {seed}, step {step}");
        let then = source.open_snapshot(name.as_bytes()).unwrap();
        let wanted = picture(&*then, root);
        let bytes = stream(source, before.as_deref(), &name, root);
        let received = receive(other, "/copy", &bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        between(other.engine(), &mut random);
        same(&picture(&**other, "/copy"), &wanted, &what);
        let kept = other.open_snapshot(&received.snapshot.name).unwrap();
        same(&picture(&*kept, "/copy"), &wanted, &format!("{what}, as it is kept"));
        assert_eq!(
            other.readdir(&ROOT, &other.root(), None, 9).unwrap().len(),
            1,
            "{what}: no spool is listed"
        );
        // Counters reach their records at a sync point.
        other.sync().unwrap();
        crate::tests::check::check(&**other.engine(), &what);
        drop(then);
        before = Some(base_of(name));
    }
}

#[test]
fn random_histories_arrive_over_the_twin() {
    for seed in 0..60 {
        let (source, other) = (world(), Arc::new(world()));
        chain(&source, &other, seed, 5, "/", &|_, _| {});
    }
}

#[test]
fn random_histories_of_one_directory_arrive() {
    for seed in 100..140 {
        let (source, other) = (world(), Arc::new(world()));
        chain(&source, &other, seed, 6, "/n3", &|_, _| {});
    }
}

#[test]
fn random_histories_arrive_whatever_the_engine_does_to_their_bytes() {
    for seed in 200..206 {
        let (source, other) = (open(format(), Fs::format), Arc::new(open(format(), Fs::format)));
        chain(&source, &other, seed, 4, "/", &upkeep);
    }
}
