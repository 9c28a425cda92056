//! Attributes and extended attributes of inodes: calls that read and change them, and the permission checks
//! of all calls.

mod access;
mod attr;
mod read;
mod set;
mod xattr;

pub use attr::{Attr, NewMode, SetAttr, SetTime};
pub(crate) use attr::{attr_of, mode_of};
pub(crate) use read::missing_record;
pub(crate) use set::CAPABILITY;
pub use xattr::XattrMode;
pub(crate) use xattr::encode as encode_xattr_value;
