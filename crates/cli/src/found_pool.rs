//! Pools by their name or number: `LABEL=photos`, `UUID=6f1c...`.
//!
//! The search goes over the block devices of the machine, and over the places of `--search` and of the
//! environment variable `WARPFIRE_DEVICES`. `label=` and `uuid=` mean the same: mount(8) keeps the words in
//! capitals for itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

use warpfire::{FoundPool, Scan, block_devices, scan};
use warpfire_terminal::{Failure, quoted, shown};

/// The environment variable with places to search, separated by colons.
pub const DEVICES_VARIABLE: &str = "WARPFIRE_DEVICES";

/// The places of `--search`, and of the mount option `search`.
static SEARCHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Searches in these places too, from now on.
pub fn search_in(places: &[PathBuf]) {
    SEARCHED.lock().expect("no holder panics").extend_from_slice(places);
}

/// The places to search besides block devices.
fn named_places() -> Vec<PathBuf> {
    let variable = std::env::var_os(DEVICES_VARIABLE).unwrap_or_default();
    let named = std::env::split_paths(&variable).filter(|place| !place.as_os_str().is_empty());
    SEARCHED.lock().expect("no holder panics").iter().cloned().chain(named).collect()
}

/// Searches everywhere.
#[must_use]
pub fn scan_all() -> Scan {
    scan(&named_places().into_iter().chain(block_devices()).collect::<Vec<_>>())
}

/// A property by which the command line names a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolTag {
    /// Its name.
    Label(String),
    /// Its number: hexadecimal digits in small letters.
    Uuid(String),
}

impl PoolTag {
    /// The tag in a word; `None` if the word names devices.
    #[must_use]
    pub fn parse(word: &OsStr) -> Option<PoolTag> {
        let word = word.as_bytes();
        let at = word.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (word.get(..at)?, word.get(at + 1..)?);
        let value = String::from_utf8_lossy(value).into_owned();
        match name {
            b"LABEL" | b"label" => Some(PoolTag::Label(value)),
            b"UUID" | b"uuid" => Some(PoolTag::Uuid(value.to_ascii_lowercase().replace('-', ""))),
            _ => None,
        }
    }

    fn fits(&self, pool: &FoundPool) -> bool {
        match self {
            // A pool without a name has no name to be found by.
            PoolTag::Label(label) => !label.is_empty() && pool.label == *label,
            PoolTag::Uuid(uuid) => pool.pool.replace('-', "") == *uuid,
        }
    }

    fn in_words(&self) -> String {
        match self {
            PoolTag::Label(label) => format!("the name {}", quoted(label.as_ref())),
            PoolTag::Uuid(uuid) => format!("the number {}", quoted(uuid.as_ref())),
        }
    }

    /// The devices of the one pool with this tag.
    ///
    /// # Errors
    /// No pool has it, or more than one.
    pub fn devices(&self) -> Result<Vec<PathBuf>, Failure> {
        let scan = scan_all();
        let pools: Vec<&FoundPool> = scan.pools.iter().filter(|pool| self.fits(pool)).collect();
        match pools.as_slice() {
            // A device that was copied is there twice. Both are named, so that opening the pool says so.
            [pool] => Ok(pool.paths().into_iter().chain(self.copies(pool)).collect()),
            [] => Err(self.not_found(&scan)),
            [_, _, ..] => {
                let uuids: Vec<&str> = pools.iter().map(|pool| pool.pool.as_str()).collect();
                Err(Failure::unreadable(format_args!(
                    "{} pools have {}: {}",
                    pools.len(),
                    self.in_words(),
                    uuids.join(", ")
                ))
                .hint(format_args!(
                    "name one of them by 'UUID={}', or give it another name with 'warpfire label'",
                    uuids[0]
                )))
            }
        }
    }

    /// Devices that claim the place of another one in the pool.
    fn copies(&self, pool: &FoundPool) -> Vec<PathBuf> {
        let is_refused = matches!(pool.opens, warpfire::Opens::No(_));
        if is_refused { pool.strangers.clone() } else { Vec::new() }
    }

    fn not_found(&self, scan: &Scan) -> Failure {
        let failure = Failure::unreadable(format_args!("no pool with {} was found", self.in_words()));
        match scan.skipped.as_slice() {
            [(path, _), rest @ ..] => {
                let others = if rest.is_empty() { String::new() } else { format!(" and {} others", rest.len()) };
                failure.hint(format_args!(
                    "{}{others} could not be searched, and 'warpfire scan' says why; --search and {DEVICES_VARIABLE} \
                     name more places",
                    shown(path)
                ))
            }
            [] => failure.hint(format_args!(
                "'warpfire scan' lists the pools that are found; --search and {DEVICES_VARIABLE} name more places"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_known_in_both_spellings_and_nothing_else_is_one() {
        let tag = |word: &str| PoolTag::parse(OsStr::new(word));
        assert_eq!(tag("LABEL=my photos"), Some(PoolTag::Label("my photos".into())));
        assert_eq!(tag("label=a=b"), Some(PoolTag::Label("a=b".into())));
        assert_eq!(tag("UUID=6F1C-22"), Some(PoolTag::Uuid("6f1c22".into())));
        for other in ["./LABEL=x", "Label=x", "a.img,LABEL=x", "PARTUUID=1", "LABEL", "=x"] {
            assert_eq!(tag(other), None, "{other}");
        }
    }
}
