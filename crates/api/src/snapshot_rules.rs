//! The rules by which snapshots are made and deleted: kept in the pool, and applied to it.
//!
//! # Invariants
//! 1. A rule deletes only snapshots that it has made, and none that has a hold or is its newest
//!    (`snapshot_policy::reasons`).
//! 2. A rule deletes nothing while its clock is doubted (`snapshot_policy::believe`).
//! 3. A rule that was applied late makes one snapshot, and not one for each interval that has passed.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use warpfire_env::Timestamp;
use warpfire_format::fs::{RULE_PERIODS, SnapshotRuleRecord};

use crate::snapshot::SnapshotInfo;
use crate::snapshot_policy::{
    RuleSnapshot, SnapshotPeriod, SnapshotReason, believe, is_due, kept_until, reasons,
};
use crate::{Error, ErrorKind, Result, Warpfire};

/// Longest name of a rule, so that the names of its snapshots are names.
const RULE_NAME_BYTES_MAX: usize = 200;

/// Snapshots that are read at a time.
const SNAPSHOTS_A_PAGE: usize = 4096;

/// A rule: when snapshots are made, and how long they stay. The pool keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRule {
    /// Seconds from one snapshot to the next.
    pub every_seconds: NonZeroU64,
    /// Of how many periods of each kind the oldest snapshot stays. Without any, all stay.
    pub keep: Vec<(SnapshotPeriod, u32)>,
    /// After how many seconds a snapshot goes, whatever `keep` says.
    pub expire_seconds: Option<NonZeroU64>,
    /// Thousandths of the pool, below 1000, that are to be free: while fewer are, the oldest snapshot goes
    /// each time that the rule is applied.
    pub free_permille: u16,
    /// Whether a snapshot is made only if something has changed since the newest one of the rule.
    pub only_after_change: bool,
}

/// The changes that applying the rules of a pool has made.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct AppliedRules {
    /// Snapshots that were made.
    pub made: Vec<SnapshotInfo>,
    /// Snapshots that were deleted.
    pub deleted: Vec<SnapshotInfo>,
    /// Rules that deleted nothing, because the clock has jumped by more than a day.
    pub doubting: Vec<OsString>,
    /// Rules that could not make their snapshot, and why.
    pub failed: Vec<(OsString, Error)>,
}

/// A snapshot of a rule, as the rule sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExplainedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
    /// Why it stays; `None` if the rule deletes it when it is applied.
    pub reason: Option<SnapshotReason>,
    /// The earliest moment at which the rule deletes it, if it makes a snapshot in each period until then.
    /// `None` if the rule names none: it keeps all, or this is its newest one, or one with a hold. A rule
    /// that keeps a share of the pool free may delete it earlier.
    pub until: Option<Timestamp>,
}

impl SnapshotRule {
    fn of(record: &SnapshotRuleRecord) -> Option<SnapshotRule> {
        let counts = SnapshotPeriod::ALL.into_iter().zip(record.keep);
        Some(SnapshotRule {
            every_seconds: NonZeroU64::new(record.every_seconds)?,
            keep: counts.filter(|(_, count)| *count > 0).collect(),
            expire_seconds: NonZeroU64::new(record.expire_seconds),
            free_permille: record.free_permille,
            only_after_change: record.is_only_after_change,
        })
    }

    /// The record of a rule whose clock is believed now.
    fn record(&self, now: Timestamp) -> Result<SnapshotRuleRecord> {
        if self.free_permille >= 1000 {
            return Err(Error::invalid("less than the whole pool can be free"));
        }
        let mut keep = [0; RULE_PERIODS];
        for (period, count) in &self.keep {
            keep[*period as usize] = *count;
        }
        if !self.keep.is_empty() && keep == [0; RULE_PERIODS] {
            return Err(Error::invalid("a rule that keeps no snapshot has no use"));
        }
        Ok(SnapshotRuleRecord {
            every_seconds: self.every_seconds.get(),
            keep,
            expire_seconds: self.expire_seconds.map_or(0, NonZeroU64::get),
            free_permille: self.free_permille,
            is_only_after_change: self.only_after_change,
            believed_seconds: now.seconds,
            doubted_seconds: None,
        })
    }

    /// The snapshots that this rule would have at the end of a time in which it is applied at each interval,
    /// beginning without any, and with a change before each: the moments at which they were made, from the
    /// oldest to the newest.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible rule, or for more than 1,000,000 intervals.
    pub fn simulate(&self, begin: Timestamp, seconds: u64) -> Result<Vec<Timestamp>> {
        let rule = self.record(begin)?;
        let count = seconds / self.every_seconds;
        if count > 1_000_000 {
            return Err(Error::invalid("a simulation has 1,000,000 intervals at most"));
        }
        let mut kept: Vec<RuleSnapshot> = Vec::new();
        for step in 0..=count {
            let passed = i64::try_from(step * self.every_seconds.get()).unwrap_or(i64::MAX);
            let now_seconds = begin.seconds.saturating_add(passed);
            kept.push(RuleSnapshot { made_seconds: now_seconds, is_held: false });
            let mut stay = reasons(&rule, &kept, now_seconds).into_iter();
            kept.retain(|_| stay.next().is_some_and(|reason| reason.is_some()));
        }
        Ok(kept.iter().map(|made| Timestamp { seconds: made.made_seconds, nanos: 0 }).collect())
    }
}

impl RuleSnapshot {
    fn of(snapshot: &SnapshotInfo) -> RuleSnapshot {
        RuleSnapshot { made_seconds: snapshot.made.seconds, is_held: !snapshot.holds.is_empty() }
    }
}

impl Warpfire {
    /// Stores a rule for snapshots, in the place of one of the same name. The server of a mount applies the
    /// rules of its pool; elsewhere [`apply_snapshot_rules`](Warpfire::apply_snapshot_rules) does. The rule
    /// is durable on return.
    ///
    /// # Errors
    /// `InvalidInput` for a name that no snapshot can begin with or that has more than 200 bytes, for an
    /// impossible rule, or for more than 64 rules; `NoSpace`; `ReadOnly`.
    pub fn set_snapshot_rule(
        &self,
        name: impl AsRef<OsStr>,
        rule: &SnapshotRule,
        now: Timestamp,
    ) -> Result<()> {
        let name = name.as_ref().as_bytes();
        if name.starts_with(b"@") || name.len() > RULE_NAME_BYTES_MAX {
            let reason = "the name of a rule has 1 to 200 bytes and does not begin with '@'";
            return Err(Error::invalid(reason));
        }
        self.fs().put_snapshot_rule(name, &rule.record(now)?)?;
        self.sync()
    }

    /// The rules of the pool with their names, by name.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshot_rules(&self) -> Result<Vec<(OsString, SnapshotRule)>> {
        let rules = self.fs().snapshot_rules()?.into_iter();
        Ok(rules
            .filter_map(|(name, record)| Some((OsString::from_vec(name), SnapshotRule::of(&record)?)))
            .collect())
    }

    /// Removes a rule. The snapshots that it made stay, and nothing deletes them any more but a call. This is
    /// durable on return.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`.
    pub fn remove_snapshot_rule(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.fs().remove_snapshot_rule(name.as_ref().as_bytes())?;
        self.sync()
    }

    /// The snapshots that the rules have made, from the oldest to the newest, why each stays at this moment,
    /// and until when. Those of rules that are removed are left out.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn explain_snapshot_rules(&self, now: Timestamp) -> Result<Vec<ExplainedSnapshot>> {
        let all = self.snapshots()?;
        let mut explained = Vec::new();
        for (name, rule) in self.fs().snapshot_rules()? {
            let own = of_rule(&all, &name);
            let made: Vec<RuleSnapshot> = own.iter().map(RuleSnapshot::of).collect();
            let reasons = reasons(&rule, &made, now.seconds);
            let newest_seconds = made.iter().map(|made| made.made_seconds).max().unwrap_or_default();
            explained.extend(own.into_iter().zip(reasons).map(|(snapshot, reason)| {
                let seconds = reason
                    .and_then(|reason| kept_until(&rule, reason, snapshot.made.seconds, newest_seconds));
                let until = seconds.map(|seconds| Timestamp { seconds, nanos: 0 });
                ExplainedSnapshot { snapshot, reason, until }
            }));
        }
        explained.sort_by_key(|explained| explained.snapshot.number);
        Ok(explained)
    }

    /// Makes the snapshots that are due, and deletes those that no rule keeps any more. All of it is durable
    /// on return. A rule deletes nothing after its clock has jumped by more than a day, until it has gone on
    /// for a day, or if `trusts_clock`.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use warpfire::{Pool, SnapshotPeriod, SnapshotRule, Timestamp};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// let rule = SnapshotRule {
    ///     every_seconds: NonZeroU64::new(3600).unwrap(),
    ///     keep: vec![(SnapshotPeriod::Hour, 24), (SnapshotPeriod::Day, 30)],
    ///     expire_seconds: None,
    ///     free_permille: 0,
    ///     only_after_change: false,
    /// };
    /// let now = Timestamp { seconds: 1_795_000_000, nanos: 0 };
    /// fs.set_snapshot_rule("hourly", &rule, now)?;
    /// let applied = fs.apply_snapshot_rules(now, false)?;
    /// assert_eq!(applied.made[0].name, "hourly-2026-11-18T11:06:40Z");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Damaged`; `ReadOnly`. A rule that cannot make its snapshot is in the answer.
    pub fn apply_snapshot_rules(&self, now: Timestamp, trusts_clock: bool) -> Result<AppliedRules> {
        let rules = self.fs().snapshot_rules()?.into_iter();
        self.apply_rules_of(rules.map(|(name, _)| name).collect(), now, trusts_clock)
    }

    /// Applies the rules with these names. Others may change and remove rules at any time: each is read again
    /// before it is used.
    fn apply_rules_of(
        &self,
        names: Vec<Vec<u8>>,
        now: Timestamp,
        trusts_clock: bool,
    ) -> Result<AppliedRules> {
        let mut applied = AppliedRules::default();
        if names.is_empty() {
            return Ok(applied);
        }
        let mut all = self.snapshots_of_rules()?;
        for name in names {
            let mut believes = false;
            let believed = self.fs().change_snapshot_rule(&name, |rule| {
                believes = believe(rule, now.seconds, trusts_clock);
            })?;
            let Some(rule) = believed else { continue };
            let mut own = of_rule(&all, &name);
            match self.make_due(&name, &rule, own.last(), now) {
                Ok(made) => own.extend(made.inspect(|made| applied.made.push(made.clone()))),
                Err(error) if error.kind() == ErrorKind::ReadOnly => return Err(error),
                Err(error) => applied.failed.push((OsString::from_vec(name.clone()), error)),
            }
            if !believes {
                applied.doubting.push(OsString::from_vec(name));
                continue;
            }
            // The search for changes before a snapshot is made may take long.
            let Some(rule) = self.fs().change_snapshot_rule(&name, |_| ())? else { continue };
            for snapshot in self.outdated(&rule, own, now)? {
                match self.delete_snapshot(&snapshot.name) {
                    Ok(deleted) => applied.deleted.push(deleted),
                    // Somebody was faster, or has just put a hold on it.
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Held) => {}
                    Err(error) => return Err(error),
                }
            }
            all.retain(|snapshot| !applied.deleted.iter().any(|gone| gone.number == snapshot.number));
        }
        self.sync()?;
        Ok(applied)
    }

    /// The snapshots that rules have made, from the oldest to the newest. Memory follows their number, and
    /// not that of all snapshots.
    fn snapshots_of_rules(&self) -> Result<Vec<SnapshotInfo>> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.snapshots_after(after, SNAPSHOTS_A_PAGE)?;
            let Some(last) = page.last() else { return Ok(all) };
            after = last.number;
            all.extend(page.into_iter().filter(|snapshot| snapshot.rule.is_some()));
        }
    }

    /// Makes the snapshot of a rule if one is due.
    fn make_due(
        &self,
        rule_name: &[u8],
        rule: &SnapshotRuleRecord,
        newest: Option<&SnapshotInfo>,
        now: Timestamp,
    ) -> Result<Option<SnapshotInfo>> {
        if !is_due(rule, newest.map(|newest| newest.made.seconds), now.seconds) {
            return Ok(None);
        }
        if let Some(newest) = newest.filter(|_| rule.is_only_after_change)
            && self.diff_snapshots(&newest.name, None)?.next().transpose()?.is_none()
        {
            return Ok(None);
        }
        let time = jiff::Timestamp::from_second(now.seconds)
            .map_or_else(|_| now.seconds.to_string(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let name = [rule_name, b"-", time.as_bytes()].concat();
        Ok(Some(self.fs().create_snapshot_of_rule(&name, Some(rule_name))?.into()))
    }

    /// The snapshots of a rule that go now.
    fn outdated(
        &self,
        rule: &SnapshotRuleRecord,
        own: Vec<SnapshotInfo>,
        now: Timestamp,
    ) -> Result<Vec<SnapshotInfo>> {
        let made: Vec<RuleSnapshot> = own.iter().map(RuleSnapshot::of).collect();
        let reasons = reasons(rule, &made, now.seconds);
        let newest = own.last().map(|newest| newest.number);
        let (stay, mut go): (Vec<_>, Vec<_>) =
            own.into_iter().zip(reasons).partition(|(_, reason)| reason.is_some());
        if rule.free_permille > 0 && go.is_empty() {
            let space = self.space()?;
            let total = u128::from(space.total_bytes);
            let is_short = u128::from(space.available_bytes) * 1000 < total * u128::from(rule.free_permille);
            let may_go = |pair: &(SnapshotInfo, Option<SnapshotReason>)| {
                pair.1 != Some(SnapshotReason::Held) && Some(pair.0.number) != newest
            };
            // One at a time: its bytes become free in the background.
            go.extend(stay.into_iter().find(|pair| is_short && may_go(pair)));
        }
        Ok(go.into_iter().map(|(snapshot, _)| snapshot).collect())
    }
}

/// The snapshots that a rule has made, from the oldest to the newest.
fn of_rule(all: &[SnapshotInfo], rule: &[u8]) -> Vec<SnapshotInfo> {
    let is_own = |snapshot: &&SnapshotInfo| snapshot.rule.as_ref().is_some_and(|of| of.as_bytes() == rule);
    all.iter().filter(is_own).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    fn rule(keep: Vec<(SnapshotPeriod, u32)>) -> SnapshotRule {
        let every_seconds = NonZeroU64::new(3600).expect("not zero");
        let (expire_seconds, free_permille, only_after_change) = (None, 0, false);
        SnapshotRule { every_seconds, keep, expire_seconds, free_permille, only_after_change }
    }

    fn now() -> Timestamp {
        Timestamp { seconds: 1_795_000_000, nanos: 0 }
    }

    #[test]
    fn impossible_rules_are_refused() {
        let fs = Pool::options().in_memory().expect("a pool");
        let set =
            |name: &str, rule: &SnapshotRule| fs.set_snapshot_rule(name, rule, now()).map_err(|e| e.kind());
        let good = rule(vec![(SnapshotPeriod::Hour, 1)]);
        for name in ["", "@now", "a/b", &"x".repeat(201), ".."] {
            assert_eq!(set(name, &good), Err(ErrorKind::InvalidInput), "{name}");
        }
        let whole = SnapshotRule { free_permille: 1000, ..good.clone() };
        for bad in [rule(vec![(SnapshotPeriod::Day, 0)]), whole] {
            assert_eq!(set("bad", &bad), Err(ErrorKind::InvalidInput), "{bad:?}");
        }
        assert_eq!(set("good", &good), Ok(()));
        assert_eq!(fs.snapshot_rules().expect("readable"), [("good".into(), good)]);
        assert!(rule(Vec::new()).simulate(now(), 3600 * 1_000_001).is_err());
    }

    #[test]
    fn a_rule_that_is_removed_or_changed_while_rules_are_applied_stays_so() {
        let fs = Pool::options().in_memory().expect("a pool");
        let (day, keeps) = (24 * 3600, rule(vec![(SnapshotPeriod::Day, 9)]));
        for name in ["changed", "removed"] {
            fs.set_snapshot_rule(name, &rule(vec![(SnapshotPeriod::Hour, 1)]), now()).expect("a rule");
        }
        // The names as `apply_snapshot_rules` has read them.
        let names = vec![b"changed".to_vec(), b"removed".to_vec()];
        fs.remove_snapshot_rule("removed").expect("a rule");
        fs.set_snapshot_rule("changed", &keeps, now()).expect("a rule");
        let later = Timestamp { seconds: now().seconds + day / 2, ..now() };
        let applied = fs.apply_rules_of(names, later, false).expect("nothing fails");
        assert_eq!(applied.made.len(), 1, "{:?}", applied.made);
        assert_eq!(fs.snapshot_rules().expect("readable"), [("changed".into(), keeps)]);
        let records = fs.fs().snapshot_rules().expect("readable");
        assert_eq!(records.first().map(|(_, record)| record.believed_seconds), Some(later.seconds));
    }

    #[test]
    fn a_full_pool_loses_the_oldest_snapshot_of_a_rule_at_each_look() {
        let fs = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
        let wish = SnapshotRule { free_permille: 999, ..rule(Vec::new()) };
        fs.set_snapshot_rule("r", &wish, now()).expect("a rule");
        fs.write("/file", vec![7; 1 << 20]).expect("there is room");
        for n in 0..4 {
            let name = format!("r-{n}");
            fs.fs().create_snapshot_of_rule(name.as_bytes(), Some(b"r")).expect("a snapshot");
        }
        fs.hold_snapshot("r-0", "me").expect("there is such a snapshot");
        let newest = fs.snapshots().expect("a list").pop().expect("four");
        // Within the interval of the newest one, so none is made.
        let look = || {
            let applied = fs.apply_snapshot_rules(newest.made, true).expect("nothing fails");
            assert!(applied.made.is_empty());
            let names = applied.deleted.into_iter().map(|snapshot| snapshot.name);
            names.collect::<Vec<OsString>>()
        };
        assert_eq!(
            [look(), look(), look()],
            [vec![OsString::from("r-1")], vec![OsString::from("r-2")], vec![]]
        );
    }
}
