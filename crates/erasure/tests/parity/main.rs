//! The crate through its public interface: published numbers, reconstruction, and refused requests.

mod format;
mod reconstruct;
mod requests;
mod stripe;
