//! The bytes of the ioctls that begin and end transactions.
//!
//! The caller makes them on the root directory of the mount. Each passes one block, which the answer
//! overwrites. Integers are in the byte order of the machine.
//!
//! ```text
//! offset  bytes  field     in              out
//!      0      4  version   1               1
//!      4      4  flags     see below       0
//!      8      8  id        BEGIN: 0        number of the transaction
//!     16      4  state     0               1 open, 2 ending, 3 committed, 4 conflict, 5 aborted,
//!                                          6 not durable
//!     20      4  uid       0               user that began it
//!     24      4  pid       0               process that it is bound to, 0 if none
//!     28      4  idle      0               seconds since the last request to the view
//!     32     32  call      0               conflict: name of the call, NUL-terminated
//!     64   4096  path      0               path of the view; conflict: path of the call; NUL-terminated
//!
//! ioctl    number                  flags
//! BEGIN    _IOWR('W', 0x40, 4160)  1: aborted when the calling process ends
//! COMMIT   _IOWR('W', 0x41, 4160)  1: durable on return; 2: chained
//! ABORT    _IOWR('W', 0x42, 4160)
//! STATUS   _IOWR('W', 0x43, 4160)
//! NEXT     _IOWR('W', 0x44, 4160)  STATUS of the first transaction with a greater id
//! ```
//!
//! COMMIT returns 0 also with state 4 (not committed) and state 6 (committed, but the pool could not make it
//! durable). A chained COMMIT also begins the next transaction in the same view. `id` of its answer is the
//! number of that one, or 0 if it could not begin; `path` is its path, unless there was a conflict. Errors:
//! - `EINVAL`: another version or unknown flags;
//! - `ENOENT`: this user has no such transaction;
//! - `EBUSY`: COMMIT, a file in the view is open; COMMIT and ABORT, another caller is ending it;
//! - `EAGAIN`: BEGIN, too many transactions are open;
//! - `EDQUOT`: BEGIN, too many transactions or views of this user are open;
//! - `EROFS`: BEGIN, the mount is read-only;
//! - other errors of the filesystem, such as `ENOSPC`: the transaction has been aborted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Version of this block.
const VERSION: u32 = 1;

/// Length of a block, in bytes.
pub(crate) const BLOCK_BYTES: usize = 64 + PATH_BYTES;
const CALL_BYTES: usize = 32;
const PATH_BYTES: usize = 4096;

/// The argument of a transaction ioctl.
pub(crate) type TransactionBlock = [u8; BLOCK_BYTES];

/// The number of the ioctl with this function: `_IOWR('W', function, BLOCK_BYTES)`.
const fn number(function: u32) -> u32 {
    const READ_WRITE: u32 = 3 << 30;
    READ_WRITE | (BLOCK_BYTES as u32) << 16 | (b'W' as u32) << 8 | function
}

pub(crate) const BEGIN: u32 = number(0x40);
pub(crate) const COMMIT: u32 = number(0x41);
pub(crate) const ABORT: u32 = number(0x42);
pub(crate) const STATUS: u32 = number(0x43);
pub(crate) const NEXT: u32 = number(0x44);

/// The only flag of BEGIN.
const PROCESS_BOUND: u32 = 1;

/// Flags of COMMIT.
const DURABLE: u32 = 1;
const CHAINED: u32 = 2;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransactionRequest {
    Begin { ends_with_process: bool },
    Commit { id: u64, durable: bool, chained: bool },
    Abort { id: u64 },
    Status { id: u64 },
    Next { after: u64 },
}

/// State of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionState {
    /// Its view is mounted.
    Open,
    /// It is being begun, committed or aborted.
    Ending,
    /// All its changes are visible.
    Committed,
    /// Nothing has changed: a call of the transaction would have another answer now.
    Conflict,
    /// Nothing has changed.
    Aborted,
    /// All its changes are visible, but the pool has failed: they are not durable and may be lost.
    NotDurable,
}

/// State and properties of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionReport {
    /// Its number, unique in this mount.
    pub id: u64,
    /// Its state.
    pub state: TransactionState,
    /// The user that began it.
    pub uid: u32,
    /// The process that it is bound to, if any: it is aborted when that process ends.
    pub pid: Option<u32>,
    /// Seconds since the last request to its view.
    pub idle_seconds: u32,
    /// After a conflict: the name of the call that would have another answer now.
    pub call: String,
    /// The path of its view; after a conflict, the path of the call.
    pub path: PathBuf,
}

const STATES: [TransactionState; 6] = [
    TransactionState::Open,
    TransactionState::Ending,
    TransactionState::Committed,
    TransactionState::Conflict,
    TransactionState::Aborted,
    TransactionState::NotDurable,
];

impl TransactionRequest {
    /// Whether the number is that of a transaction ioctl.
    pub(crate) fn is_known(command: u32) -> bool {
        [BEGIN, COMMIT, ABORT, STATUS, NEXT].contains(&command)
    }

    /// Decodes a request; `None` if it is malformed.
    pub(crate) fn decode(command: u32, given: &[u8]) -> Option<TransactionRequest> {
        let (version, rest) = given.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (id, _) = rest.split_first_chunk()?;
        let version = u32::from_ne_bytes(*version);
        let flags = u32::from_ne_bytes(*flags);
        let id = u64::from_ne_bytes(*id);
        if given.len() != BLOCK_BYTES || version != VERSION {
            return None;
        }
        match (command, flags) {
            (BEGIN, 0 | PROCESS_BOUND) => {
                Some(TransactionRequest::Begin { ends_with_process: flags == PROCESS_BOUND })
            }
            (COMMIT, flags) if flags & !(DURABLE | CHAINED) == 0 => Some(TransactionRequest::Commit {
                id,
                durable: flags & DURABLE != 0,
                chained: flags & CHAINED != 0,
            }),
            (ABORT, 0) => Some(TransactionRequest::Abort { id }),
            (STATUS, 0) => Some(TransactionRequest::Status { id }),
            (NEXT, 0) => Some(TransactionRequest::Next { after: id }),
            _ => None,
        }
    }

    /// The ioctl's number and block.
    pub(crate) fn encode(self) -> (u32, TransactionBlock) {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let (command, flags, id) = match self {
            TransactionRequest::Begin { ends_with_process } => {
                (BEGIN, flag(ends_with_process, PROCESS_BOUND), 0)
            }
            TransactionRequest::Commit { id, durable, chained } => {
                (COMMIT, flag(durable, DURABLE) | flag(chained, CHAINED), id)
            }
            TransactionRequest::Abort { id } => (ABORT, 0, id),
            TransactionRequest::Status { id } => (STATUS, 0, id),
            TransactionRequest::Next { after } => (NEXT, 0, after),
        };
        let mut block = [0; BLOCK_BYTES];
        block[..4].copy_from_slice(&VERSION.to_ne_bytes());
        block[4..8].copy_from_slice(&flags.to_ne_bytes());
        block[8..16].copy_from_slice(&id.to_ne_bytes());
        (command, block)
    }
}

impl TransactionReport {
    /// Encodes the answer. Texts that are too long are truncated.
    pub(crate) fn encode(&self) -> TransactionBlock {
        let state = STATES.iter().position(|state| *state == self.state).expect("STATES has all states");
        let mut block = [0; BLOCK_BYTES];
        block[..4].copy_from_slice(&VERSION.to_ne_bytes());
        block[8..16].copy_from_slice(&self.id.to_ne_bytes());
        block[16..20].copy_from_slice(&(state as u32 + 1).to_ne_bytes());
        block[20..24].copy_from_slice(&self.uid.to_ne_bytes());
        block[24..28].copy_from_slice(&self.pid.unwrap_or(0).to_ne_bytes());
        block[28..32].copy_from_slice(&self.idle_seconds.to_ne_bytes());
        let (call, path) = block[32..].split_at_mut(CALL_BYTES);
        put_text(call, self.call.as_bytes());
        put_text(path, self.path.as_os_str().as_bytes());
        block
    }

    /// Decodes an answer; `None` if it is malformed.
    pub(crate) fn decode(block: &TransactionBlock) -> Option<TransactionReport> {
        let (version, rest) = block.split_first_chunk()?;
        let (_flags, rest) = rest.split_first_chunk::<4>()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (state, rest) = rest.split_first_chunk()?;
        let (uid, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (idle, rest) = rest.split_first_chunk()?;
        let (call, path) = rest.split_at_checked(CALL_BYTES)?;
        if u32::from_ne_bytes(*version) != VERSION {
            return None;
        }
        let state = usize::try_from(u32::from_ne_bytes(*state).checked_sub(1)?).ok()?;
        Some(TransactionReport {
            id: u64::from_ne_bytes(*id),
            state: *STATES.get(state)?,
            uid: u32::from_ne_bytes(*uid),
            pid: Some(u32::from_ne_bytes(*pid)).filter(|pid| *pid != 0),
            idle_seconds: u32::from_ne_bytes(*idle),
            call: String::from_utf8_lossy(text(call)).into_owned(),
            path: Path::new(OsStr::from_bytes(text(path))).to_owned(),
        })
    }
}

/// Copies a text, truncated so that at least one NUL follows it.
fn put_text(into: &mut [u8], text: &[u8]) {
    let len = text.len().min(into.len() - 1);
    into[..len].copy_from_slice(&text[..len]);
}

/// A text up to its NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_c_macros() {
        assert_eq!(BEGIN, 0xd040_5740);
        assert_eq!(NEXT, 0xd040_5744);
    }

    #[test]
    fn requests_come_back_as_they_were_sent() {
        for request in [
            TransactionRequest::Begin { ends_with_process: true },
            TransactionRequest::Begin { ends_with_process: false },
            TransactionRequest::Commit { id: 7, durable: true, chained: false },
            TransactionRequest::Commit { id: 7, durable: false, chained: true },
            TransactionRequest::Commit { id: 7, durable: true, chained: true },
            TransactionRequest::Abort { id: u64::MAX },
            TransactionRequest::Status { id: 1 },
            TransactionRequest::Next { after: 0 },
        ] {
            let (command, block) = request.encode();
            assert_eq!(TransactionRequest::decode(command, &block), Some(request));
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let (command, mut block) = TransactionRequest::Abort { id: 7 }.encode();
        assert_eq!(TransactionRequest::decode(command, &block[1..]), None);
        block[4] = 1;
        assert_eq!(TransactionRequest::decode(command, &block), None, "ABORT has no flags");
        let (commit, mut flagged) =
            TransactionRequest::Commit { id: 7, durable: true, chained: true }.encode();
        flagged[4] = 4;
        assert_eq!(TransactionRequest::decode(commit, &flagged), None, "COMMIT has two flags");
        block[4] = 0;
        block[0] = 2;
        assert_eq!(TransactionRequest::decode(command, &block), None, "another version");
        assert_eq!(TransactionRequest::decode(0x5401, &[]), None);
    }

    #[test]
    fn a_report_comes_back_as_it_was_sent() {
        let report = TransactionReport {
            id: 9,
            state: TransactionState::Conflict,
            uid: 1000,
            pid: Some(4711),
            idle_seconds: 12,
            call: "look up".to_owned(),
            path: PathBuf::from("/a/b"),
        };
        assert_eq!(TransactionReport::decode(&report.encode()), Some(report));
        assert_eq!(TransactionReport::decode(&[0; BLOCK_BYTES]), None);
    }

    #[test]
    fn a_text_that_is_too_long_is_truncated_and_keeps_its_nul() {
        let report = TransactionReport {
            id: 1,
            state: TransactionState::Open,
            uid: 0,
            pid: None,
            idle_seconds: 0,
            call: "c".repeat(100),
            path: PathBuf::from("p".repeat(5000)),
        };
        let back = TransactionReport::decode(&report.encode()).unwrap();
        assert_eq!((back.call.len(), back.path.as_os_str().len()), (CALL_BYTES - 1, PATH_BYTES - 1));
    }
}
