//! Holds of snapshots and rules for them: what they refuse, and that a crash leaves them whole.

use warpfire_format::fs::{SNAPSHOT_HOLDS_MAX, SnapshotRuleRecord};

use super::check::check;
use super::engine::{format, open};
use super::world;
use crate::{Fs, FsError};

fn rule(every_seconds: u64) -> SnapshotRuleRecord {
    SnapshotRuleRecord {
        every_seconds,
        keep: [0, 24, 30, 0, 0, 0],
        expire_seconds: 0,
        free_permille: 0,
        is_only_after_change: false,
        believed_seconds: 5,
        doubted_seconds: None,
    }
}

#[test]
fn a_snapshot_with_a_hold_is_not_deleted() {
    let fs = world();
    fs.create_snapshot(b"monday").unwrap();
    let held = fs.hold_snapshot(b"monday", b"backup").unwrap();
    assert_eq!(held.holds, [b"backup"]);
    assert_eq!(fs.hold_snapshot(b"monday", b"audit").unwrap().holds, [&b"audit"[..], b"backup"]);
    assert!(matches!(fs.hold_snapshot(b"monday", b"audit"), Err(FsError::Exists)));
    assert!(matches!(fs.hold_snapshot(b"tuesday", b"audit"), Err(FsError::NotFound)));
    assert!(matches!(fs.hold_snapshot(b"monday", b"a/b"), Err(FsError::Invalid(_))));
    let Err(FsError::SnapshotHeld(holds)) = fs.delete_snapshot(b"monday") else { panic!("it is held") };
    assert_eq!(&*holds, "audit, backup");
    assert_eq!(fs.snapshots().unwrap(), [fs.snapshot(b"monday").unwrap()]);
    assert!(matches!(fs.release_snapshot(b"monday", b"none"), Err(FsError::NotFound)));
    fs.release_snapshot(b"monday", b"backup").unwrap();
    fs.release_snapshot(b"monday", b"audit").unwrap();
    for n in 0..SNAPSHOT_HOLDS_MAX {
        fs.hold_snapshot(b"monday", n.to_string().as_bytes()).unwrap();
    }
    assert!(matches!(fs.hold_snapshot(b"monday", b"more"), Err(FsError::Invalid(_))));
    for n in 0..SNAPSHOT_HOLDS_MAX {
        fs.release_snapshot(b"monday", n.to_string().as_bytes()).unwrap();
    }
    fs.delete_snapshot(b"monday").unwrap();
    check(&**fs.engine(), "at the end");
}

#[test]
fn a_snapshot_of_a_rule_names_it() {
    let fs = world();
    let made = fs.create_snapshot_of_rule(b"hourly-1", Some(b"hourly")).unwrap();
    assert_eq!(made.rule.as_deref(), Some(&b"hourly"[..]));
    fs.hold_snapshot(b"hourly-1", b"x").unwrap();
    assert_eq!(fs.snapshot(b"hourly-1").unwrap().rule, made.rule);
    assert!(matches!(fs.create_snapshot_of_rule(b"hourly-2", Some(b"")), Err(FsError::Invalid(_))));
}

#[test]
fn rules_are_listed_by_name_replaced_and_removed() {
    let fs = world();
    fs.put_snapshot_rule(b"weekly", &rule(7)).unwrap();
    fs.put_snapshot_rule(b"daily", &rule(1)).unwrap();
    fs.put_snapshot_rule(b"weekly", &rule(8)).unwrap();
    let rules = fs.snapshot_rules().unwrap();
    assert_eq!(rules, [(b"daily".to_vec(), rule(1)), (b"weekly".to_vec(), rule(8))]);
    fs.remove_snapshot_rule(b"daily").unwrap();
    assert!(matches!(fs.remove_snapshot_rule(b"daily"), Err(FsError::NotFound)));
    assert_eq!(fs.snapshot_rules().unwrap().len(), 1);
    for n in 1..64 {
        fs.put_snapshot_rule(format!("r{n}").as_bytes(), &rule(1)).unwrap();
    }
    assert!(matches!(fs.put_snapshot_rule(b"one more", &rule(1)), Err(FsError::Invalid(_))));
    fs.put_snapshot_rule(b"weekly", &rule(9)).unwrap();
    assert_eq!(fs.snapshot_rules().unwrap().len(), 64);
    check(&**fs.engine(), "at the end");
}

#[test]
fn holds_and_rules_survive_a_power_cut_after_the_sync() {
    for seed in 0..20 {
        let fs = open(format(), Fs::format);
        fs.create_snapshot(b"monday").unwrap();
        fs.hold_snapshot(b"monday", b"backup").unwrap();
        fs.put_snapshot_rule(b"daily", &rule(1)).unwrap();
        if seed % 2 == 0 {
            fs.engine().flush().unwrap();
        }
        fs.sync().unwrap();
        fs.release_snapshot(b"monday", b"backup").unwrap();
        fs.remove_snapshot_rule(b"daily").unwrap();
        let recovered = fs.engine().log().crash_seeded(seed);
        let fs = open(recovered, |_, _, _, _| Ok(()));
        // What came after the sync is there as a whole prefix.
        let (held, rules) = (!fs.snapshot(b"monday").unwrap().holds.is_empty(), fs.snapshot_rules().unwrap());
        assert!(!held || rules == [(b"daily".to_vec(), rule(1))], "seed {seed}: {rules:?}");
        check(&**fs.engine(), "at the end");
    }
}
