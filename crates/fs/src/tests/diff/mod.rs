//! Tests of the diff of a transaction.

mod model;
mod stories;
