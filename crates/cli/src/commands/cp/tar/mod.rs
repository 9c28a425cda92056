//! `cp --tar`: files of a pool as a tar stream, and back.
//!
//! The crate `tar` lays out headers. Extended headers are read here: its parser of records takes a line end
//! in a name for the end of the record, and its lengths have no limit.

use std::io::IsTerminal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use warpfire_terminal::{Failure, print};

use super::job::CopyJob;
use super::local::NamedPath;
use super::new_local::NewFileAside;
use super::pools::Pools;
use super::{Args, Source, Target};
use crate::commands::chmod::umask;

mod pack;
mod pax;
mod reader;
mod unpack;

pub use pack::TarSink;
pub use unpack::unpack;

/// A stream consists of blocks of this size.
const BLOCK_BYTES: u64 = 512;
type Block = [u8; 512];

/// The longest extended header, in bytes: the path and all extended attributes of one file.
const EXTENSION_BYTES_MAX: u64 = 4 << 20;
/// The most ranges of data of a sparse file. The map of a file takes up to 16 MiB of memory.
const RANGES_MAX: usize = 1 << 20;

/// Before the name of an extended attribute in the key of a record.
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// The bytes that fill the last block behind so many bytes.
fn padding(len: u64) -> u64 {
    len.wrapping_neg() % BLOCK_BYTES
}

/// The key of the record of an extended attribute. As in GNU tar, `=` in a name is escaped, and so is `%`.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = XATTR_PREFIX.as_bytes().to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            byte => key.push(byte),
        }
    }
    key
}

/// The name of the extended attribute whose record has this key; `None` for keys of other records.
fn xattr_name(key: &[u8]) -> Option<Vec<u8>> {
    let mut rest = key.strip_prefix(XATTR_PREFIX.as_bytes())?;
    let mut name = Vec::new();
    while let [first, others @ ..] = rest {
        let (byte, others) = match rest {
            [b'%', b'2', b'5', others @ ..] => (b'%', others),
            [b'%', b'3', b'D', others @ ..] => (b'=', others),
            _ => (*first, others),
        };
        name.push(byte);
        rest = others;
    }
    Some(name)
}

/// Writes the sources, which are in pools, to a local archive, or with `None` to stdout.
pub fn pack(
    job: &mut CopyJob,
    sources: &[Source],
    args: &Args,
    destination: Option<&Path>,
) -> Result<(), Failure> {
    if args.no_clobber || args.update {
        return Err(Failure::usage("--no-clobber and --update do not apply to a new archive"));
    }
    let pools = Pools::out(sources, destination)?;
    let Some(destination) = destination else {
        if std::io::stdout().is_terminal() && !args.dry_run {
            return Err(Failure::usage("an archive is nothing for a terminal").hint("redirect stdout"));
        }
        let mut sink = TarSink::new(Box::new(|bytes| print(bytes)));
        return fill(job, &mut sink, &pools, sources).map(|_| ());
    };
    if args.dry_run {
        return fill(job, &mut TarSink::new(Box::new(|_| Ok(()))), &pools, sources).map(|_| ());
    }
    let named = NamedPath::open(destination)?;
    let name = named.name.filter(|_| !destination.is_dir());
    let name = name.ok_or_else(|| {
        Failure::new(format_args!("{} is a directory", destination.display())).hint("name a file in it")
    })?;
    let failed = |error: std::io::Error| named.dir.failure(destination, &error);
    let aside = NewFileAside::make(&named.dir).map_err(failed)?;
    let mut archive = aside.file();
    let write = |bytes: &[u8]| std::io::Write::write_all(&mut archive, bytes).map_err(failed);
    if !fill(job, &mut TarSink::new(Box::new(write)), &pools, sources)? {
        return Ok(());
    }
    let mode = std::fs::Permissions::from_mode(0o666 & !umask());
    aside.file().set_permissions(mode).map_err(failed)?;
    aside.put(&name).map_err(failed)
}

/// Writes all members, and the end of the archive if that is whole. Returns whether it is.
fn fill(
    job: &mut CopyJob,
    sink: &mut TarSink<'_>,
    pools: &Pools<'_>,
    sources: &[Source],
) -> Result<bool, Failure> {
    pools.copy(job, sink, sources, &Target { base: "".into(), name: None }, None)?;
    if job.goes_on() && !job.options.dry_run {
        sink.finish()?;
    }
    Ok(job.goes_on())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_come_back_with_any_bytes() {
        for name in [&b"user.a"[..], b"user.=%=", b"user.%25%3D", b"user.%", b"user.\xff\n"] {
            let key = xattr_key(name);
            assert!(!key.contains(&b'='));
            assert_eq!(xattr_name(&key).as_deref(), Some(name));
        }
        assert_eq!(xattr_name(b"path"), None);
    }

    #[test]
    fn blocks_are_filled() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
