//! Tables and the commit records of the log, merged into one ordered map.

mod commits;
mod manifest;
mod merge;
mod rollbacks;
mod run;
mod shown;
mod verify;

pub(crate) use commits::{CommitVersions, split_records};
pub(crate) use manifest::Manifest;
pub(crate) use merge::{Merge, Value};
pub(crate) use rollbacks::Rollbacks;
pub(crate) use run::{LostKeys, find_block, read_table, read_top};
pub(crate) use shown::{DoorVolumes, ShownKeys};
pub(crate) use verify::show;
