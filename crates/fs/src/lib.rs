//! Names, files and time, written once over the metadata and slice seams.

#![forbid(unsafe_code)]

pub mod acl;
