//! Copying inside one pool: the copy shares the slices of the file, no data moves.

use std::path::Path;

use warpfire::{FileType, Metadata, SetMetadata, Warpfire};

use super::Job;
use crate::failure::Failure;

/// Copies a file, or a folder with all that is in it.
pub fn copy(job: &mut Job, fs: &Warpfire, source: &Path, target: &Path) {
    if target.starts_with(source) {
        return job.skip(source, "can not be copied into itself");
    }
    let metadata = match fs.symlink_metadata(source) {
        Ok(metadata) => metadata,
        Err(error) => return job.skip(source, error),
    };
    if !metadata.is_dir() {
        let copied = file(fs, source, &metadata, target);
        return job.outcome(source, copied);
    }
    if !job.recursive {
        return job.skip(source, "is a folder; copy it with -r");
    }
    if let Err(failure) = folder(job, fs, source, target) {
        return job.skip(source, failure);
    }
    let kept = fs.set_metadata(target, &kept(&metadata));
    job.outcome(source, kept.map(|()| 0));
}

fn folder(job: &mut Job, fs: &Warpfire, source: &Path, target: &Path) -> Result<(), Failure> {
    if !fs.metadata(target).is_ok_and(|there| there.is_dir()) {
        fs.create_dir(target)?;
    }
    for entry in fs.read_dir(source)? {
        let name = entry?.file_name().to_owned();
        copy(job, fs, &source.join(&name), &target.join(&name));
    }
    Ok(())
}

fn file(fs: &Warpfire, source: &Path, metadata: &Metadata, target: &Path) -> Result<u64, Failure> {
    match metadata.file_type() {
        FileType::File | FileType::Dir => {
            fs.copy(source, target)?;
        }
        FileType::Symlink => fs.symlink(fs.read_link(source)?, target)?,
        special => fs.create_special(target, special, metadata.mode(), metadata.device_numbers())?,
    }
    fs.set_symlink_metadata(target, &kept(metadata))?;
    Ok(metadata.len())
}

fn kept(metadata: &Metadata) -> SetMetadata {
    let kept = SetMetadata::new().accessed(metadata.accessed()).modified(metadata.modified());
    if metadata.file_type() == FileType::Symlink { kept } else { kept.mode(metadata.mode()) }
}
