//! Damage that shows only where records meet: each record decodes, but two of them contradict each other.
//!
//! The codes are permanent: docs/FORMAT.md, "Corruption codes". Damage inside one record has codes of
//! `warpfire-format`.

use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_format::Corrupt;

pub(crate) const NO_ROOT_INODE: Corrupt = Corrupt::new(420, "the root directory has no inode");
pub(crate) const HOLDS_ITSELF: Corrupt = Corrupt::new(421, "a directory holds itself");
pub(crate) const NO_INODE_OF_NAME: Corrupt = Corrupt::new(422, "a name refers to an inode that is not there");
pub(crate) const INODE_DIFFERS: Corrupt =
    Corrupt::new(423, "an inode differs from the name that refers to it");
pub(crate) const OWN_ANCESTOR: Corrupt = Corrupt::new(424, "a directory is its own ancestor");
pub(crate) const MISCOUNTED_LINKS: Corrupt = Corrupt::new(425, "a directory miscounts its subdirectories");
pub(crate) const WRONG_RANGE: Corrupt = Corrupt::new(426, "a key is in the wrong range");
pub(crate) const NO_RECORD: Corrupt = Corrupt::new(427, "an inode in use has no record");
pub(crate) const MISCOUNTED_BYTES: Corrupt =
    Corrupt::new(428, "a file's allocated bytes are not those of its extents");
pub(crate) const REGION_PAST_END: Corrupt = Corrupt::new(429, "a region lies past every file's end");
pub(crate) const MALFORMED_LIST: Corrupt =
    Corrupt::new(430, "a stored access control list is not well-formed");
pub(crate) const SNAPSHOT_RECORDS_DIFFER: Corrupt =
    Corrupt::new(431, "the record of a snapshot has another name than the one that refers to it");

pub(crate) const VOLUME_HAS_NO_ROOT: Corrupt =
    Corrupt::new(432, "a directory on the way to the door of a volume is not there");

/// One bit for each code that was reported since the process began. Codes are below 1024.
static REPORTED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Reports damage of a record. The first find of each code is a warning; later ones are debug events, because
/// a program that retries would otherwise fill the log.
pub(crate) fn report_damage(code: u16, reason: &str) {
    debug_assert_ne!(code, 0, "every kind of damage has a code");
    let bit = 1_u64 << (code % 64);
    let is_first = REPORTED
        .get(usize::from(code / 64))
        .is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0);
    if is_first {
        tracing::warn!(code, reason, "damaged record");
    } else {
        tracing::debug!(code, reason, "damaged record");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::report_damage;

    /// Counts the warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn each_code_is_one_warning() {
        let count = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
            // No other test meets these codes: 960 and 961 share a word of the set, 832 and 960 a bit.
            for code in [960, 961, 832, 960, 961, 832] {
                report_damage(code, "as the test asked");
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
