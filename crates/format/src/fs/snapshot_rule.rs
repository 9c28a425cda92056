//! The record of a rule: when snapshots are made, and how long they stay.
//!
//! ```text
//!  0   1  tag, 7
//!  1   *  seconds from one snapshot to the next, not 0 (varint)
//!  *   *  the number of quarters of an hour, hours, days, weeks, months and years of each of which one
//!         snapshot stays (6 varints below 2^32); all 0 if all stay
//!  *   *  seconds after which a snapshot goes; 0 for never (varint)
//!  *   *  thousandths of the pool that are to be free, below 1000; 0 for no such wish (varint)
//!  *   1  1 if a snapshot is made only after a change, else 0
//!  *   *  the newest time that deletions believed, in seconds since 1970 (zigzag varint)
//!  *   1  1 if a later time is doubted, else 0
//!  *   *  of a doubted time: when the clock first showed one, in seconds since 1970 (zigzag varint)
//! ```

use super::{BAD_CONTENT, BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

/// Kinds of periods of which a rule keeps one snapshot each.
pub const RULE_PERIODS: usize = 6;

/// A rule by which snapshots are made and deleted. Its key has the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotRuleRecord {
    /// Seconds from one snapshot to the next, not 0.
    pub every_seconds: u64,
    /// Of how many quarters of an hour, hours, days, weeks, months and years one snapshot stays.
    pub keep: [u32; RULE_PERIODS],
    /// Seconds after which a snapshot goes; 0 for never.
    pub expire_seconds: u64,
    /// Thousandths of the pool that are to be free, below 1000.
    pub free_permille: u16,
    /// Whether a snapshot is made only after a change.
    pub is_only_after_change: bool,
    /// The newest time that deletions believed, in seconds since 1970.
    pub believed_seconds: i64,
    /// When the clock first showed a time that is not believed yet.
    pub doubted_seconds: Option<i64>,
}

impl SnapshotRuleRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.every_seconds > 0 && self.free_permille < 1000, "a rule");
        out.push(7);
        varint::put(out, self.every_seconds);
        self.keep.iter().for_each(|count| varint::put(out, u64::from(*count)));
        varint::put(out, self.expire_seconds);
        varint::put(out, u64::from(self.free_permille));
        out.push(u8::from(self.is_only_after_change));
        varint::put_signed(out, self.believed_seconds);
        out.push(u8::from(self.doubted_seconds.is_some()));
        if let Some(seconds) = self.doubted_seconds {
            varint::put_signed(out, seconds);
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403 and 414.
    pub fn decode(bytes: &[u8]) -> Result<SnapshotRuleRecord, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 7 {
            return Err(BAD_TAG);
        }
        let every_seconds = Some(reader.varint()?).filter(|every| *every > 0).ok_or(BAD_CONTENT)?;
        let mut keep = [0; RULE_PERIODS];
        for count in &mut keep {
            *count = reader.varint32()?;
        }
        let expire_seconds = reader.varint()?;
        let free = u16::try_from(reader.varint()?).ok().filter(|permille| *permille < 1000);
        let free_permille = free.ok_or(BAD_CONTENT)?;
        let is_only_after_change = flag(reader.u8()?)?;
        let believed_seconds = reader.signed()?;
        let doubted_seconds = if flag(reader.u8()?)? { Some(reader.signed()?) } else { None };
        reader.end()?;
        Ok(SnapshotRuleRecord {
            every_seconds,
            keep,
            expire_seconds,
            free_permille,
            is_only_after_change,
            believed_seconds,
            doubted_seconds,
        })
    }
}

fn flag(byte: u8) -> Result<bool, Corrupt> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BAD_CONTENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let rule = SnapshotRuleRecord {
            every_seconds: 900,
            keep: [8, 24, 30, 0, 12, 5],
            expire_seconds: 300,
            free_permille: 100,
            is_only_after_change: true,
            believed_seconds: 5,
            doubted_seconds: Some(-1),
        };
        let mut out = Vec::new();
        rule.encode(&mut out);
        assert_eq!(out, [7, 0x84, 7, 8, 24, 30, 0, 12, 5, 0xac, 2, 100, 1, 10, 1, 1]);
        assert_eq!(SnapshotRuleRecord::decode(&out), Ok(rule));
    }

    #[test]
    fn impossible_records_are_refused() {
        for bytes in [
            &[][..],
            &[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[7, 1, 0, 0, 0, 0, 0, 0, 0, 0xe8, 7, 0, 0, 0],
            &[7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0],
            &[7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            &[7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(SnapshotRuleRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(7).chain(bytes).collect();
            if let Ok(rule) = SnapshotRuleRecord::decode(&bytes) {
                let mut out = Vec::new();
                rule.encode(&mut out);
                prop_assert_eq!(out, bytes);
            }
        }
    }
}
