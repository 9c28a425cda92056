//! Slices as values: bytes of files, taken as pointers and put elsewhere as pointers.
//!
//! | call | meaning |
//! |---|---|
//! | [`Fs::yank`](crate::Fs::yank) | takes a range as a value, [`YankedSlice`] |
//! | [`Fs::paste`](crate::Fs::paste) | writes a value at an offset, or at the end: `append` |
//! | [`Fs::insert_range`](crate::Fs::insert_range) | makes room for a value or a hole: what follows moves up |
//! | [`Fs::remove_range`](crate::Fs::remove_range) | takes a range out: what follows moves down |
//! | [`Fs::replace_content`](crate::Fs::replace_content) | makes a file hold a value and nothing else |
//! | [`Fs::concat`](crate::Fs::concat) | makes a file of whole files; of one: `copy` |
//! | [`Fs::fallocate`](crate::Fs::fallocate) with `PunchHole` | makes a hole: `punch` |
//! | [`Fs::read_yanked_slice`](crate::Fs::read_yanked) | the bytes of a value |
//! | [`Fs::lease`](crate::Fs::lease) | bounds how long a value keeps its bytes |
//!
//! All take any range of bytes, and each is one commit. None reads or writes data, but for short bytes: what was written in pieces of up
//! to 32 KiB rides in metadata until a table is written, and up to 64 B for ever; such bytes are carried in the value and go into the
//! commit with it.
//!
//! # What is refused, and what is not
//! - A range past the end gives what there is, as reading does; what lies at or past the end is nothing.
//! - A value of another pool: `ForeignSlice`. One whose lease has ended: `LeaseExpired`.
//! - What would end beyond 2^63 - 1, or touches more than 2^18 regions (256 GiB): `FileTooLarge`. Inserting and removing touch all that follow.
//! - A full pool: `NoSpace` for what adds pointers; removing and punching go on. A pool that latched: `ReadOnly`.
//! - A file may be a source of its own `concat`, and a value may be pasted over where it came from: it is what was there when it was taken.
//!
//! Whatever is refused has changed nothing.

mod calls;
mod compare;
mod yanked_slice;

pub use calls::InsertSource;
pub use yanked_slice::YankedSlice;
