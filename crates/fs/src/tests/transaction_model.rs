//! Random transactions against a tree of names in which their calls are made one after the other, also under
//! power cuts.

use std::sync::Arc;

use warpfire_meta::{Storage, Store};

use super::check::check;
use super::tree_model::{Tree, listing, step, twin_of};
use super::{TestRandom, world_with};
use crate::{Fs, FsOptions};

/// Makes one random transaction. Its calls answer as those of the twin, and other callers see all or nothing.
fn transact<E: Storage>(fs: &Arc<Fs<E>>, tree: &mut Tree, draw: &mut TestRandom, what: &str) {
    let tx = fs.begin().unwrap();
    let mut tx_fs = tree.clone();
    let mut points = Vec::new();
    for n in 0..draw.below(12) {
        let what = format!("{what} call {n}");
        match draw.below(8) {
            0 => points.push((tx.savepoint(), tx_fs.clone())),
            1 => {
                if let Some((point, then)) = points.pop() {
                    tx.roll_back(&point).unwrap();
                    tx_fs = then;
                }
            }
            _ => step(tx.files(), &mut tx_fs, draw, &what),
        }
    }
    assert_eq!(listing(tx.files()), tx_fs.listing(), "{what}, inside");
    assert_eq!(listing(fs), tree.listing(), "{what}, outside, before");
    if draw.below(4) == 0 {
        return tx.abort();
    }
    if draw.below(3) == 0 {
        // A sync writes pending times into records that the transaction has read: its calls are replayed.
        fs.sync().unwrap();
    }
    tx.commit().unwrap_or_else(|e| panic!("{what}: {e}"));
    *tree = tx_fs;
    assert_eq!(listing(fs), tree.listing(), "{what}, outside, after");
}

#[test]
fn random_transactions_do_what_their_calls_would_do_one_after_the_other() {
    for seed in 0..30 {
        let (engine, clock) = world_with();
        let fs = Arc::new(Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap());
        let mut draw = TestRandom(9000 + seed);
        let mut tree = Tree::new();
        // Nodes that the base holds, as the kernel holds the ones that it knows.
        let mut held = Vec::new();
        for n in 0..40 {
            let what = format!("seed {seed} step {n}");
            if draw.below(3) == 0 {
                step(&*fs, &mut tree, &mut draw, &what);
            } else {
                transact(&fs, &mut tree, &mut draw, &what);
            }
            for entry in fs.readdir(&crate::acl::Caller::ROOT, &fs.root(), None, 2).unwrap() {
                held.extend(fs.lookup(&crate::acl::Caller::ROOT, &fs.root(), &entry.name));
            }
            if draw.below(4) == 0 {
                held.clear();
            }
        }
        held.clear();
        fs.sync().unwrap();
        check(&*engine, &format!("seed {seed}"));
        drop(fs);
        let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
        assert_eq!(listing(&fs), tree.listing(), "seed {seed}, reopened");
    }
}

#[test]
fn a_power_cut_leaves_transactions_whole_or_not_there() {
    use super::engine::{format, open};
    for seed in 0..12 {
        let mut draw = TestRandom(7000 + seed);
        let mut fs = Arc::new(open(format(), Fs::format));
        for round in 0..4 {
            let mut tree = twin_of(&*fs);
            let mut moments = vec![tree.listing()];
            for n in 0..draw.below(25) {
                transact(&fs, &mut tree, &mut draw, &format!("seed {seed} round {round} step {n}"));
                moments.push(tree.listing());
                match draw.below(12) {
                    0 => fs.sync().unwrap(),
                    1 | 2 => _ = fs.engine().background_step().unwrap(),
                    3 => fs.engine().flush().unwrap(),
                    _ => {}
                }
                let recovered = open(fs.engine().log().crash_seeded(draw.next()), |_, _, _, _| Ok(()));
                let found = listing(&recovered);
                assert!(
                    moments.contains(&found),
                    "seed {seed} round {round} step {n}: a part of a transaction"
                );
                recovered.sync().unwrap();
                check(&**recovered.engine(), &format!("seed {seed} round {round} step {n}"));
            }
            fs = Arc::new(open(fs.engine().log().crash_seeded(draw.next()), |_, _, _, _| Ok(())));
        }
    }
}
