//! Names of files inside a pool on the command line: `POOL:/path`.
//!
//! `POOL` is one or more devices or image files, separated by commas. A directory stands for all `*.img`
//! files in it, or for the pool that is mounted there. An empty `POOL` (`:/path`) is the pool that the
//! environment variable `WARPFIRE_POOL` names. `LABEL=name` and `UUID=number` stand for the devices of the
//! pool with this name or number, wherever they are (`found_pool`).
//!
//! The form of an argument alone decides, and not the files that exist: the first `:/` ends the pool, and
//! `POOL:` is its root. Anything after `local:` is a local path, whatever it holds. A pool in a file of that
//! name is `./local:/path`.
//!
//! A local path in a mounted pool names a file of that pool too, for the commands that work in pools only.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire::device_label;
use warpfire_terminal::{Failure, shown};

use crate::commands::mount::mounted_pool::{mountpoint_around, pool_mounted_at};
use crate::found_pool::PoolTag;

/// The environment variable that names the pool of locations beginning with `:/`.
pub const POOL_VARIABLE: &str = "WARPFIRE_POOL";

/// The beginning of an argument that is a local path even if it holds `:/`.
const LOCAL_PREFIX: &[u8] = b"local:";

/// A pool, as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolName(PoolPlace);

#[derive(Clone, PartialEq, Eq, Debug)]
enum PoolPlace {
    /// Its devices, a directory of images, or the directory that it is mounted on.
    Named(OsString),
    /// The pool that is mounted around a local path.
    Around(PathBuf),
}

/// A path inside a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The pool.
    pub pool: PoolName,
    /// The path inside it; begins with `/`.
    pub path: PathBuf,
    /// The local path that the command line has in place of both.
    local: Option<PathBuf>,
}

/// Whether a symbolic link at the end of a local path stands for the file that it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastLink {
    Followed,
    /// With a slash behind it the link stands for the directory that it leads to.
    Kept,
    /// The link stands for itself, with a slash behind it too.
    KeptBeforeSlash,
}

/// A path on the command line: inside a pool or local.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathArgument {
    /// A file inside a pool.
    Pool(Location),
    /// A local file.
    Local(PathBuf),
}

impl PoolName {
    /// The pool with this name.
    #[must_use]
    pub fn new(name: impl Into<OsString>) -> Self {
        PoolName(PoolPlace::Named(name.into()))
    }

    /// The words of the command line, or the variable in place of none.
    fn words(&self) -> Result<OsString, Failure> {
        match &self.0 {
            PoolPlace::Around(mountpoint) => Ok(mountpoint.into()),
            PoolPlace::Named(name) if name.is_empty() => {
                std::env::var_os(POOL_VARIABLE).filter(|name| !name.is_empty()).ok_or_else(|| {
                    Failure::usage("no pool is named")
                        .hint(format_args!("name its devices, or set {POOL_VARIABLE}"))
                })
            }
            PoolPlace::Named(name) => Ok(name.clone()),
        }
    }

    /// The directory that the pool is mounted on, if that is its name, and whether the command line names
    /// files by local paths.
    #[must_use]
    pub fn mountpoint(&self) -> Option<(PathBuf, bool)> {
        match &self.0 {
            PoolPlace::Around(mountpoint) => Some((mountpoint.clone(), true)),
            PoolPlace::Named(_) => {
                let name = self.words().ok()?;
                pool_mounted_at(Path::new(&name)).map(|mounted| (mounted.mountpoint, false))
            }
        }
    }

    /// As [`mountpoint`](PoolName::mountpoint), also for a directory below it.
    #[must_use]
    pub fn mountpoint_around(&self) -> Option<PathBuf> {
        let (mountpoint, _) = self.mountpoint().unzip();
        mountpoint.or_else(|| {
            let directory = PathBuf::from(self.words().ok()?);
            let is_pool = !directory.is_dir() || images_in(&directory).is_ok();
            if is_pool { None } else { mountpoint_of(&directory) }
        })
    }

    /// Whether paths in both lead to the same files. One pool can be mounted at two places.
    #[must_use]
    pub fn is_same(&self, other: &PoolName) -> bool {
        self == other
            || match (&self.0, &other.0) {
                (PoolPlace::Around(a), PoolPlace::Around(b)) => {
                    whole_at(a).is_some_and(|device| whole_at(b) == Some(device))
                }
                _ => false,
            }
    }

    /// The devices and image files in order, with the images of a directory in its place.
    ///
    /// # Errors
    /// An empty name without `WARPFIRE_POOL`; a directory that cannot be read or has no image; no pool or two
    /// pools of this name.
    pub fn devices(&self) -> Result<Vec<PathBuf>, Failure> {
        let name = self.words()?;
        if let Some(tag) = PoolTag::parse(&name) {
            return tag.devices();
        }
        let mut devices = Vec::new();
        for part in name.as_bytes().split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
            let path = PathBuf::from(OsStr::from_bytes(part));
            if path.is_dir() {
                devices.extend(images_in(&path)?);
            } else {
                devices.push(path);
            }
        }
        let is_there = |device: &PathBuf| {
            device.symlink_metadata().map_or_else(|error| error.kind() != ErrorKind::NotFound, |_| true)
        };
        match devices.iter().find(|device| !is_there(device)) {
            None => Ok(devices),
            Some(path) => {
                let absent = Failure::unreadable(format_args!("{}: no such image or device", shown(path)));
                let absent = absent.of_path(path);
                Err(if devices.iter().any(is_there) {
                    absent.hint("check the path; if the device is lost and parity covers it, leave it out")
                } else {
                    absent.hint(pools_nearby())
                })
            }
        }
    }

    /// Whether a device of that name holds part of a pool. Without a name there is none.
    #[must_use]
    pub fn is_pool(&self) -> bool {
        let is_named = matches!(&self.0, PoolPlace::Named(name) if !name.is_empty());
        let devices = if is_named { self.devices().unwrap_or_default() } else { Vec::new() };
        devices.iter().any(|device| matches!(device_label(device), Ok(Some(_))))
    }
}

/// Names that a message lists.
const NAMES_MAX: usize = 5;

/// What to try instead of a pool that does not exist: the pools in the current directory.
fn pools_nearby() -> String {
    let entries = std::fs::read_dir(".").into_iter().flatten().flatten();
    let is_pool = |path: &PathBuf| path.extension() == Some(OsStr::new("img")) || images_in(path).is_ok();
    let found = entries.map(|entry| PathBuf::from(entry.file_name())).filter(is_pool);
    let mut names: Vec<String> = found.map(|path| shown(&path)).collect();
    names.sort();
    let rest = if names.len() > NAMES_MAX { ", ..." } else { "" };
    names.truncate(NAMES_MAX);
    match names.as_slice() {
        [] => "check the path".to_owned(),
        names => format!("check the path; in this directory are {}{rest}", names.join(", ")),
    }
}

fn images_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(directory).map_err(|error| Failure::local(directory, &error))?;
    let mut images = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::local(directory, &error))?.path();
        if path.extension() == Some(OsStr::new("img")) {
            images.push(path);
        }
    }
    images.sort();
    if images.is_empty() {
        return Err(Failure::new(format_args!("the directory {} has no *.img file", directory.display()))
            .hint("name the devices of the pool, separated by commas"));
    }
    Ok(images)
}

impl PathArgument {
    /// Parses an argument: it is inside a pool if it contains `:/` or ends with `:`, unless it begins with
    /// `local:`.
    #[must_use]
    pub fn parse(argument: &OsStr) -> PathArgument {
        let bytes = argument.as_bytes();
        if let Some(local) = bytes.strip_prefix(LOCAL_PREFIX) {
            return PathArgument::Local(PathBuf::from(OsStr::from_bytes(local)));
        }
        let colon = bytes.windows(2).position(|pair| pair == b":/");
        let Some(colon) = colon.or_else(|| bytes.ends_with(b":").then(|| bytes.len() - 1)) else {
            return PathArgument::Local(PathBuf::from(argument));
        };
        let (pool, path) = (&bytes[..colon], &bytes[colon + 1..]);
        let path = if path.is_empty() { b"/" } else { path };
        PathArgument::Pool(Location {
            pool: PoolName::new(OsString::from_vec(pool.to_vec())),
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            local: None,
        })
    }
}

impl Location {
    /// A location from an argument that must name a file inside a pool. A symbolic link at the end of a local
    /// path stays.
    ///
    /// # Errors
    /// The argument is a local path outside of mounted pools.
    pub fn parse(argument: &OsStr) -> Result<Location, Failure> {
        Location::parse_as(argument, LastLink::Kept)
    }

    /// As [`parse`](Location::parse), for commands that follow a link that is named.
    ///
    /// # Errors
    /// As `parse`; the link leads out of the pool.
    pub fn parse_followed(argument: &OsStr) -> Result<Location, Failure> {
        Location::parse_as(argument, LastLink::Followed)
    }

    /// As [`parse`](Location::parse), for commands that remove or move the name itself: a link with a slash
    /// behind it stays too. [`Tree::check_slash`](crate::tree::Tree::check_slash) refuses it.
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_name(argument: &OsStr) -> Result<Location, Failure> {
        Location::parse_as(argument, LastLink::KeptBeforeSlash)
    }

    /// As [`parse`](Location::parse), for commands that only read: there the name of a pool alone is its
    /// root.
    ///
    /// # Errors
    /// The argument begins with `local:` and is not in a mounted pool.
    pub fn parse_or_root(argument: &OsStr) -> Result<Location, Failure> {
        let is_local = argument.as_bytes().starts_with(LOCAL_PREFIX);
        match PathArgument::parse(argument) {
            PathArgument::Local(path) if !is_local => match Location::of_local(&path, LastLink::Kept)? {
                Some(location) => Ok(location),
                None => Ok(Location { pool: PoolName::new(argument), path: PathBuf::from("/"), local: None }),
            },
            _ => Location::parse(argument),
        }
    }

    fn parse_as(argument: &OsStr, last: LastLink) -> Result<Location, Failure> {
        let path = match PathArgument::parse(argument) {
            PathArgument::Pool(location) => return Ok(location),
            PathArgument::Local(path) => path,
        };
        Location::of_local(&path, last)?.ok_or_else(|| {
            Failure::usage(format_args!("'{}' is not the name of a file in a pool", shown(&path)))
                .hint(format_args!("write '{}:/path'", shown(&path)))
        })
    }

    /// The file of a mounted pool that a local path leads to; `None` if no pool is mounted around it.
    fn of_local(local: &Path, last: LastLink) -> Result<Option<Location>, Failure> {
        let Some(resolved) = resolved(local, last) else { return Ok(None) };
        let Some(mountpoint) = mountpoint_around(&resolved) else {
            let named = resolved_to_name(local).and_then(|named| mountpoint_around(&named));
            return match named.filter(|_| last == LastLink::Followed) {
                Some(_) => Err(Failure::new(format_args!("{} leads out of the mounted pool", shown(local)))
                    .hint(format_args!("name {} to a program of the system", shown(&resolved)))),
                None => Ok(None),
            };
        };
        let below = resolved.strip_prefix(&mountpoint).expect("the path is below the mountpoint");
        let mut path = Path::new("/").join(below);
        if names_directory(local) {
            // The slash stays.
            path.push("");
        }
        Ok(Some(Location {
            pool: PoolName(PoolPlace::Around(mountpoint)),
            path,
            local: Some(local.to_path_buf()),
        }))
    }

    /// Locations from the arguments of a command.
    ///
    /// # Errors
    /// As `parse` for the first argument that it refuses.
    pub fn parse_all(
        arguments: &[OsString],
        parse: impl Fn(&OsStr) -> Result<Location, Failure>,
    ) -> Result<Vec<Location>, Failure> {
        arguments.iter().map(|argument| parse(argument)).collect()
    }

    /// The file as it is named in a list: by its path in the pool, or as the command line names it.
    #[must_use]
    pub fn name(&self) -> OsString {
        self.in_list(&self.path).into()
    }

    /// A file of the same pool in a list, as [`name`](Location::name).
    #[must_use]
    pub fn in_list(&self, path: &Path) -> PathBuf {
        if self.local.is_some() { self.named(path).into() } else { path.to_path_buf() }
    }

    /// A file of the same pool as it is named on the command line.
    #[must_use]
    pub fn named(&self, path: &Path) -> OsString {
        if let Some(local) = &self.local {
            return match path.strip_prefix(&self.path) {
                Ok(below) if below.as_os_str().is_empty() => local.into(),
                Ok(below) => local.join(below).into(),
                Err(_) => path.into(),
            };
        }
        let PoolPlace::Named(name) = &self.pool.0 else { return path.into() };
        let mut name = name.clone();
        name.push(":");
        name.push(path);
        name
    }
}

/// Whether a path can only name a directory: it ends with a slash, or with a slash and a dot.
#[must_use]
pub fn names_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

/// The directory of the mounted pool that a local path leads into, by its name; `None` if it leads into none.
#[must_use]
pub fn mountpoint_of(local: &Path) -> Option<PathBuf> {
    mountpoint_around(&resolved(local, LastLink::Kept)?)
}

/// The filesystem of the pool that is mounted at a directory, if it shows all of the pool.
fn whole_at(mountpoint: &Path) -> Option<(u32, u32)> {
    pool_mounted_at(mountpoint).filter(|mounted| mounted.shows_all).map(|mounted| mounted.device)
}

/// The whole path that a local path leads to, without links. The file need not exist, but its directory.
fn resolved(local: &Path, last: LastLink) -> Option<PathBuf> {
    if last == LastLink::KeptBeforeSlash || last == LastLink::Kept && !names_directory(local) {
        return resolved_to_name(local);
    }
    match local.canonicalize() {
        Ok(whole) => Some(whole),
        Err(_) => resolved_to_name(local),
    }
}

/// The whole path of a local path. Links on the way are resolved, and a link at the end stays.
fn resolved_to_name(local: &Path) -> Option<PathBuf> {
    let parent = local.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = match local.file_name() {
        Some(name) => parent.canonicalize().map(|parent| parent.join(name)),
        None => local.canonicalize(),
    };
    // Where a mount does not answer, its table of the kernel does.
    whole.or_else(|_| std::path::absolute(local)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(argument: &str) -> (String, String) {
        let location = Location::parse(OsStr::new(argument)).expect(argument);
        let PoolPlace::Named(name) = location.pool.0 else { panic!("it names a pool") };
        (name.to_string_lossy().into_owned(), location.path.display().to_string())
    }

    #[test]
    fn the_first_colon_before_a_slash_ends_the_pool() {
        assert_eq!(pool("a.img:/x"), ("a.img".into(), "/x".into()));
        assert_eq!(pool("/p/a.img,/p/b.img:/x:/y"), ("/p/a.img,/p/b.img".into(), "/x:/y".into()));
        assert_eq!(pool(":/x"), (String::new(), "/x".into()));
    }

    #[test]
    fn a_path_without_a_colon_before_a_slash_is_local() {
        for local in ["a.img", "a:b", "/x/y:z", "."] {
            assert_eq!(PathArgument::parse(OsStr::new(local)), PathArgument::Local(local.into()));
        }
    }

    #[test]
    fn a_path_after_local_is_local_whatever_it_holds() {
        for local in ["./odd/d:/e", "d:", "local:/e", "/a"] {
            let argument = format!("local:{local}");
            assert_eq!(PathArgument::parse(OsStr::new(&argument)), PathArgument::Local(local.into()));
            Location::parse_or_root(OsStr::new(&argument)).expect_err("it is local");
        }
        assert_eq!(pool("./local:/x"), ("./local".into(), "/x".into()));
    }

    #[test]
    fn a_pool_with_a_colon_or_for_reading_alone_is_its_root() {
        assert_eq!(pool("p:"), ("p".into(), "/".into()));
        assert_eq!(pool(":"), (String::new(), "/".into()));
        let root = Location::parse_or_root(OsStr::new("a.img,b.img")).expect("a pool");
        assert_eq!(root, Location::parse(OsStr::new("a.img,b.img:/")).expect("its root"));
        assert_eq!(root.named(Path::new("/x")), "a.img,b.img:/x");
    }

    #[test]
    fn a_local_path_where_a_pool_is_needed_is_refused_with_the_right_form() {
        let failure = Location::parse(OsStr::new("a.img")).expect_err("no colon");
        assert!(failure.to_string().contains("a.img"));
    }

    #[test]
    fn a_directory_stands_for_its_images_in_order() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in ["b.img", "a.img", "notes.txt"] {
            std::fs::write(directory.path().join(name), b"").expect("writable");
        }
        let devices = PoolName::new(directory.path()).devices().expect("two images");
        assert_eq!(devices, [directory.path().join("a.img"), directory.path().join("b.img")]);
    }
}
