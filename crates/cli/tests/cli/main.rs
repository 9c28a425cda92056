//! The real binary on image files in temporary directories.

mod answers;
mod copy;
mod copy_mounted;
mod copy_planted;
mod copy_whole;
mod fixture;
mod golden_refusals;
mod health;
mod json;
mod json_document;
mod looking;
mod mounted;
mod mounted_verbs;
mod polish;
mod reading;
mod refusals;
mod scrub;
mod server;
mod slices;
mod status;
mod storage_errors;
mod system;
mod transactions;
mod trim;
mod upkeep_mounted;
mod verbs;
