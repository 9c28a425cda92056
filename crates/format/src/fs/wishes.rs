//! The wishes record: how the pool is to be looked after, and how far the scrub by schedule is.
//!
//! ```text
//!  0   1  tag, 6
//!  1   1  1 if upkeep is paused, else 0
//!  2   *  bytes that upkeep reads and writes in a second, at most; 0 if it chooses by itself (varint)
//!  *   1  1 if there is a schedule of scrubs, else 0
//!  *   *  of a schedule: seconds from the beginning of one scrub to the next, not 0; minutes of the day at
//!         which the window opens and closes, each below 1440, equal if it is always open; bytes to read in a
//!         second, at most, 0 without a limit (varints)
//!  *   1  scrub by schedule: 0 none so far, 1 running, 2 ended
//!  *   *  of a scrub: its beginning in seconds since 1970 (zigzag varint); id of the last segment that it
//!         has verified, 0 for none; segments that it has verified; damaged ones among them (varints)
//! ```

use super::{BAD_CONTENT, BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

/// Minutes of a day.
pub const DAY_MINUTES: u16 = 1440;

/// How the pool is to be looked after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WishesRecord {
    /// Whether upkeep is paused.
    pub is_paused: bool,
    /// Most bytes that upkeep reads and writes in a second; 0 if it chooses by itself.
    pub rate_bytes: u64,
    /// When to scrub.
    pub schedule: Option<ScrubSchedule>,
    /// The last scrub by schedule.
    pub round: Option<ScrubRound>,
}

/// When to scrub, and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubSchedule {
    /// Seconds from the beginning of one scrub to the next. Not 0.
    pub every_seconds: u64,
    /// Minutes of the day at which the window opens and closes. It is always open if they are equal.
    pub window: (u16, u16),
    /// Most bytes to read in a second; 0 without a limit.
    pub rate_bytes: u64,
}

/// How far a scrub by schedule is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubRound {
    /// Its beginning, in seconds since 1970.
    pub began_seconds: i64,
    /// The last segment that it has verified; 0 before the first.
    pub cursor: u64,
    /// Segments that it has verified.
    pub segments: u64,
    /// Damaged segments among them.
    pub damaged_segments: u64,
    /// Whether it has verified all.
    pub has_ended: bool,
}

impl WishesRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend([6, u8::from(self.is_paused)]);
        varint::put(out, self.rate_bytes);
        out.push(u8::from(self.schedule.is_some()));
        if let Some(schedule) = &self.schedule {
            let (opens, closes) = schedule.window;
            debug_assert!(schedule.every_seconds > 0 && opens.max(closes) < DAY_MINUTES, "a schedule");
            for number in [schedule.every_seconds, opens.into(), closes.into(), schedule.rate_bytes] {
                varint::put(out, number);
            }
        }
        out.push(self.round.map_or(0, |round| 1 + u8::from(round.has_ended)));
        if let Some(round) = &self.round {
            varint::put_signed(out, round.began_seconds);
            for number in [round.cursor, round.segments, round.damaged_segments] {
                varint::put(out, number);
            }
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403 and 414.
    pub fn decode(bytes: &[u8]) -> Result<WishesRecord, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 6 {
            return Err(BAD_TAG);
        }
        let is_paused = flag(reader.u8()?)?;
        let rate_bytes = reader.varint()?;
        let schedule = match flag(reader.u8()?)? {
            false => None,
            true => Some(ScrubSchedule {
                every_seconds: Some(reader.varint()?).filter(|every| *every > 0).ok_or(BAD_CONTENT)?,
                window: (minute(reader.varint()?)?, minute(reader.varint()?)?),
                rate_bytes: reader.varint()?,
            }),
        };
        let round = match reader.u8()? {
            0 => None,
            state @ 1..=2 => Some(ScrubRound {
                began_seconds: reader.signed()?,
                cursor: reader.varint()?,
                segments: reader.varint()?,
                damaged_segments: reader.varint()?,
                has_ended: state == 2,
            }),
            _ => return Err(BAD_CONTENT),
        };
        reader.end()?;
        Ok(WishesRecord { is_paused, rate_bytes, schedule, round })
    }
}

fn flag(byte: u8) -> Result<bool, Corrupt> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BAD_CONTENT),
    }
}

fn minute(number: u64) -> Result<u16, Corrupt> {
    u16::try_from(number).ok().filter(|minute| *minute < DAY_MINUTES).ok_or(BAD_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let record = WishesRecord {
            is_paused: true,
            rate_bytes: 300,
            schedule: Some(ScrubSchedule { every_seconds: 7, window: (60, 130), rate_bytes: 9 }),
            round: Some(ScrubRound {
                began_seconds: 5,
                cursor: 4,
                segments: 3,
                damaged_segments: 1,
                has_ended: true,
            }),
        };
        let mut out = Vec::new();
        record.encode(&mut out);
        assert_eq!(out, [6, 1, 0xac, 2, 1, 7, 60, 0x82, 1, 9, 2, 10, 4, 3, 1]);
        assert_eq!(WishesRecord::decode(&out), Ok(record));
        let mut none = Vec::new();
        WishesRecord::default().encode(&mut none);
        assert_eq!(none, [6, 0, 0, 0, 0]);
    }

    #[test]
    fn impossible_records_are_refused() {
        for bytes in [
            &[][..],
            &[3, 0, 0, 0, 0],
            &[6, 2, 0, 0, 0],
            &[6, 0, 0, 2, 0],
            &[6, 0, 0, 0, 3],
            &[6, 0, 0, 0, 0, 0],
            &[6, 0, 0, 1, 0, 0, 0, 0, 0],
            &[6, 0, 0, 1, 1, 0xa0, 0x0b, 0, 0, 0],
        ] {
            assert!(WishesRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let tagged = [&[6], &bytes[..]].concat();
            if let Ok(record) = WishesRecord::decode(&tagged) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(&out, &tagged);
            }
        }
    }
}
