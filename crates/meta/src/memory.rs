//! The memory budget of a store: what users make it keep in memory, with a limit for each user and in all.
//!
//! Transactions keep changes, reads, calls and nodes until they end, and an open directory keeps marks until
//! it is closed. Each of them has a *charge*. A charge belongs to an *account*: that of a user with a share,
//! or that of the store's own user, which has no share.
//!
//! # Invariants
//! 1. Every counter is the sum of the charges below it: a user's of that user's charges, `by_users` of all
//!    users with a share, `total` of everything. A charge returns what it has when it is dropped (asserts in
//!    `MemoryCounter::subtract` and in the drops of user and budget: nothing is left at the end).
//! 2. A charge that is `Needed` passes no limit, and one that is `Optional` leaves a quarter of each limit to
//!    those that are needed (`tests::an_optional_charge_leaves_room_for_needed_ones`). A charge that is
//!    `Taken` counts memory that is in use already: it is not refused, and those after it are.
//! 3. A refused charge has changed no counter (`tests::a_refused_charge_changes_nothing`).
//! 4. Users with a share have at most `users_bytes` together, so one without a share always finds the rest
//!    (`tests::users_with_a_share_leave_the_rest`).
//! 5. A charge touches the counters once for each step: [`COARSE_BYTES`] for transactions, of which there are
//!    few, and [`FINE_BYTES`] for what a user may have in any number.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use warpfire_env::sync::atomic::{AtomicUsize, Ordering};

use warpfire_env::sync::Mutex;

/// Step of a coarse charge. Up to one step of each is not counted, so short transactions touch no counter.
const COARSE_BYTES: usize = 64 << 10;

/// Step of a fine charge. It is rounded up, so that very many small ones count too.
const FINE_BYTES: usize = 4 << 10;

/// The parts of a budget.
const PARTS: usize = 16;

/// Parts that users with a share have together.
const USERS_PARTS: usize = 3;

/// The limits of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimits {
    /// Most memory in all.
    pub total_bytes: usize,
    /// Most memory of all users with a share together.
    pub users_bytes: usize,
    /// Most memory of one user with a share.
    pub user_bytes: usize,
}

impl MemoryLimits {
    /// Limits with this total: a user has a sixteenth of it at most, and all users three sixteenths.
    #[must_use]
    pub const fn of_total(total_bytes: usize) -> MemoryLimits {
        let part = total_bytes / PARTS;
        MemoryLimits { total_bytes, users_bytes: USERS_PARTS * part, user_bytes: part }
    }
}

impl Default for MemoryLimits {
    /// 2 GiB: one transaction with as many changes, reads and calls as a transaction may have fits in it. So
    /// a user has 128 MiB, and all users have 384 MiB.
    fn default() -> MemoryLimits {
        MemoryLimits::of_total(2 << 30)
    }
}

/// Which limit refuses a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryRefused {
    /// The user's own.
    #[error(
        "transactions and open directories of this user have all the memory that one user may take: commit or \
         abort a transaction, or close directories"
    )]
    Share,
    /// That of all users, or of the store.
    #[error(
        "open transactions have all the memory that they may take together: try again when one has ended"
    )]
    Total,
}

/// How much a charge is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryNeed {
    /// The memory makes something better, and can be missed.
    Optional,
    /// A call fails without it.
    Needed,
    /// It is in use already.
    Taken,
}

impl MemoryNeed {
    fn part_of(self, limit_bytes: usize) -> usize {
        match self {
            MemoryNeed::Optional => limit_bytes / 4 * 3,
            MemoryNeed::Needed => limit_bytes,
            MemoryNeed::Taken => usize::MAX,
        }
    }
}

#[derive(Default, Debug)]
struct MemoryCounter(AtomicUsize);

impl MemoryCounter {
    fn add(&self, bytes: usize, limit: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn subtract(&self, bytes: usize) {
        let before = self.0.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "a charge returns what it has taken");
    }

    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn assert_empty(&self) {
        // While a thread unwinds, what it was about to return may be missing.
        assert!(std::thread::panicking() || self.bytes() == 0, "every charge has been returned at the end");
    }
}

/// The memory budget of a store.
#[derive(Debug)]
pub struct MemoryBudget {
    limits: MemoryLimits,
    total: MemoryCounter,
    by_users: MemoryCounter,
    /// Users that have an account now.
    users: Mutex<BTreeMap<u32, Weak<UserMemory>>>,
}

#[derive(Debug)]
struct UserMemory {
    uid: u32,
    used: MemoryCounter,
    budget: Arc<MemoryBudget>,
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        self.used.assert_empty();
        let mut users = self.budget.users.lock();
        // The user may have a new account by now.
        if users.get(&self.uid).is_some_and(|user| user.strong_count() == 0) {
            users.remove(&self.uid);
        }
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.by_users.assert_empty();
        self.total.assert_empty();
    }
}

impl MemoryBudget {
    /// An empty budget.
    #[must_use]
    pub fn new(limits: MemoryLimits) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            limits,
            total: MemoryCounter::default(),
            by_users: MemoryCounter::default(),
            users: Mutex::default(),
        })
    }

    /// The account of a user with a share, or with `None` that of the store's own user, which has no share.
    #[must_use]
    pub fn account(self: &Arc<Self>, uid: Option<u32>) -> MemoryAccount {
        let user = uid.map(|uid| {
            let mut users = self.users.lock();
            users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| {
                let used = MemoryCounter::default();
                let user = Arc::new(UserMemory { uid, used, budget: Arc::clone(self) });
                users.insert(uid, Arc::downgrade(&user));
                user
            })
        });
        MemoryAccount { budget: Arc::clone(self), user }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> MemoryLimits {
        self.limits
    }

    /// What all charges have taken.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.total.bytes()
    }

    /// What the charges of a user with a share have taken.
    #[must_use]
    pub fn used_bytes_of(&self, uid: u32) -> usize {
        let user = self.users.lock().get(&uid).and_then(Weak::upgrade);
        user.map_or(0, |user| user.used.bytes())
    }
}

/// The account that charges belong to.
#[derive(Clone, Debug)]
pub struct MemoryAccount {
    budget: Arc<MemoryBudget>,
    user: Option<Arc<UserMemory>>,
}

impl MemoryAccount {
    /// The budget that the account is part of.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Whether it is that of a user with a share.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.user.is_some()
    }

    /// A new charge for one of few things: steps of 64 KiB, and up to one of them is not counted.
    #[must_use]
    pub fn coarse_charge(&self) -> MemoryCharge {
        MemoryCharge {
            account: self.clone(),
            charged_bytes: 0,
            step: COARSE_BYTES,
            free_bytes: COARSE_BYTES - 1,
        }
    }

    /// A new charge for one of many things: steps of 4 KiB.
    #[must_use]
    pub fn fine_charge(&self) -> MemoryCharge {
        MemoryCharge { account: self.clone(), charged_bytes: 0, step: FINE_BYTES, free_bytes: 0 }
    }

    fn take(&self, bytes: usize, need: MemoryNeed) -> Result<(), MemoryRefused> {
        let MemoryBudget { limits, total, by_users, .. } = &*self.budget;
        if let Some(user) = &self.user {
            if !user.used.add(bytes, need.part_of(limits.user_bytes)) {
                return Err(MemoryRefused::Share);
            }
            if !by_users.add(bytes, need.part_of(limits.users_bytes)) {
                user.used.subtract(bytes);
                return Err(MemoryRefused::Total);
            }
        }
        if !total.add(bytes, need.part_of(limits.total_bytes)) {
            if let Some(user) = &self.user {
                by_users.subtract(bytes);
                user.used.subtract(bytes);
            }
            return Err(MemoryRefused::Total);
        }
        Ok(())
    }

    fn give(&self, bytes: usize) {
        self.budget.total.subtract(bytes);
        if let Some(user) = &self.user {
            self.budget.by_users.subtract(bytes);
            user.used.subtract(bytes);
        }
    }
}

/// The memory of one thing, as far as it is counted. Its drop returns it.
#[derive(Debug)]
pub struct MemoryCharge {
    account: MemoryAccount,
    charged_bytes: usize,
    step: usize,
    /// Bytes above `charged_bytes` that are not counted.
    free_bytes: usize,
}

impl MemoryCharge {
    /// Charges for at least so many bytes. If they are fewer, the charge stays as it is.
    ///
    /// # Errors
    /// The limit that refuses it; the charge is as before.
    pub fn grow_to(&mut self, bytes: usize, need: MemoryNeed) -> Result<(), MemoryRefused> {
        // The common case touches no counter.
        if bytes <= self.charged_bytes + self.free_bytes {
            return Ok(());
        }
        let wanted = self.steps_for(bytes);
        debug_assert!(wanted > self.charged_bytes, "more than the free bytes are at least one step more");
        self.account.take(wanted - self.charged_bytes, need)?;
        self.charged_bytes = wanted;
        Ok(())
    }

    /// Charges for so many bytes that are in use already.
    pub fn count(&mut self, bytes: usize) {
        self.grow_to(bytes, MemoryNeed::Taken).expect("memory in use is not refused");
    }

    /// Returns the charge beyond so many bytes, but for a step.
    pub fn shrink_to(&mut self, bytes: usize) {
        let wanted = self.steps_for(bytes);
        // A step stays, so that a size that goes up and down at the edge of one touches no counter.
        if wanted == 0 || wanted + self.step < self.charged_bytes {
            self.account.give(self.charged_bytes.saturating_sub(wanted));
            self.charged_bytes = self.charged_bytes.min(wanted);
        }
    }

    /// The account that it belongs to.
    #[must_use]
    pub fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Moves the charged bytes to another charge.
    #[must_use]
    pub fn take(&mut self) -> MemoryCharge {
        let charged_bytes = std::mem::take(&mut self.charged_bytes);
        MemoryCharge { account: self.account.clone(), charged_bytes, ..*self }
    }

    /// Takes over what another charge of the account has taken.
    pub fn join(&mut self, mut other: MemoryCharge) {
        debug_assert!(
            Arc::ptr_eq(&self.account.budget, &other.account.budget),
            "one budget has both charges"
        );
        self.charged_bytes += std::mem::take(&mut other.charged_bytes);
    }

    fn steps_for(&self, bytes: usize) -> usize {
        if self.free_bytes > 0 { bytes - bytes % self.step } else { bytes.next_multiple_of(self.step) }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if self.charged_bytes > 0 {
            self.account.give(self.charged_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const USER: u32 = 1000;

    fn budget() -> Arc<MemoryBudget> {
        MemoryBudget::new(MemoryLimits { total_bytes: 16 * MIB, users_bytes: 6 * MIB, user_bytes: 4 * MIB })
    }

    #[test]
    fn a_charge_counts_in_steps_and_returns_all_of_them() {
        let budget = budget();
        let account = budget.account(Some(USER));
        let (mut coarse, mut fine) = (account.coarse_charge(), account.fine_charge());
        coarse.count(COARSE_BYTES - 1);
        assert_eq!(budget.used_bytes(), 0, "a short transaction touches no counter");
        coarse.count(5 * COARSE_BYTES + 1);
        fine.count(1);
        assert_eq!(budget.used_bytes(), 5 * COARSE_BYTES + FINE_BYTES);
        assert_eq!(budget.used_bytes_of(USER), budget.used_bytes());
        coarse.shrink_to(4 * COARSE_BYTES);
        assert_eq!(budget.used_bytes(), 5 * COARSE_BYTES + FINE_BYTES, "one step stays");
        coarse.shrink_to(2 * COARSE_BYTES);
        assert_eq!(budget.used_bytes(), 2 * COARSE_BYTES + FINE_BYTES);
        let mut other = account.coarse_charge();
        other.count(COARSE_BYTES);
        coarse.join(other);
        assert_eq!(budget.used_bytes(), 3 * COARSE_BYTES + FINE_BYTES, "a joined charge counts once");
        coarse.shrink_to(0);
        fine.shrink_to(0);
        assert_eq!(budget.used_bytes(), 0);
        drop((coarse, fine, account));
        assert!(budget.users.lock().is_empty(), "a user without charges has no account");
    }

    #[test]
    fn a_refused_charge_changes_nothing() {
        let budget = budget();
        let charge = |uid| budget.account(uid).coarse_charge();
        let (mut one, mut two, mut own) = (charge(Some(1)), charge(Some(2)), charge(None));
        one.grow_to(4 * MIB, MemoryNeed::Needed).unwrap();
        assert_eq!(one.grow_to(4 * MIB + COARSE_BYTES, MemoryNeed::Needed), Err(MemoryRefused::Share));
        assert_eq!(two.grow_to(3 * MIB, MemoryNeed::Needed), Err(MemoryRefused::Total));
        assert_eq!((budget.used_bytes_of(2), budget.used_bytes()), (0, 4 * MIB));
        assert_eq!(own.grow_to(13 * MIB, MemoryNeed::Needed), Err(MemoryRefused::Total));
        own.grow_to(12 * MIB, MemoryNeed::Needed).unwrap();
        assert_eq!(two.grow_to(MIB, MemoryNeed::Needed), Err(MemoryRefused::Total));
        assert_eq!((budget.used_bytes_of(2), budget.by_users.bytes()), (0, 4 * MIB));
        drop(one);
        two.grow_to(MIB, MemoryNeed::Needed).unwrap();
        two.count(7 * MIB);
        assert_eq!(two.grow_to(8 * MIB, MemoryNeed::Needed), Err(MemoryRefused::Share));
    }

    #[test]
    fn users_with_a_share_leave_the_rest() {
        let budget = budget();
        let charges: Vec<MemoryCharge> = (0..100)
            .map(|uid| {
                let mut charge = budget.account(Some(uid)).fine_charge();
                while charge.grow_to(charge.charged_bytes + 1, MemoryNeed::Needed).is_ok() {}
                charge
            })
            .collect();
        assert_eq!(budget.used_bytes(), 6 * MIB);
        budget.account(None).coarse_charge().grow_to(10 * MIB, MemoryNeed::Needed).unwrap();
        drop(charges);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn an_optional_charge_leaves_room_for_needed_ones() {
        let budget = budget();
        let account = budget.account(Some(USER));
        let (mut optional, mut needed) = (account.coarse_charge(), account.coarse_charge());
        optional.grow_to(3 * MIB, MemoryNeed::Optional).unwrap();
        assert!(optional.grow_to(3 * MIB + COARSE_BYTES, MemoryNeed::Optional).is_err());
        needed.grow_to(MIB, MemoryNeed::Needed).unwrap();
        assert!(needed.grow_to(MIB + COARSE_BYTES, MemoryNeed::Needed).is_err());
    }

    #[test]
    fn threads_never_pass_a_limit_together() {
        let budget = budget();
        warpfire_env::sync::thread::scope(|scope| {
            for uid in 0..8 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let mut charge = budget.account(Some(uid % 3)).fine_charge();
                        let _ = charge.grow_to(round * 997 % (3 * MIB), MemoryNeed::Needed);
                        assert!(budget.by_users.bytes() <= 6 * MIB);
                    }
                });
            }
        });
        assert_eq!(budget.used_bytes(), 0);
    }
}
