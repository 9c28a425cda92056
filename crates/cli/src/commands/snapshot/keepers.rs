//! What keeps snapshots: the columns `kept by` and `until` of `warpfire snapshot list`.

use std::collections::BTreeMap;

use serde::Serialize;
use warpfire::Timestamp;
use warpfire_terminal::Failure;

use super::rule::{WireExplained, explained, shown_until};
use super::{WireSnapshot, shown_bytes, text};
use crate::commands::volume;
use crate::location::PoolName;
use crate::output::Rfc3339;

/// What keeps a snapshot, beside its user.
#[derive(Debug, Default)]
pub(super) struct SnapshotKeepers {
    /// What its rule says about it. None for a snapshot that no rule made, or one of a rule that is removed.
    by_rule: Option<WireExplained>,
    /// The doors of the clones that were made of it. They need what it shows, also when it is deleted.
    clones: Vec<Vec<u8>>,
}

impl SnapshotKeepers {
    /// What keeps each of the listed snapshots, of a pool that is mounted or not.
    pub(super) fn of_all(pool: &PoolName, found: &[WireSnapshot]) -> Result<Vec<SnapshotKeepers>, Failure> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let has_rules = found.iter().any(|snapshot| snapshot.rule.is_some());
        let of_rules = if has_rules { explained(pool)? } else { Vec::new() };
        let mut by_number: BTreeMap<u64, SnapshotKeepers> = BTreeMap::new();
        for explained in of_rules {
            let number = explained.snapshot.number;
            by_number.entry(number).or_default().by_rule = Some(explained);
        }
        for clone in volume::listed(pool)? {
            let Some(version) = clone.version_of_origin() else { continue };
            by_number.entry(version).or_default().clones.push(clone.door().to_vec());
        }
        Ok(found.iter().map(|snapshot| by_number.remove(&snapshot.number).unwrap_or_default()).collect())
    }

    /// Why the rule keeps it. The holds say themselves that they do.
    fn reason<'a>(&'a self, snapshot: &WireSnapshot) -> Option<&'a str> {
        let rule = self.by_rule.as_ref().filter(|_| snapshot.holds.is_empty())?;
        rule.reason.as_deref()
    }

    /// Whether the rule deletes it at its next look.
    fn is_outdated(&self) -> bool {
        self.by_rule.as_ref().is_some_and(|rule| rule.reason.is_none())
    }

    fn until_seconds(&self) -> Option<i64> {
        self.by_rule.as_ref().and_then(|rule| rule.until_seconds)
    }

    /// The cells of a list: what keeps it, and until when.
    pub(super) fn cells(&self, snapshot: &WireSnapshot) -> [String; 2] {
        let holds = snapshot.holds.iter().map(|hold| format!("hold {}", shown_bytes(hold)));
        let rule = self.reason(snapshot).map(str::to_owned);
        let clones = self.clones.iter().map(|door| format!("clone {}", shown_bytes(door)));
        let mut keepers: Vec<String> = holds.chain(rule).chain(clones).collect();
        if self.is_outdated() {
            keepers.push("goes at the next look".to_owned());
        } else if keepers.is_empty() {
            keepers.push("its user".to_owned());
        }
        [keepers.join(", "), shown_until(self.until_seconds())]
    }

    pub(super) fn document(&self, snapshot: &WireSnapshot) -> KeepersOutput {
        let rule_reason = self.reason(snapshot).map(str::to_owned);
        let keepers = [
            ("hold", !snapshot.holds.is_empty()),
            ("rule", rule_reason.is_some()),
            ("clone", !self.clones.is_empty()),
        ];
        KeepersOutput {
            kept_by: keepers.into_iter().filter(|(_, keeps)| *keeps).map(|(word, _)| word).collect(),
            rule_reason,
            kept_until: self.until_seconds().map(|seconds| Rfc3339(Timestamp { seconds, nanos: 0 })),
            outdated: self.is_outdated(),
            clones: self.clones.iter().map(|door| text(door)).collect(),
        }
    }
}

/// What keeps a snapshot, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct KeepersOutput {
    /// What keeps it: `hold`, `rule` and `clone`. Empty if nothing but its user does.
    kept_by: Vec<&'static str>,
    /// Why its rule keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_reason: Option<String>,
    /// The moment at which its rule deletes it at the earliest, if the rule makes a snapshot in each period
    /// until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_until: Option<Rfc3339>,
    /// Whether its rule deletes it at the next look.
    outdated: bool,
    /// The directories of the clones that were made of it. They stay when it is deleted, and so do the bytes
    /// that they show.
    clones: Vec<String>,
}
