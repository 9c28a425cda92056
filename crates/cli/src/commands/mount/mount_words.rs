//! Mount options: the words after `-o`, as mount(8) and fstab(5) write them.
//!
//! Words that mount(8), systemd or others act on (`nofail`, `_netdev`, `noauto`, `x-…`) are accepted and have
//! no effect here. Any other word that is not known is refused: an option that is ignored would be a promise
//! that is not kept.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use warpfire::AccessTimes;
use warpfire_mount::{SnapshotDirectories, SnapshotNames, THREADS_MAX};
use warpfire_terminal::Failure;

/// Range of `commit=`, in seconds.
pub const COMMIT_SECONDS: RangeInclusive<u64> = 1..=3600;
/// Range of `tx_timeout=`, in seconds.
pub const TX_TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=30 * 86400;

/// Range of `trim=`, in seconds.
pub const TRIM_SECONDS: RangeInclusive<u64> = 1..=30 * 86400;

/// Range of `spare_after=`, in seconds.
pub const SPARE_AFTER_SECONDS: RangeInclusive<u64> = 0..=365 * 86400;

/// Values of `snapshots=`.
pub const SNAPSHOTS: [(&str, SnapshotDirectories); 3] = [
    ("every", SnapshotDirectories::Every),
    ("root", SnapshotDirectories::Root),
    ("nowhere", SnapshotDirectories::Nowhere),
];

/// Values of `names=`.
pub const NAMES: [(&str, SnapshotNames); 2] = [("own", SnapshotNames::Own), ("gmt", SnapshotNames::Gmt)];

/// Options of a mount. Of two words that contradict each other the later counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountWords {
    pub read_only: bool,
    /// Open the pool even if the missing devices may hold a newer state.
    pub degraded: bool,
    pub suid: bool,
    pub dev: bool,
    pub exec: bool,
    pub allow_other: bool,
    pub access_times: AccessTimes,
    pub commit_seconds: Option<u64>,
    pub tx_timeout_seconds: Option<u64>,
    pub trim_seconds: Option<u64>,
    pub spare_after_seconds: Option<u64>,
    pub cache_bytes: Option<u64>,
    pub threads: Option<usize>,
    pub no_queues: bool,
    pub let_halt: bool,
    pub snapshots: SnapshotDirectories,
    pub names: SnapshotNames,
    pub log: Option<PathBuf>,
    pub log_level: Option<String>,
    /// Places in which to search for the pool.
    pub search: Vec<PathBuf>,
    /// Change the options of a pool that is mounted.
    pub remount: bool,
    /// The words that a mount takes and a remount cannot change, as given.
    pub only_at_mount: Vec<String>,
    /// A word of the kernel's mount table that nobody can ask for. mount(8) repeats these for a remount.
    pub(super) shown_by_kernel: Option<String>,
}

impl Default for MountWords {
    fn default() -> Self {
        MountWords {
            read_only: false,
            degraded: false,
            suid: false,
            dev: false,
            exec: true,
            allow_other: false,
            access_times: AccessTimes::default(),
            commit_seconds: None,
            tx_timeout_seconds: None,
            trim_seconds: None,
            spare_after_seconds: None,
            cache_bytes: None,
            threads: None,
            no_queues: false,
            let_halt: false,
            snapshots: SnapshotDirectories::default(),
            names: SnapshotNames::default(),
            log: None,
            log_level: None,
            search: Vec::new(),
            remount: false,
            only_at_mount: Vec::new(),
            shown_by_kernel: None,
        }
    }
}

impl MountWords {
    /// Parses lists of words separated by commas, over the values that are set already.
    ///
    /// # Errors
    /// A word that is not known, or a value out of its range.
    pub fn parse<'a>(mut self, lists: impl IntoIterator<Item = &'a str>) -> Result<Self, Failure> {
        for word in lists.into_iter().flat_map(|list| list.split(',')) {
            self.take(word.trim())?;
        }
        match &self.shown_by_kernel {
            Some(word) if !self.remount => Err(unknown(word)),
            _ if self.read_only && self.trim_seconds.is_some() && !self.remount => {
                Err(Failure::usage("a pool that is mounted read-only is not trimmed")
                    .hint("leave out 'trim'"))
            }
            _ => Ok(self),
        }
    }

    fn take(&mut self, word: &str) -> Result<(), Failure> {
        if self.take_flag(word) || is_for_others(word) {
            return Ok(());
        }
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "commit" => self.commit_seconds = Some(number(word, value, COMMIT_SECONDS)?),
            "tx_timeout" => self.tx_timeout_seconds = Some(number(word, value, TX_TIMEOUT_SECONDS)?),
            "trim" => self.trim_seconds = Some(number(word, value, TRIM_SECONDS)?),
            "spare_after" => self.spare_after_seconds = Some(number(word, value, SPARE_AFTER_SECONDS)?),
            "cache" => {
                let wrong = |why| Failure::usage(format_args!("mount option '{word}': {why}"));
                self.cache_bytes = Some(super::parse_cache(value).map_err(wrong)?);
            }
            "threads" => {
                let threads = number(word, value, 1..=THREADS_MAX as u64)?;
                self.threads = Some(usize::try_from(threads).expect("at most THREADS_MAX"));
            }
            "snapshots" => self.snapshots = choice(word, value, &SNAPSHOTS)?,
            "names" => self.names = choice(word, value, &NAMES)?,
            "log" if !value.is_empty() => self.log = Some(PathBuf::from(value)),
            "log_level" if !value.is_empty() => self.log_level = Some(value.to_owned()),
            "search" if !value.is_empty() => self.search.push(PathBuf::from(value)),
            "degraded" if value.is_empty() => self.degraded = true,
            "no_queues" if value.is_empty() => self.no_queues = true,
            "let_halt" if value.is_empty() => self.let_halt = true,
            "allow_other" if value.is_empty() => self.allow_other = true,
            "noatime" if value.is_empty() => self.access_times = AccessTimes::Never,
            "relatime" | "atime" if value.is_empty() => self.access_times = AccessTimes::Relatime,
            "strictatime" if value.is_empty() => self.access_times = AccessTimes::Strict,
            "user_id" | "group_id" | "default_permissions" | "max_read" | "seclabel" => {
                self.shown_by_kernel = Some(word.to_owned());
                return Ok(());
            }
            _ => return Err(unknown(word)),
        }
        self.only_at_mount.push(word.to_owned());
        Ok(())
    }

    /// Takes a word that a remount can change too.
    fn take_flag(&mut self, word: &str) -> bool {
        match word {
            "" | "defaults" => {}
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "remount" => self.remount = true,
            // A mount that ordinary users may make, as in mount(8).
            "user" | "users" | "owner" | "group" => (self.suid, self.dev, self.exec) = (false, false, false),
            _ => return false,
        }
        true
    }
}

/// Words that other programs act on, or that ask for what always holds.
fn is_for_others(word: &str) -> bool {
    let known = ["auto", "noauto", "nouser", "nofail", "_netdev", "async", "silent", "loud"];
    let named = |key: &str| word.strip_prefix(key).is_some_and(|rest| rest.starts_with('='));
    known.contains(&word)
        || word.starts_with("x-")
        || word.starts_with("X-")
        || named("user")
        || named("comment")
        || named("subtype")
}

fn unknown(word: &str) -> Failure {
    Failure::usage(format_args!("'{word}' is not a mount option of warpfire"))
        .hint("'warpfire mount --help' lists the options")
}

fn choice<T: Copy>(word: &str, value: &str, values: &[(&str, T)]) -> Result<T, Failure> {
    let found = values.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let (key, _) = word.split_once('=').unwrap_or((word, ""));
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        Failure::usage(format_args!("'{word}' is not a value of the mount option {key}"))
            .hint(format_args!("use one of {}", names.join(", ")))
    })
}

fn number(word: &str, value: &str, range: RangeInclusive<u64>) -> Result<u64, Failure> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (key, _) = word.split_once('=').unwrap_or((word, ""));
        Failure::usage(format_args!("'{word}' is not a value of the mount option {key}")).hint(format_args!(
            "use a number from {} to {}",
            range.start(),
            range.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> MountWords {
        MountWords::default().parse([words]).expect(words)
    }

    #[test]
    fn the_words_of_an_fstab_are_understood() {
        let words = "ro,nosuid,nodev,noexec,noatime,allow_other,commit=7,nofail,_netdev,x-systemd.automount";
        let found = parsed(words);
        assert!(found.read_only && !found.suid && !found.dev && !found.exec && found.allow_other);
        assert_eq!((found.access_times, found.commit_seconds), (AccessTimes::Never, Some(7)));
        assert_eq!(parsed("defaults"), MountWords::default());
        assert_eq!(parsed("rw,user,noauto"), MountWords { exec: false, ..MountWords::default() });
        assert!(parsed("user,exec,suid").exec);
        // What mount(8) repeats from the mount table.
        assert!(parsed("rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other,remount,ro").remount);
    }

    #[test]
    fn the_later_of_two_words_counts() {
        assert!(!parsed("ro,rw").read_only);
        assert!(parsed("nosuid,suid").suid);
        assert_eq!(parsed("noatime,strictatime").access_times, AccessTimes::Strict);
        let found = parsed("snapshots=root,names=gmt");
        assert_eq!((found.snapshots, found.names), (SnapshotDirectories::Root, SnapshotNames::Gmt));
        assert_eq!(parsed("snapshots=root,snapshots=every").snapshots, SnapshotDirectories::Every);
        let both = MountWords::default().parse(["commit=5", "commit=9"]).expect("two lists");
        assert_eq!(both.commit_seconds, Some(9));
    }

    #[test]
    fn a_pool_that_is_read_only_is_not_trimmed() {
        assert_eq!(parsed("trim=3600").trim_seconds, Some(3600));
        let refused = MountWords::default().parse(["trim=3600,ro"]).expect_err("read-only");
        assert!(refused.to_string().contains("is not trimmed"), "{refused}");
    }

    #[test]
    fn an_unknown_word_and_a_bad_value_are_refused_by_name() {
        for word in [
            "nosiud",
            "commit=0",
            "commit=x",
            "commit",
            "trim",
            "trim=0",
            "spare_after=10m",
            "cache=1K",
            "cache=",
            "threads=65",
            "snapshots=some",
            "snapshots",
            "names=utc",
            "noatime=1",
            "user_id=5",
            "log=",
            "search=",
        ] {
            let refused = MountWords::default().parse([word]).expect_err(word);
            assert!(refused.to_string().contains(word), "{refused}");
        }
    }
}
