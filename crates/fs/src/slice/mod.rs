//! Slices as values: ranges of files that a program takes as pointers and puts elsewhere as pointers.
//!
//! | call | meaning |
//! |---|---|
//! | [`Fs::yank`](crate::Fs::yank) | takes a range as a value, a [`YankedSlice`] |
//! | [`Fs::paste`](crate::Fs::paste) | writes a value at an offset, or at the end: `append` |
//! | [`Fs::insert_range`](crate::Fs::insert_range) | inserts a value or a hole; the bytes behind it move up |
//! | [`Fs::remove_range`](crate::Fs::remove_range) | removes a range; the bytes behind it move down |
//! | [`Fs::replace_content`](crate::Fs::replace_content) | makes a value the whole content of a file |
//! | [`Fs::concat`](crate::Fs::concat) | makes whole files the content of a file; of one file: `copy` |
//! | [`Fs::fallocate`](crate::Fs::fallocate) with `PunchHole` | makes a hole: `punch` |
//! | [`Fs::read_yanked_slice`](crate::Fs::read_yanked_slice) | reads the bytes of a value |
//! | [`Fs::lease`](crate::Fs::lease) | limits how long a value keeps its bytes |
//!
//! Each call takes any range of bytes and is one commit. None reads or writes data, with one exception: short
//! bytes. A piece of up to 32 KiB is inline in metadata until the engine writes a table, and a piece of up to
//! 64 bytes is inline for ever. A value has copies of inline bytes, and they go into the commit that uses it.
//!
//! # Limits and errors
//! - A range past the end of the file is as long as the file lets it be, as with reading; at or past the end
//!   it is empty.
//! - `ForeignSlice`: the value is of another pool. `LeaseExpired`: its lease has ended.
//! - `FileTooLarge`: the file would end beyond 2^63 - 1, or the call touches more than 2^18 regions (256
//!   GiB). Inserting and removing touch all regions from the offset on.
//! - `NoSpace`: a full pool refuses calls that add pointers. Removing and punching go on.
//! - `ReadOnly`: the pool has latched.
//! - A file may be a source of its own `concat`, and a value may be pasted over the range that it came from.
//!   The value is the content at the time when it was taken.
//!
//! A call that fails has changed nothing.

mod compare;
mod edit;
mod whole;
mod yank;
mod yanked_slice;

pub use edit::InsertSource;
pub use yanked_slice::{YankLimit, YankedSlice};
