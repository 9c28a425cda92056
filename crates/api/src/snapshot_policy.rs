//! A rule for snapshots at one moment: whether one is due, which stay, and whether the clock is believed.
//! Nothing here reads or changes a pool.

use jiff::Timestamp;
use warpfire_format::fs::{RULE_PERIODS, SnapshotRuleRecord};

/// By how much a clock may jump and deletions still believe it.
const JUMP_SECONDS_MAX: u64 = 86_400;

/// How long a clock that has jumped must go on before deletions believe it.
const PROBATION_SECONDS: u64 = 86_400;

/// Believed times are stored when they are older than this, so that a rule does not write at every look.
const STORED_SECONDS: u64 = 3600;

/// A kind of period of which a rule keeps one snapshot each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotPeriod {
    /// A quarter of an hour.
    Quarter,
    /// An hour.
    Hour,
    /// A day, in UTC.
    Day,
    /// A week, from Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl SnapshotPeriod {
    /// All kinds, in the order of the counts in a record.
    pub(crate) const ALL: [SnapshotPeriod; RULE_PERIODS] = [
        SnapshotPeriod::Quarter,
        SnapshotPeriod::Hour,
        SnapshotPeriod::Day,
        SnapshotPeriod::Week,
        SnapshotPeriod::Month,
        SnapshotPeriod::Year,
    ];

    /// The number of the period that a moment is in.
    fn number(self, seconds: i64) -> i64 {
        const DAY: i64 = 86_400;
        // Outside of the years that the calendar has, months and years are of 30 and 365 days.
        let date = || Timestamp::from_second(seconds).map(|at| at.to_zoned(jiff::tz::TimeZone::UTC).date());
        match self {
            SnapshotPeriod::Quarter => seconds.div_euclid(900),
            SnapshotPeriod::Hour => seconds.div_euclid(3600),
            SnapshotPeriod::Day => seconds.div_euclid(DAY),
            // 1970 began on a Thursday.
            SnapshotPeriod::Week => (seconds.div_euclid(DAY) + 3).div_euclid(7),
            SnapshotPeriod::Month => date().map_or(seconds.div_euclid(30 * DAY), |date| {
                i64::from(date.year()) * 12 + i64::from(date.month()) - 1
            }),
            SnapshotPeriod::Year => {
                date().map_or(seconds.div_euclid(365 * DAY), |date| i64::from(date.year()))
            }
        }
    }
}

impl SnapshotPeriod {
    /// The first second of a period of this number; `None` if the calendar does not have it.
    fn begin(self, number: i64) -> Option<i64> {
        const DAY: i64 = 86_400;
        let date = |year: i64, month: i64| {
            let date =
                jiff::civil::Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
            Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
        };
        match self {
            SnapshotPeriod::Quarter => number.checked_mul(900),
            SnapshotPeriod::Hour => number.checked_mul(3600),
            SnapshotPeriod::Day => number.checked_mul(DAY),
            SnapshotPeriod::Week => number.checked_mul(7)?.checked_sub(3)?.checked_mul(DAY),
            SnapshotPeriod::Month => date(number.div_euclid(12), number.rem_euclid(12) + 1),
            SnapshotPeriod::Year => date(number, 1),
        }
    }
}

/// Why a snapshot that a rule made stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SnapshotReason {
    /// It has a hold.
    Held,
    /// It is the newest one of its rule.
    Newest,
    /// The rule keeps all.
    All,
    /// It is the oldest one of a period.
    Period {
        /// The kind of the period.
        period: SnapshotPeriod,
        /// How many periods of this kind with snapshots are newer.
        newer: u32,
        /// Of how many periods of this kind the rule keeps one.
        kept: u32,
    },
}

/// A snapshot that a rule made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleSnapshot {
    /// When it was made, in seconds since 1970.
    pub made_seconds: i64,
    pub is_held: bool,
}

/// Why each snapshot of a rule stays at this moment; `None` for those that go. They are in the order in which
/// they were made. Of several reasons the one that lasts longest is given.
pub(crate) fn reasons(
    rule: &SnapshotRuleRecord,
    snapshots: &[RuleSnapshot],
    now_seconds: i64,
) -> Vec<Option<SnapshotReason>> {
    let mut reasons = vec![None; snapshots.len()];
    if rule.keep == [0; RULE_PERIODS] {
        reasons.fill(Some(SnapshotReason::All));
    }
    // By time: a clock that was set back does not matter.
    let mut by_time: Vec<usize> = (0..snapshots.len()).collect();
    by_time.sort_by_key(|at| snapshots[*at].made_seconds);
    for (period, kept) in SnapshotPeriod::ALL.into_iter().zip(rule.keep) {
        let number = |at: &usize| period.number(snapshots[*at].made_seconds);
        let mut oldest: Vec<usize> = by_time.clone();
        oldest.dedup_by_key(|at| number(at));
        for (newer, at) in (0..kept).zip(oldest.into_iter().rev()) {
            reasons[at] = Some(SnapshotReason::Period { period, newer, kept });
        }
    }
    let is_expired = |made_seconds: i64| {
        let age = now_seconds.saturating_sub(made_seconds);
        rule.expire_seconds > 0 && u64::try_from(age).is_ok_and(|age| age >= rule.expire_seconds)
    };
    let newest = snapshots.len().checked_sub(1);
    for (at, (reason, snapshot)) in reasons.iter_mut().zip(snapshots).enumerate() {
        if is_expired(snapshot.made_seconds) {
            *reason = None;
        }
        if Some(at) == newest {
            *reason = reason.or(Some(SnapshotReason::Newest));
        }
        if snapshot.is_held {
            *reason = Some(SnapshotReason::Held);
        }
    }
    reasons
}

/// The first second at which a rule keeps a snapshot no more for this reason, if it makes one in each period
/// from that of its newest snapshot on. `None` if its counts and its age say nothing about it.
pub(crate) fn kept_until(
    rule: &SnapshotRuleRecord,
    reason: SnapshotReason,
    made_seconds: i64,
    newest_seconds: i64,
) -> Option<i64> {
    let expires = i64::try_from(rule.expire_seconds).ok().filter(|seconds| *seconds > 0);
    let expires = expires.and_then(|seconds| made_seconds.checked_add(seconds));
    let outdated = match reason {
        SnapshotReason::Period { period, newer, kept } => {
            let left = i64::from(kept.saturating_sub(newer));
            period.begin(period.number(newest_seconds).saturating_add(left))
        }
        SnapshotReason::All => None,
        // Until the hold is released, or a newer one is made.
        SnapshotReason::Held | SnapshotReason::Newest => return None,
    };
    match (expires, outdated) {
        (Some(expires), Some(outdated)) => Some(expires.min(outdated)),
        (expires, outdated) => expires.or(outdated),
    }
}

/// Whether a rule wants a snapshot now, when its newest one was made then. It wants one for each interval of
/// the clock, and after a gap one and not all.
pub(crate) fn is_due(rule: &SnapshotRuleRecord, newest_seconds: Option<i64>, now_seconds: i64) -> bool {
    let every = i64::try_from(rule.every_seconds).unwrap_or(i64::MAX);
    newest_seconds.is_none_or(|newest| {
        let is_other = newest.div_euclid(every) != now_seconds.div_euclid(every);
        // A clock that was set back by less than an interval has none made twice.
        is_other && (newest <= now_seconds || newest.abs_diff(now_seconds) >= rule.every_seconds)
    })
}

/// Whether deletions believe this time, as the rule knows the clock. They do not believe a clock that has
/// jumped by more than a day until it has gone on for a day, or a person `trusts` it.
pub(crate) fn believe(rule: &mut SnapshotRuleRecord, now_seconds: i64, trusts: bool) -> bool {
    let jump = now_seconds.abs_diff(rule.believed_seconds);
    // A rule that is applied once a week sees such jumps always.
    let jump_max = JUMP_SECONDS_MAX.max(rule.every_seconds.saturating_mul(2));
    let since = |first: i64| u64::try_from(now_seconds.saturating_sub(first)).ok();
    let doubted_for = rule.doubted_seconds.and_then(since);
    let agrees = PROBATION_SECONDS..=PROBATION_SECONDS.saturating_add(jump_max);
    let has_gone_on = doubted_for.is_some_and(|seconds| agrees.contains(&seconds));
    if trusts || jump <= jump_max || has_gone_on {
        let is_old = jump >= STORED_SECONDS;
        if trusts || is_old || rule.doubted_seconds.is_some() {
            (rule.believed_seconds, rule.doubted_seconds) = (now_seconds, None);
        }
        return true;
    }
    // A clock that jumps again begins its day again.
    let first =
        rule.doubted_seconds.filter(|_| doubted_for.is_some_and(|seconds| seconds < PROBATION_SECONDS));
    rule.doubted_seconds = Some(first.unwrap_or(now_seconds));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    fn rule(keep: [u32; RULE_PERIODS]) -> SnapshotRuleRecord {
        SnapshotRuleRecord {
            every_seconds: HOUR as u64,
            keep,
            expire_seconds: 0,
            free_permille: 0,
            is_only_after_change: false,
            believed_seconds: 0,
            doubted_seconds: None,
        }
    }

    fn made_at(times: impl IntoIterator<Item = i64>) -> Vec<RuleSnapshot> {
        times.into_iter().map(|made_seconds| RuleSnapshot { made_seconds, is_held: false }).collect()
    }

    /// Applies a rule at each interval, and returns the hours of the snapshots that are left.
    fn after(rule: &SnapshotRuleRecord, hours: i64) -> Vec<i64> {
        let mut snapshots = Vec::new();
        for hour in 0..hours {
            let now = hour * HOUR + 7;
            let newest = snapshots.last().map(|newest: &RuleSnapshot| newest.made_seconds);
            assert!(is_due(rule, newest, now) && !is_due(rule, Some(now), now + 1));
            snapshots.push(RuleSnapshot { made_seconds: now, is_held: false });
            let mut reasons = reasons(rule, &snapshots, now).into_iter();
            snapshots.retain(|_| reasons.next().is_some_and(|reason| reason.is_some()));
        }
        snapshots.iter().map(|snapshot| snapshot.made_seconds / HOUR).collect()
    }

    #[test]
    fn one_snapshot_stays_for_each_of_the_newest_periods() {
        assert_eq!(after(&rule([0, 3, 0, 0, 0, 0]), 100), [97, 98, 99]);
        // Hour 99 is in the fifth day; the first hour of each day stays.
        assert_eq!(after(&rule([0, 2, 3, 0, 0, 0]), 100), [48, 72, 96, 98, 99]);
        assert_eq!(after(&rule([0; RULE_PERIODS]), 5), [0, 1, 2, 3, 4]);
        // 1 January 1970 was a Thursday, and January has 31 days.
        let hours = 24 * 65;
        assert_eq!(after(&rule([0, 1, 0, 2, 0, 0]), hours), [24 * 53, 24 * 60, hours - 1]);
        assert_eq!(after(&rule([0, 1, 0, 0, 3, 1]), hours), [0, 24 * 31, 24 * 59, hours - 1]);
    }

    #[test]
    fn the_newest_and_those_that_are_held_stay_whatever_the_rule_says() {
        let expiring = SnapshotRuleRecord { expire_seconds: 1, ..rule([0, 9, 0, 0, 0, 0]) };
        let mut snapshots = made_at([0, HOUR, 2 * HOUR]);
        snapshots[0].is_held = true;
        let kept = reasons(&expiring, &snapshots, DAY);
        assert_eq!(kept, [Some(SnapshotReason::Held), None, Some(SnapshotReason::Newest)]);
        // A clock ten years ahead makes the newest the oldest by time.
        let kept = reasons(&rule([0, 1, 0, 0, 0, 0]), &made_at([3650 * DAY, 0]), 0);
        let period = SnapshotReason::Period { period: SnapshotPeriod::Hour, newer: 0, kept: 1 };
        assert_eq!(kept, [Some(period), Some(SnapshotReason::Newest)]);
    }

    /// The moment is that at which the rule, applied at each interval, deletes the snapshot.
    #[test]
    fn a_snapshot_is_kept_until_the_moment_that_is_said() {
        let expiring = SnapshotRuleRecord { expire_seconds: 30 * HOUR as u64, ..rule([0, 3, 2, 0, 0, 0]) };
        for rule in [rule([0, 3, 4, 2, 0, 0]), rule([0, 2, 0, 0, 2, 0]), expiring] {
            let mut snapshots: Vec<RuleSnapshot> = Vec::new();
            let mut said: Vec<Option<i64>> = Vec::new();
            for hour in 0..24 * 100 {
                // On the hour, so that a period ends with the snapshot of its first second.
                let now = hour * HOUR;
                snapshots.push(RuleSnapshot { made_seconds: now, is_held: false });
                said.push(None);
                let reasons = reasons(&rule, &snapshots, now);
                for (at, reason) in reasons.iter().enumerate().rev() {
                    let made = snapshots[at].made_seconds;
                    match reason {
                        Some(reason) => said[at] = kept_until(&rule, *reason, made, now).or(said[at]),
                        None => {
                            assert_eq!(said[at], Some(now), "the snapshot of hour {}", made / HOUR);
                            let (_, _) = (snapshots.remove(at), said.remove(at));
                        }
                    }
                }
            }
        }
        let all = rule([0; RULE_PERIODS]);
        assert_eq!(kept_until(&all, SnapshotReason::All, 0, DAY), None);
        assert_eq!(kept_until(&expiring, SnapshotReason::Held, 0, DAY), None);
    }

    #[test]
    fn periods_begin_where_their_numbers_change() {
        for period in SnapshotPeriod::ALL {
            for seconds in [-5_000_000_000, -1, 0, 951_782_400, 1_795_163_371] {
                let number = period.number(seconds);
                let begin = period.begin(number).expect("the calendar has it");
                assert_eq!(
                    (period.number(begin), period.number(begin - 1)),
                    (number, number - 1),
                    "{period:?}"
                );
            }
            assert_eq!(period.begin(i64::MAX), None);
        }
    }

    #[test]
    fn periods_without_snapshots_do_not_count() {
        let kept = reasons(&rule([0, 0, 2, 0, 0, 0]), &made_at([0, 5 * DAY, 900 * DAY]), 2000 * DAY);
        assert_eq!(kept.iter().filter(|reason| reason.is_some()).count(), 2);
        assert_eq!(kept[0], None);
    }

    #[test]
    fn after_a_gap_one_snapshot_is_due_and_a_clock_that_goes_back_makes_none_twice() {
        let hourly = rule([0; RULE_PERIODS]);
        assert!(is_due(&hourly, None, 0));
        assert!(is_due(&hourly, Some(HOUR - 1), HOUR) && !is_due(&hourly, Some(HOUR), 2 * HOUR - 1));
        assert!(is_due(&hourly, Some(0), 100 * HOUR) && !is_due(&hourly, Some(100 * HOUR), 100 * HOUR));
        assert!(!is_due(&hourly, Some(HOUR + 5), HOUR - 5));
        assert!(is_due(&hourly, Some(3650 * DAY), 0), "ten years ahead, and corrected");
    }

    #[test]
    fn a_clock_that_jumps_is_believed_after_a_day() {
        let mut rule = rule([0; RULE_PERIODS]);
        assert!(believe(&mut rule, DAY, false), "a day");
        let jumped = 3650 * DAY;
        assert!(!believe(&mut rule, jumped, false) && !believe(&mut rule, jumped + DAY - 1, false));
        assert_eq!((rule.believed_seconds, rule.doubted_seconds), (DAY, Some(jumped)));
        // It goes back: nothing has happened.
        assert!(believe(&mut rule, DAY + HOUR, false));
        assert_eq!((rule.believed_seconds, rule.doubted_seconds), (DAY + HOUR, None));
        assert!(!believe(&mut rule, jumped, false) && believe(&mut rule, jumped + DAY, false));
        assert_eq!((rule.believed_seconds, rule.doubted_seconds), (jumped + DAY, None));
        // Back by years, and from there still further back.
        assert!(!believe(&mut rule, 100 * DAY, false) && !believe(&mut rule, 50 * DAY, false));
        assert_eq!(rule.doubted_seconds, Some(50 * DAY));
        assert!(!believe(&mut rule, 500 * DAY, false), "another jump is no day that has passed");
        assert_eq!(rule.doubted_seconds, Some(500 * DAY));
        assert!(believe(&mut rule, 50 * DAY, true), "a person says so");
        assert_eq!((rule.believed_seconds, rule.doubted_seconds), (50 * DAY, None));
    }

    #[test]
    fn a_believed_time_is_not_stored_at_every_look() {
        let mut rule = rule([0; RULE_PERIODS]);
        assert!(believe(&mut rule, HOUR - 1, false));
        assert_eq!(rule.believed_seconds, 0);
        assert!(believe(&mut rule, HOUR, false));
        assert_eq!(rule.believed_seconds, HOUR);
    }
}
