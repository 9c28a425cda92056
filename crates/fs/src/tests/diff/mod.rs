//! What a commit would change.

mod model;
mod stories;
