//! The records of the rules by which snapshots are made and deleted. Callers apply the rules.

use warpfire_format::fs::{Key, SnapshotRuleRecord, snapshot_rule_range};
use warpfire_meta::{Admit, Batch, Direction, KeyRange, ScanPage, Storage};
use warpfire_units::Seq;

use crate::error::FsError;
use crate::fs::Fs;
use crate::node::check_name;

/// Most rules of a volume.
const RULES_MAX: usize = 64;

impl<E: Storage> Fs<E> {
    /// The rules with their names, by name.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshot_rules(&self) -> Result<Vec<(Vec<u8>, SnapshotRuleRecord)>, FsError> {
        let (start, end) = snapshot_rule_range(self.volume);
        let range = KeyRange { start: &start, end: Some(&end) };
        let held = self.engine.snapshot();
        let mut page = ScanPage::default();
        self.engine.scan(
            range,
            self.engine.seq(&held),
            Direction::Forward,
            RULES_MAX,
            usize::MAX,
            &mut page,
        )?;
        let mut rules = Vec::new();
        for entry in page.iter() {
            if let Key::SnapshotRule(_, name) = Key::decode(entry.key)? {
                rules.push((name.to_vec(), SnapshotRuleRecord::decode(entry.value)?));
            }
        }
        Ok(rules)
    }

    /// Stores a rule in the place of one of the same name. Durable after the next sync.
    ///
    /// # Errors
    /// `Invalid` and `NameTooLong` for a name that none can have; `Invalid` for more than 64 rules;
    /// `NoSpace`; `ReadOnly`.
    pub fn put_snapshot_rule(&self, name: &[u8], rule: &SnapshotRuleRecord) -> Result<(), FsError> {
        check_name(name)?;
        let _guard = self.enter_unrecorded();
        let key = Key::SnapshotRule(self.volume, name).encode();
        let _locked = self.engine.lock(&[&key]);
        let mut value = Vec::new();
        if !self.engine.get(&key, Seq::MAX, &mut value)? && self.snapshot_rules()?.len() >= RULES_MAX {
            return Err(FsError::Invalid("a pool has 64 rules for snapshots at most"));
        }
        value.clear();
        rule.encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&key, &value);
        self.commit(&batch, Admit::Reserve)
    }

    /// Changes the rule of this name, as it is now, and returns it; `None` if there is none any more. Durable
    /// after the next sync.
    ///
    /// # Errors
    /// `Damaged`, `ReadOnly`.
    pub fn change_snapshot_rule(
        &self,
        name: &[u8],
        change: impl FnOnce(&mut SnapshotRuleRecord),
    ) -> Result<Option<SnapshotRuleRecord>, FsError> {
        let _guard = self.enter_unrecorded();
        let key = Key::SnapshotRule(self.volume, name).encode();
        let _locked = self.engine.lock(&[&key]);
        let mut value = Vec::new();
        if !self.engine.get(&key, Seq::MAX, &mut value)? {
            return Ok(None);
        }
        let before = SnapshotRuleRecord::decode(&value)?;
        let mut rule = before;
        change(&mut rule);
        if rule != before {
            value.clear();
            rule.encode(&mut value);
            let mut batch = Batch::new();
            batch.put(&key, &value);
            self.commit(&batch, Admit::Reserve)?;
        }
        Ok(Some(rule))
    }

    /// Removes a rule. The snapshots that it made stay. Durable after the next sync.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`.
    pub fn remove_snapshot_rule(&self, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        let _guard = self.enter_unrecorded();
        let key = Key::SnapshotRule(self.volume, name).encode();
        let _locked = self.engine.lock(&[&key]);
        if !self.engine.get(&key, Seq::MAX, &mut Vec::new())? {
            return Err(FsError::NotFound);
        }
        let mut batch = Batch::new();
        batch.delete(&key);
        self.commit(&batch, Admit::Reserve)
    }
}
