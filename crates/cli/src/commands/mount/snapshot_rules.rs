//! The rules for snapshots of a mounted pool: the server applies them once a minute.

use std::io;
use std::time::Duration;

use warpfire::Warpfire;
use warpfire_env::{Clock, IntervalTask, SystemClock};

/// The time between two looks at the rules.
const INTERVAL: Duration = Duration::from_mins(1);

/// Applies the rules from now on, until the task is dropped.
///
/// # Errors
/// No thread can be started.
pub fn start(pool: Warpfire) -> io::Result<IntervalTask> {
    apply(&pool);
    IntervalTask::always("warpfire-rules", INTERVAL, move || apply(&pool))
}

/// Applies the rules, and says what they did.
fn apply(pool: &Warpfire) {
    match pool.apply_snapshot_rules(SystemClock.now(), false) {
        Ok(applied) => {
            for made in &applied.made {
                tracing::info!(snapshot = %made.name.display(), "a rule made a snapshot");
            }
            for deleted in &applied.deleted {
                tracing::info!(snapshot = %deleted.name.display(), "a rule deleted a snapshot");
            }
            for rule in &applied.doubting {
                tracing::warn!(
                    rule = %rule.display(),
                    "the clock has jumped by more than a day, so the rule deletes no snapshots for a day"
                );
            }
            for (rule, error) in &applied.failed {
                tracing::warn!(rule = %rule.display(), %error, "a rule made no snapshot");
            }
        }
        Err(error) => tracing::warn!(%error, "the rules for snapshots were not applied"),
    }
}
