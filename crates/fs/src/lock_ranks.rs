//! The order of this room's locks; debug builds check it. The engine's key locks (`rank::KEYS`) come between
//! the children of directories and the states of inodes.
//!
//! The same locks inside a transaction are uncontended, because its gate lets in one call at a time. So they
//! have no place in the order, and a call there may enter the base's gate under them. `call_gate` has the
//! order of the gates.

use warpfire_env::rank::{FS, KEYS, LEAF};

/// The base's gate.
pub(crate) const BASE_GATE: u16 = FS;
/// Moves of a directory to another parent.
pub(crate) const RENAME: u16 = FS + 10;
/// The children of directories: a group, in the order of inode numbers.
pub(crate) const CHILDREN: u16 = FS + 20;
/// The states of inodes: a group, in the order of inode numbers.
pub(crate) const STATE: u16 = KEYS + 10;
/// Inode numbers that the base has reserved. A commit reserves more of them under this lock.
pub(crate) const NUMBERS: u16 = KEYS + 20;
/// Directories with pending times.
pub(crate) const WAITING: u16 = LEAF;
/// Directories of the last sync point.
pub(crate) const EMITTED: u16 = LEAF + 10;
/// The pending times of a directory.
pub(crate) const PENDING_TIMES: u16 = LEAF + 20;
/// A shard of the inode cache.
pub(crate) const INODE_CACHE: u16 = LEAF + 30;
/// Orphans without a holder.
pub(crate) const ORPHANS: u16 = LEAF + 40;

#[cfg(all(test, debug_assertions))]
mod tests {
    use crate::acl::Caller;
    use crate::tests::world;
    use crate::{NewMode, NodeRef};

    /// Whether a thread panics in `run`, which gets two directories by rising inode number.
    fn refuses(run: impl FnOnce(&NodeRef, &NodeRef) + Send + 'static) -> bool {
        let thread = warpfire_env::sync::thread::spawn(move || {
            let fs = world();
            let node = |name: &[u8]| {
                fs.mkdir(&Caller::ROOT, &fs.root(), name, NewMode::exact(0o755)).expect("the pool is new")
            };
            run(&node(b"a"), &node(b"b"));
        });
        thread.join().is_err()
    }

    #[test]
    fn a_wrong_order_of_locks_is_refused() {
        assert!(
            refuses(|a, b| {
                let _state = a.state.read();
                drop(b.children.read());
            }),
            "children after a state"
        );
        assert!(
            refuses(|a, b| {
                let _last = b.state.write();
                drop(a.state.read());
            }),
            "states by falling inode number"
        );
        assert!(
            refuses(|a, b| {
                let _last = b.children.write();
                drop(a.children.read());
            }),
            "children by falling inode number"
        );
    }

    #[test]
    fn the_declared_order_is_taken() {
        let refused = refuses(|a, b| {
            let _children = (a.children.read(), b.children.write());
            let _states = (a.state.write(), b.state.read());
            drop(a.pending_times.lock());
            assert!(a.ino() < b.ino(), "numbers rise");
        });
        assert!(!refused, "children, then states, then leaf locks");
    }
}
