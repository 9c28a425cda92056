//! Removed domains: their tables go without being read, and what shares a table with other domains is
//! rewritten out of it.
//!
//! # Invariants
//! 1. A table is dropped unread only if it lies in one removed domain of which no held seq sees anything
//!    (`OriginTable::is_unread_between`). Versions of other runs that show again below it are in that domain
//!    too, so nobody reads them.
//! 2. A removal is worked off once; what snapshots keep at that time goes with ordinary compaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_log::LogStore;

use super::job::RewriteJob;
use super::moves::SliceMoves;
use super::tiers::{references, seq_base};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::Table;
use crate::table_set::InstallInto;

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Works off the removals of domains, if there are new ones. `false`: there was nothing to do.
    pub(crate) fn drop_removed_step(&self) -> Result<bool, MetaError> {
        // Before the work: a removal that comes while it goes on is worked off by the next step.
        let removals = self.domains.removals();
        if self.removals_done.load(Ordering::Relaxed) == removals {
            return Ok(false);
        }
        let _compacting = self.compacting.lock();
        let dropped = self.drop_unread_tables()?;
        let rewritten = self.rewrite_out_of_shared_tables()?;
        self.removals_done.store(removals, Ordering::Relaxed);
        Ok(dropped | rewritten)
    }

    /// Drops the tables that lie in removed domains and that nobody reads.
    fn drop_unread_tables(&self) -> Result<bool, MetaError> {
        let (Some(domains), visible) = self.readers() else { return Ok(false) };
        let unread = self.tables_where(|_, table| {
            domains.is_unread_between(&table.entry().smallest, &table.entry().largest, &visible.all)
        });
        self.drop_tables(unread)
    }

    /// Drops tables without a look into them. `false`: there are none. The caller has locked `compacting`.
    pub(super) fn drop_tables(&self, tables: Vec<(u64, Arc<Table<L>>)>) -> Result<bool, MetaError> {
        let mut by_run: BTreeMap<u64, Vec<Arc<Table<L>>>> = BTreeMap::new();
        for (run, table) in tables {
            by_run.entry(run).or_default().push(table);
        }
        let dropped = !by_run.is_empty();
        for (run, tables) in by_run {
            let (cleaning, mut moves) = (BTreeSet::new(), SliceMoves::default());
            let (scope, base) = (self.scope_in(run), seq_base(tables.iter()));
            let job = RewriteJob::new(self, scope, base, references(tables.iter()), &cleaning, &mut moves);
            assert!(!tables.is_empty(), "a run is here for a table of it");
            let ids = tables.iter().map(|table| table.entry().id).collect();
            job.finish(&InstallInto::Existing(run), ids, Vec::new())?;
        }
        Ok(dropped)
    }

    /// Rewrites the tables that have keys of a removed domain beside others: two for each run and domain.
    fn rewrite_out_of_shared_tables(&self) -> Result<bool, MetaError> {
        let Some(domains) = self.domains.get() else { return Ok(false) };
        let shared = self.tables_where(|_, table| {
            domains.has_removed_between(&table.entry().smallest, &table.entry().largest)
        });
        let any = !shared.is_empty();
        for (run, table) in shared {
            self.check_room_for(u64::from(table.entry().len_bytes))?;
            // Not at the bottom: the table alone cannot show that no older version of a key exists.
            self.rewrite(run, &table, &BTreeSet::new(), &mut SliceMoves::default())?;
        }
        Ok(any)
    }
}
