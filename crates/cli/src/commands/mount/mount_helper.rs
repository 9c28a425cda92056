//! The mount helper: this program under the name `mount.warpfire`, as mount(8) calls it.
//!
//! ```text
//!   mount.warpfire POOL DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//! ```
//!
//! The helper turns these words into those of `warpfire mount`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use warpfire_terminal::Failure;

use crate::found_pool::PoolTag;

/// Names under which this program is a mount helper. mount(8) takes the second for a remount.
const NAMES: [&str; 2] = ["mount.warpfire", "mount.fuse.warpfire"];

/// Exit code of a mount that failed, by mount(8).
pub const MOUNT_FAILED: u8 = 32;
/// Exit code of a wrong call, by mount(8).
pub const WRONG_CALL: u8 = 1;

/// Whether the program was started under the name of a mount helper.
#[must_use]
pub fn is_helper(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name()).and_then(OsStr::to_str);
    name.is_some_and(|name| NAMES.contains(&name))
}

/// The command line of this process, as that of `warpfire`; `None` if there is nothing to do.
///
/// # Errors
/// As [`words`].
pub fn words_of_process() -> Result<Option<Vec<OsString>>, Failure> {
    let mut arguments = std::env::args_os();
    let program = arguments.next();
    if is_helper(program.as_deref()) {
        words(arguments)
    } else {
        Ok(Some(program.into_iter().chain(arguments).collect()))
    }
}

/// The words of `warpfire mount` for the arguments of a helper; `None` if there is nothing to do (`-f`).
///
/// # Errors
/// Arguments that mount(8) does not give.
pub fn words(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Vec<OsString>>, Failure> {
    let (mut places, mut options, mut is_fake) = (Vec::new(), Vec::new(), false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let missing = || Failure::usage(format_args!("{} needs a value", argument.display()));
            arguments.next().ok_or_else(missing)
        };
        match argument.as_bytes() {
            b"-o" => options.push(value()?),
            b"-t" => drop(value()?),
            b"-N" => {
                return Err(Failure::usage("a pool cannot be mounted in another mount namespace")
                    .hint("enter the namespace first, with 'nsenter -m'"));
            }
            [b'-', flags @ ..] if !flags.is_empty() && flags.iter().all(|flag| b"sfnv".contains(flag)) => {
                is_fake |= flags.contains(&b'f');
            }
            [b'-', ..] => {
                return Err(Failure::usage(format_args!(
                    "{} is not an argument of a mount helper",
                    argument.display()
                ))
                .hint("call it by 'mount -t warpfire', or call 'warpfire mount'"));
            }
            _ => places.push(argument),
        }
    }
    let Ok([pool, directory]) = <[OsString; 2]>::try_from(places) else {
        return Err(Failure::usage("a mount helper takes a pool and a directory")
            .hint("call it by 'mount -t warpfire POOL DIRECTORY'"));
    };
    let mut words = vec![OsString::from("warpfire"), OsString::from("mount")];
    words.extend(options.into_iter().flat_map(|option| [OsString::from("-o"), option]));
    words.extend([OsString::from("--"), separated_by_commas(&pool), directory]);
    Ok((!is_fake).then_some(words))
}

/// The devices of a source, separated by commas. In fstab a colon separates them too. A colon that is part of
/// the name of a device that exists separates nothing.
fn separated_by_commas(source: &OsStr) -> OsString {
    if PoolTag::parse(source).is_some() {
        return source.to_owned();
    }
    let mut devices: Vec<Vec<u8>> = Vec::new();
    for part in source.as_bytes().split(|byte| *byte == b',') {
        let mut rest = part;
        while !rest.is_empty() {
            // The longest name that exists, or the text before the next colon.
            let ends = (0..=rest.len()).rev().filter(|end| rest.get(*end).is_none_or(|byte| *byte == b':'));
            let exists = |end: &usize| Path::new(OsStr::from_bytes(&rest[..*end])).exists();
            let first = rest.iter().position(|byte| *byte == b':').unwrap_or(rest.len());
            let end = ends.clone().find(exists).unwrap_or(first);
            devices.extend((end > 0).then(|| rest[..end].to_vec()));
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }
    OsString::from_vec(devices.join(&b','))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(arguments: &[&str]) -> String {
        let words = words(arguments.iter().map(OsString::from)).expect("a right call").expect("not fake");
        words.join(OsStr::new(" ")).into_string().expect("UTF-8")
    }

    #[test]
    fn what_mount_8_calls_becomes_warpfire_mount() {
        assert_eq!(
            said(&["/a,/b", "/mnt", "-o", "rw,noatime"]),
            "warpfire mount -o rw,noatime -- /a,/b /mnt"
        );
        assert_eq!(said(&["label=a:b", "/mnt"]), "warpfire mount -- label=a:b /mnt");
        assert_eq!(said(&["/a:/b", "/mnt", "-sv", "-t", "warpfire"]), "warpfire mount -- /a,/b /mnt");
        assert!(words(["-f", "/a", "/mnt"].map(OsString::from)).expect("a right call").is_none());
        for wrong in [&["/a"][..], &["/a", "/b", "/c"], &["/a", "/b", "--x"], &["/a", "/b", "-o"]] {
            assert!(words(wrong.iter().map(OsString::from)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_colon_in_the_name_of_a_device_separates_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (odd, plain) = (directory.path().join("pci-0:1"), directory.path().join("a"));
        std::fs::write(&odd, b"").expect("made");
        let source = format!("{}:{}:/nowhere", odd.display(), plain.display());
        let expected = format!("{},{},/nowhere", odd.display(), plain.display());
        assert_eq!(separated_by_commas(OsStr::new(&source)), OsStr::new(&expected));
    }

    #[test]
    fn a_helper_is_known_by_its_name() {
        assert!(is_helper(Some(OsStr::new("/sbin/mount.warpfire"))));
        assert!(!is_helper(Some(OsStr::new("/usr/bin/warpfire"))) && !is_helper(None));
    }
}
