//! Reads at a seq: from the memtable, the frozen memtable, then the runs from the newest to the oldest. A put
//! or a delete ends the search: operands above it fold onto it. Where nothing ends it, the search goes on in
//! the runs of the past that have versions for the seq, and then in the origin of the key's domain.
//!
//! A reader of the newest version opens no table of the past: their highest seqs are at or below its own. In
//! a run of the past a delete says that the run has nothing for the reader, not that the key had no value:
//! another run may have the version of that time. So the runs of the past are asked for one range of seqs
//! after the other, if a rollback hides those between: the newer range settles the value first.

mod merge;
mod resolve;
mod scan;

use std::sync::Arc;

use warpfire_format::key_hash;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use crate::domain::{DomainOrigin, HiddenSeqs, ORIGINS_MAX, OriginTable, key_in};
use crate::engine::EngineInner;
use crate::memtable::shard_of;
use crate::schema::Schema;
use crate::store::{MetaError, WantedBytes};
use crate::table_set::TableSet;
use resolve::{FoundInPast, Resolver};

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn get(&self, key: &[u8], at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.get_by(key, at, None, out)
    }

    /// The newest value. Bytes that the stored value names by a pointer may be inline in it.
    pub(crate) fn get_with_bytes(
        &self,
        key: &[u8],
        wanted: WantedBytes,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        self.get_by(key, Seq::MAX, Some(wanted), out)
    }

    fn get_by(
        &self,
        key: &[u8],
        at: Seq,
        wanted: Option<WantedBytes>,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        debug_assert!(wanted.is_none() || at == Seq::MAX, "a bundle has the newest version of its table");
        let hidden = self.hidden_of(key, at);
        let wanted = wanted.filter(|_| hidden.is_empty());
        let mut resolver = Resolver::new(at, hidden);
        if !self.offer_key(key, wanted, &mut resolver, out)?
            && let Some(table) = self.domains.get()
            && let Some(origin) = table.origin_at(key, at)
            && self.schema.reads_on(key)
        {
            self.read_on(&table, key, origin, &mut resolver, out)?;
        }
        resolver.finish(&self.schema, key, out)
    }

    /// What a reader at a seq does not see of a key.
    #[inline]
    fn hidden_of(&self, key: &[u8], at: Seq) -> HiddenSeqs {
        let hidden = self.domains.hidden_at(key, at);
        if hidden.is_empty() || self.schema.goes_back(key) { hidden } else { HiddenSeqs::default() }
    }

    /// Offers the versions of the same key in the origins, until one settles the value.
    #[cold]
    fn read_on(
        &self,
        table: &OriginTable,
        key: &[u8],
        origin: DomainOrigin,
        resolver: &mut Resolver,
        out: &mut Vec<u8>,
    ) -> Result<(), MetaError> {
        let mut next = Some(origin);
        for _ in 0..ORIGINS_MAX {
            let Some(DomainOrigin { domain, seq, .. }) = next else { return Ok(()) };
            let below = key_in(domain, key);
            let at = seq.min(resolver.at());
            resolver.read_on_at(at, self.hidden_of(&below, at));
            // A bundle has the newest version of its table, which the origin's seq may not show.
            if self.offer_key(&below, None, resolver, out)? {
                return Ok(());
            }
            next = table.origin_at(&below, resolver.at());
        }
        debug_assert!(next.is_none(), "the origins of every domain are checked when it is made or opened");
        Ok(())
    }

    /// Offers the versions of a key, newest first. `true`: the value is settled. With `wanted` bytes a bundle
    /// may stand for the versions of its table.
    fn offer_key(
        &self,
        key: &[u8],
        wanted: Option<WantedBytes>,
        resolver: &mut Resolver,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        let hash = key_hash(key);
        let number = shard_of(hash);
        let shard = self.shards.read(number);
        let frozen = shard.frozen.as_ref().map(|f| &f.shards[number]);
        for memory in std::iter::once(&shard.active).chain(frozen) {
            if let Some(newest) = memory.newest(hash, key)
                && resolver.offer_all(memory.versions(newest), out)
            {
                return Ok(true);
            }
        }
        // Taken under the same lock: commits that leave the frozen memtable are in these tables or still in
        // memory.
        let table_set = Arc::clone(&shard.table_set);
        drop(shard);
        for run in &table_set.runs {
            let Some(table) = run.table_of(key) else { continue };
            let Some(place) = table.place(key, hash, &self.cache)? else { continue };
            if let Some(wanted) = wanted
                && let Some(bundle) = table.read_bundle(&place, key, hash, wanted, &self.cache)
            {
                let is_settled = resolver.offer_all(bundle.versions(key), out);
                debug_assert!(is_settled, "a bundle has a value");
                return Ok(true);
            }
            let Some(found) = table.find_at(&place, key, &self.cache)? else { continue };
            let block = &found.block;
            let versions = (found.start..block.group_end(found.start)).map(|i| block.entry(i));
            if resolver.offer_all(versions, out) {
                return Ok(true);
            }
        }
        if table_set.past.is_empty() {
            return Ok(false);
        }
        self.offer_past(&table_set, key, hash, resolver, out)
    }

    /// As `offer_key`, with the versions in the past.
    fn offer_past(
        &self,
        table_set: &TableSet<L>,
        key: &[u8],
        hash: u64,
        resolver: &mut Resolver,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        for seen in resolver.seen_ranges() {
            let (mut past, upto) = (FoundInPast::default(), seen.1);
            for run in table_set.past_at(upto) {
                let Some(table) = run.table_of(key).filter(|table| table.is_read_at(upto)) else { continue };
                let Some(found) = table.find(key, hash, &self.cache)? else { continue };
                let block = &found.block;
                let versions = (found.start..block.group_end(found.start)).map(|i| block.entry(i));
                if resolver.offer_past(versions, seen, &mut past, out) {
                    return Ok(true);
                }
            }
            if resolver.end_past(past) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
