//! The crate from outside: the published numbers, rebuilding, and requests that can not be met.

mod format;
mod rebuild;
mod requests;
mod stripe;
