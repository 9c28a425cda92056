//! The check of a pool that is in use: the independent reader reads a frozen state of its devices.
//!
//! The list of damaged files fits in an answer: `LISTED_BYTES_MAX`. Other files are counted.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use warpfire::{FrozenState, Warpfire};
use warpfire_check::{CheckError, CheckOptions, CheckProgress, CheckReport, DamageReport, LoadedCheck};
use warpfire_terminal::{Failure, grouped};

/// Most bytes of the list, as JSON.
const LISTED_BYTES_MAX: usize = 3 << 20;
/// Bytes of a listed range or file as JSON, but for its path; and of a byte of a path.
const ENTRY_BYTES: usize = 200;
const PATH_BYTE_BYTES: usize = 4;

/// How often a check that reports no progress looks whether it shall go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A check of a pool in use that has read the roots and the commit log.
pub struct FrozenCheck {
    frozen: FrozenState,
    check: LoadedCheck,
}

impl FrozenCheck {
    /// Freezes the state of a pool.
    ///
    /// # Errors
    /// The pool cannot be synced, or its devices hold no pool any more.
    pub fn begin(pool: &Warpfire) -> Result<FrozenCheck, Failure> {
        let options = CheckOptions::default();
        let frozen = pool.freeze(|devices| LoadedCheck::load(devices, &options));
        let (frozen, check) = frozen.map_err(|error| Failure::pool(&error))?;
        Ok(FrozenCheck { frozen, check: check.map_err(|error| unchecked(&error))? })
    }

    /// Checks the frozen state. `goes_on` gets the newest progress several times a second, and can end the
    /// check.
    ///
    /// # Errors
    /// The pool needed the room that the frozen state keeps; `goes_on` has ended the check; the memory is too
    /// small.
    pub fn run(
        self,
        options: &CheckOptions,
        mut goes_on: impl FnMut(Option<CheckProgress>) -> ControlFlow<()>,
    ) -> Result<CheckReport, Failure> {
        let FrozenCheck { frozen, check } = self;
        let (sender, receiver) = mpsc::channel();
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let progress = move |progress: CheckProgress| {
            // The receiver is there until the check has returned.
            let _ = sender.send(progress);
            if ended.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = CheckOptions { progress: Some(Arc::new(progress)), ..options.clone() };
        let mut last = None;
        let outcome = thread::scope(|scope| {
            let thread = thread::Builder::new().name("warpfire-check".to_owned());
            let reader = thread.spawn_scoped(scope, move || check.run(&options))?;
            loop {
                match receiver.recv_timeout(LOOK_EVERY) {
                    Ok(progress) => last = Some(receiver.try_iter().last().unwrap_or(progress)),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    // The check has dropped its options.
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
                if frozen.is_given_up() || goes_on(last).is_break() {
                    is_ended.swap(true, Ordering::Relaxed);
                }
            }
            std::io::Result::Ok(reader.join())
        });
        if frozen.is_given_up() {
            return Err(given_up(last));
        }
        let outcome = outcome.map_err(|e| Failure::new(format_args!("cannot check the pool: {e}")))?;
        let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut report = outcome.map_err(|error| unchecked(&error))?;
        cut_to(LISTED_BYTES_MAX, &mut report.damage);
        Ok(report)
    }
}

fn unchecked(error: &CheckError) -> Failure {
    Failure::new(format_args!("cannot check the pool: {error}"))
}

/// The pool has taken the room of the frozen state.
fn given_up(last: Option<CheckProgress>) -> Failure {
    let so_far = last.map_or(0, |so_far| so_far.done.saturating_mul(100) / so_far.total.max(1));
    Failure::new(format_args!(
        "the pool needed the space that the check kept; {} % of the {} were checked",
        grouped(so_far.min(99)),
        last.map_or("commit log", |so_far| so_far.phase.name()),
    ))
    .hint("free some space and run the command again, or unmount the pool first")
}

/// Keeps as many files in the list as fit into these bytes as JSON. All stay counted.
fn cut_to(bytes_max: usize, damage: &mut DamageReport) {
    let mut room_bytes = bytes_max;
    let mut takes = |bytes: usize| {
        let left = room_bytes.checked_sub(bytes);
        room_bytes = left.unwrap_or(0);
        left.is_some()
    };
    damage.files.retain_mut(|file| {
        let names_bytes: usize = file.paths.iter().map(|path| path.len() * PATH_BYTE_BYTES).sum();
        if !takes(2 * ENTRY_BYTES + names_bytes) {
            return false;
        }
        for ranges in [&mut file.lost, &mut file.weak] {
            let fitting = ranges.iter().take_while(|_| takes(ENTRY_BYTES)).count();
            file.has_more |= fitting < ranges.len();
            ranges.truncate(fitting);
        }
        true
    });
    damage.metadata.retain(|metadata| {
        takes(ENTRY_BYTES + PATH_BYTE_BYTES * (metadata.place.len() + metadata.holds.len()))
    });
}

#[cfg(test)]
mod tests {
    use warpfire::Pool;
    use warpfire_check::{ByteRange, FileDamage};

    use super::*;

    fn sound_pool() -> Warpfire {
        let pool = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
        pool.create_dir_all("/a/b").expect("made");
        pool.write("/a/b/file", vec![7; 1 << 20]).expect("written");
        pool
    }

    #[test]
    fn a_sound_pool_is_clean_whatever_is_written_beside_the_check() {
        let pool = sound_pool();
        let check = FrozenCheck::begin(&pool).expect("frozen");
        pool.remove_file("/a/b/file").expect("removed");
        pool.write("/later", vec![8; 2 << 20]).expect("written");
        pool.sync().expect("synced");
        let mut looks = 0;
        let report = check.run(&CheckOptions::default(), |_| {
            looks += 1;
            ControlFlow::Continue(())
        });
        let report = report.expect("checked");
        assert!(report.is_clean(), "{:?}", report.findings);
        assert_eq!((report.totals.files, report.totals.directories), (1, 3), "those of the frozen state");
        assert!(looks >= 1);
    }

    #[test]
    fn a_full_pool_ends_the_check_and_not_its_writers() {
        let pool = sound_pool();
        let check = FrozenCheck::begin(&pool).expect("frozen");
        // More than the pool holds, a part at a time: it needs the space of removed files.
        for round in 0..20 {
            pool.write("/again", vec![round; 8 << 20]).expect("there is room for it");
            pool.sync().expect("synced");
        }
        let refused = check.run(&CheckOptions::default(), |_| ControlFlow::Continue(()));
        let said = refused.expect_err("the space was taken").to_string();
        assert!(said.contains("the pool needed the space that the check kept"), "{said}");
        assert!(pool.read("/again").expect("read") == vec![19; 8 << 20]);
    }

    #[test]
    fn a_check_ends_when_its_client_does() {
        let check = FrozenCheck::begin(&sound_pool()).expect("frozen");
        let stopped = check.run(&CheckOptions::default(), |_| ControlFlow::Break(()));
        assert!(stopped.is_err_and(|failure| failure.to_string().contains("stopped")));
    }

    #[test]
    fn a_list_is_cut_and_its_files_stay_counted() {
        let ranges = |count: u64| (0..count).map(|n| ByteRange { start: 8 * n, end: 8 * n + 4 }).collect();
        let file = |inode, count| FileDamage {
            inode,
            paths: vec![b"/f".to_vec()],
            more_paths: 0,
            size_bytes: Some(1 << 20),
            lost: ranges(count),
            weak: Vec::new(),
            has_more: false,
        };
        let files = vec![file(1, 1), file(2, 100), file(3, 1)];
        let mut damage = DamageReport { files_lost: 3, files, ..DamageReport::default() };
        cut_to(3000, &mut damage);
        let listed: Vec<_> = damage.files.iter().map(|f| (f.inode, f.lost.len(), f.has_more)).collect();
        assert_eq!(listed, [(1, 1, false), (2, 9, true)]);
        assert_eq!(damage.files_lost, 3);
    }
}
