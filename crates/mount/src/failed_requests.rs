//! Requests that met damage, or whose outcome is unknown.
//!
//! A program that meets damage sees `EIO` and nothing else, so the server says which file and which program.
//! Programs retry and kernels read ahead: the same failure of the same file is logged once and then counted.

use std::fs;
use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use parking_lot::Mutex;
use warpfire_env::{Clock, SystemClock, Timestamp};

/// Failures that are listed. Of more, the ones that were seen longest ago are dropped from the list.
const LISTED_MAX: usize = 64;

/// Failures that are remembered as logged. Later new ones are counted together and not logged one by one.
const LOGGED_MAX: usize = 4096;

/// Ranges of lost bytes that are kept of one failure.
const LOST_MAX: usize = 8;

/// A failure of requests, with the first request that met it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedRequest {
    /// When it happened last.
    pub at: Timestamp,
    /// How often it has happened.
    pub count: u64,
    /// The request: `read`, `lookup`.
    pub operation: &'static str,
    /// A path of the file from the root of the pool, as far as the server knows it.
    pub path: String,
    /// The inode number of the file.
    pub ino: u64,
    /// The offset in the file, of requests that have one.
    pub offset: Option<u64>,
    /// The process that asked; 0 if the kernel itself did, or if the process is in another namespace.
    pub process: u32,
    /// The name of its program; empty if it is not known.
    pub program: String,
    /// The error in words.
    pub error: String,
    /// Bytes of the file that cannot be read, as far as reads have met them: the first eight ranges.
    pub lost: Vec<Range<u64>>,
}

/// The failures of the requests of one mount and its views.
#[derive(Debug, Default)]
pub struct FailedRequests(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// The one that happened last is the last.
    listed: Vec<FailedRequest>,
    logged: HashSet<(u64, String), FixedState>,
    is_full: bool,
}

/// A request that has failed.
pub(crate) struct Failed<'a> {
    pub(crate) operation: &'static str,
    pub(crate) ino: u64,
    pub(crate) offset: Option<u64>,
    pub(crate) process: u32,
    pub(crate) error: String,
    /// The bytes that a read asked for.
    pub(crate) wanted: Option<Range<u64>>,
    /// Finds the bytes among them that cannot be read. It reads the devices.
    pub(crate) lost_in: &'a dyn Fn(&Range<u64>) -> Vec<Range<u64>>,
    /// The path for an inode number.
    pub(crate) path_of: &'a dyn Fn(u64) -> String,
}

impl FailedRequests {
    /// Logs the failure if it is new, and counts it.
    pub(crate) fn report(&self, failed: Failed<'_>) {
        let at = SystemClock.now();
        let is_same = |listed: &FailedRequest| listed.ino == failed.ino && listed.error == failed.error;
        // Not under the lock: the search reads the devices.
        let is_known = |wanted: &Range<u64>| {
            let failures = self.0.lock();
            failures.listed.iter().find(|listed| is_same(listed)).is_some_and(|one| one.knows(wanted))
        };
        let unknown = failed.wanted.as_ref().filter(|wanted| !is_known(wanted));
        let mut lost = unknown.map(failed.lost_in).unwrap_or_default();
        lost.truncate(LOST_MAX);
        let mut failures = self.0.lock();
        if let Some(index) = failures.listed.iter().position(is_same) {
            let mut again = failures.listed.remove(index);
            (again.at, again.count) = (at, again.count + 1);
            again.lost = joined(std::mem::take(&mut again.lost), lost);
            failures.listed.push(again);
            return;
        }
        let path = (failed.path_of)(failed.ino);
        let program = program_of(failed.process);
        let Failed { operation, ino, offset, process, error, .. } = failed;
        if failures.logged.len() < LOGGED_MAX {
            if failures.logged.insert((ino, error.clone())) {
                let bytes = (!lost.is_empty()).then(|| shown_ranges(&lost));
                tracing::error!(
                    path,
                    ino,
                    offset,
                    bytes,
                    operation,
                    process,
                    program,
                    error,
                    "a request failed"
                );
            }
        } else if !failures.is_full {
            failures.is_full = true;
            tracing::error!("more requests fail; 'warpfire status' shows the last failures");
        }
        if failures.listed.len() == LISTED_MAX {
            failures.listed.remove(0);
        }
        failures.listed.push(FailedRequest {
            at,
            count: 1,
            operation,
            path,
            ino,
            offset,
            process,
            program,
            error,
            lost,
        });
    }

    /// The last failures. The one that happened last is the last.
    #[must_use]
    pub fn listed(&self) -> Vec<FailedRequest> {
        self.0.lock().listed.clone()
    }
}

impl FailedRequest {
    /// Whether a search of these bytes would find nothing new, or nothing that is kept.
    fn knows(&self, wanted: &Range<u64>) -> bool {
        let overlaps = |lost: &Range<u64>| lost.start < wanted.end && wanted.start < lost.end;
        self.lost.len() >= LOST_MAX || self.lost.iter().any(overlaps)
    }
}

/// The first ranges of both lists, rising; ranges that touch become one.
fn joined(mut all: Vec<Range<u64>>, more: Vec<Range<u64>>) -> Vec<Range<u64>> {
    all.extend(more);
    all.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all {
        match joined.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined.truncate(LOST_MAX);
    joined
}

/// `4096..8192, 12288..16384`
fn shown_ranges(ranges: &[Range<u64>]) -> String {
    let shown: Vec<String> = ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    shown.join(", ")
}

/// The name of the program of a process; empty if it has ended or is not visible.
fn program_of(process: u32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failures: &FailedRequests, ino: u64, error: &str) {
        let path_of = |ino| format!("/file {ino}");
        let error = error.to_owned();
        failures.report(Failed {
            operation: "read",
            ino,
            offset: Some(4096),
            process: std::process::id(),
            error,
            wanted: Some(4096..12288),
            lost_in: &|wanted| [0, 4096].map(|skip| wanted.start + skip..wanted.start + skip + 1).to_vec(),
            path_of: &path_of,
        });
    }

    #[test]
    fn the_same_failure_of_a_file_is_counted_and_others_are_listed() {
        let failures = FailedRequests::default();
        for (ino, error) in [(7, "a"), (8, "a"), (7, "a"), (7, "b"), (7, "a")] {
            report(&failures, ino, error);
        }
        let listed = failures.listed();
        let seen: Vec<_> = listed.iter().map(|one| (one.ino, one.error.as_str(), one.count)).collect();
        assert_eq!(seen, [(8, "a", 1), (7, "b", 1), (7, "a", 3)]);
        assert_eq!((listed[0].path.as_str(), listed[0].offset), ("/file 8", Some(4096)));
        assert_eq!(listed[0].lost, [4096..4097, 8192..8193]);
        assert!(!listed[0].program.is_empty(), "it is this process");
    }

    #[test]
    fn lost_bytes_are_sought_once_and_eight_ranges_are_kept() {
        let failures = FailedRequests::default();
        let searches = std::cell::Cell::new(0);
        let read = |wanted: Range<u64>| {
            failures.report(Failed {
                operation: "read",
                ino: 7,
                offset: Some(wanted.start),
                process: 0,
                error: "damaged".to_owned(),
                wanted: Some(wanted),
                lost_in: &|wanted| {
                    searches.set(searches.get() + 1);
                    [1, 3].map(|skip| wanted.start + skip..wanted.start + skip + 1).to_vec()
                },
                path_of: &|_| String::new(),
            });
        };
        for at in [100, 100, 102, 50] {
            read(at..at + 10);
        }
        assert_eq!(
            (searches.get(), &failures.listed()[0].lost[..]),
            (2, &[51..52, 53..54, 101..102, 103..104][..])
        );
        (0..20).for_each(|n| read(1000 + n * 10..1005 + n * 10));
        assert_eq!((searches.get(), failures.listed()[0].lost.len()), (4, LOST_MAX));
        assert_eq!(joined(vec![0..4, 8..9], vec![4..6, 1..2]), [0..6, 8..9]);
        assert_eq!(shown_ranges(&[1..2, 3..4]), "1..2, 3..4");
    }

    #[test]
    fn the_list_and_the_log_of_failures_are_bounded() {
        let failures = FailedRequests::default();
        let last = LOGGED_MAX as u64 + 100;
        for ino in 1..=last {
            report(&failures, ino, "a");
        }
        let listed = failures.listed();
        assert_eq!((listed.len(), listed.last().map(|one| one.ino)), (LISTED_MAX, Some(last)));
        let failures = failures.0.lock();
        assert!(failures.logged.len() == LOGGED_MAX && failures.is_full);
    }
}
