//! Faults of a simulated device.

use warpfire_units::BLOCK_BYTES;

use crate::random::SimRandom;

/// Kinds of operation that a fault can wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpClass {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards, and resets of zones.
    Discard,
    /// Reports of zones.
    Report,
}

/// One fault. `after` counts the operations of the fault's kind that still go well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An operation returns an I/O error and does nothing: one, or every one from then on.
    Fail {
        /// The kind of operation.
        op: OpClass,
        /// Operations that go well first.
        after: u64,
        /// Whether all later ones fail too.
        lasting: bool,
    },
    /// A write that does not fit is refused for lack of space.
    Full {
        /// Bytes that still fit.
        after_bytes: u64,
    },
    /// Every operation takes this much simulated time.
    Slow {
        /// Nanoseconds by which the clock advances.
        nanos: u64,
    },
    /// The device answers nothing for some simulated time. An operation with a time limit that ends before is
    /// late: it takes place when the time is over, or when the device is healed.
    Hang {
        /// The kind of operation; `None`: all.
        op: Option<OpClass>,
        /// Operations of the kind that go well first.
        after: u64,
        /// Nanoseconds until the device answers.
        nanos: u64,
    },
    /// The device is gone, after `after` more operations of any kind.
    Vanish {
        /// Operations that go well first.
        after: u64,
    },
    /// A write is acknowledged and never happens.
    LoseWrite {
        /// Writes that go well first.
        after: u64,
    },
    /// A write is acknowledged and lands elsewhere. A zoned device loses it instead: its pointer moves and
    /// the blocks read as zeros.
    MisdirectWrite {
        /// Writes that go well first.
        after: u64,
        /// Where the write lands, a multiple of 4096. The part past the device's end is lost.
        to_offset_bytes: u64,
    },
    /// Reads of a range fail, always. Writes there succeed and do not help.
    Unreadable {
        /// The first byte of the range.
        offset_bytes: u64,
        /// The length of the range.
        len_bytes: u64,
    },
    /// A range takes no more writes, discards or resets: a zone that a zoned device has made read-only or
    /// offline. The device says so in its report of the zone.
    DeadZone {
        /// The first byte of the range.
        offset_bytes: u64,
        /// The length of the range.
        len_bytes: u64,
        /// Whether it cannot be read either.
        is_offline: bool,
    },
    /// A bit of the first block that a read asks for flips, for good, before the read.
    Rot {
        /// Reads that go well first.
        after: u64,
        /// The bit's number in the block, below 32,768.
        bit: usize,
    },
    /// A read returns the bytes before the last write.
    StaleRead {
        /// Reads that go well first.
        after: u64,
    },
}

/// Exponent of the longest hang that `Fault::draw` draws: 2^35 ms, a year.
const HANG_MILLIS_LOG2_MAX: u64 = 35;

const NANOS_PER_MILLI: u64 = 1_000_000;

impl Fault {
    /// A fault that `random` draws, to strike within the next `ops_max` operations of a device of
    /// `size_bytes`.
    #[must_use]
    pub fn draw(random: &SimRandom, size_bytes: u64, ops_max: u64) -> Fault {
        let after = random.below(ops_max.max(1));
        match random.below(10) {
            0 => Fault::Fail { op: OpClass::Read, after, lasting: random.one_in(2) },
            1 => Fault::Fail { op: OpClass::Write, after, lasting: random.one_in(2) },
            2 => Fault::Fail { op: OpClass::Flush, after, lasting: random.one_in(2) },
            3 => Fault::Full { after_bytes: random.below(size_bytes) },
            4 => Fault::Slow { nanos: random.below(100_000_000) },
            5 => Fault::Vanish { after },
            6 => Fault::LoseWrite { after },
            7 => {
                let block = random.below(size_bytes / BLOCK_BYTES as u64);
                Fault::MisdirectWrite { after, to_offset_bytes: block * BLOCK_BYTES as u64 }
            }
            8 => {
                let ops = [OpClass::Read, OpClass::Write, OpClass::Flush, OpClass::Discard];
                let op = ops.get(usize::try_from(random.below(5)).expect("below 5")).copied();
                Fault::Hang { op, after, nanos: Fault::draw_hang_nanos(random) }
            }
            _ => Fault::StaleRead { after },
        }
    }

    /// The length of a hang that `random` draws: every order of magnitude from a millisecond, less than any
    /// time limit, to a year, which is never.
    #[must_use]
    pub fn draw_hang_nanos(random: &SimRandom) -> u64 {
        NANOS_PER_MILLI << random.below(HANG_MILLIS_LOG2_MAX + 1)
    }
}

/// The fate of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Proceed,
    Fail,
    NoSpace,
    Gone,
    Lose,
    Misdirect(u64),
    Stale,
    /// The bit of the first block flips, and then the read goes on.
    Rot(usize),
}

/// The faults that wait on one device.
///
/// # Invariants
/// 1. A fault that strikes once leaves the list when it strikes.
/// 2. A device that is gone stays gone until the list is cleared.
#[derive(Clone, Default, Debug)]
pub(crate) struct Faults {
    waiting: Vec<Fault>,
    /// Hangs that have begun: the kind of operation, and the time at which the device answers.
    hanging: Vec<(Option<OpClass>, u64)>,
    gone: bool,
}

/// Counts one operation off `after`. `true` if the fault strikes now.
fn strikes(after: &mut u64) -> bool {
    let now = *after == 0;
    *after = after.saturating_sub(1);
    now
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    pub fn clear(&mut self) {
        *self = Faults::default();
    }

    /// Simulated time that the next operation takes.
    pub fn delay_nanos(&self) -> u64 {
        self.waiting.iter().map(|f| if let Fault::Slow { nanos } = f { *nanos } else { 0 }).sum()
    }

    /// The time at which the device answers an operation that begins at `now`, if it hangs.
    pub fn hangs_until(&mut self, class: OpClass, now_nanos: u64) -> Option<u64> {
        let is_meant = |op: &Option<OpClass>| op.is_none_or(|op| op == class);
        let hanging = &mut self.hanging;
        self.waiting.retain_mut(|fault| {
            let Fault::Hang { op, after, nanos } = fault else { return true };
            let begins = is_meant(op) && strikes(after);
            if begins {
                hanging.push((*op, now_nanos.saturating_add(*nanos)));
            }
            !begins
        });
        hanging.retain(|(_, until)| *until > now_nanos);
        hanging.iter().filter(|(op, _)| is_meant(op)).map(|(_, until)| *until).max()
    }

    /// Whether the byte lies in a dead zone.
    pub fn is_dead(&self, at: u64) -> bool {
        self.waiting.iter().any(|fault| match fault {
            Fault::DeadZone { offset_bytes, len_bytes, .. } => {
                (*offset_bytes..offset_bytes.saturating_add(*len_bytes)).contains(&at)
            }
            _ => false,
        })
    }

    /// Decides about an operation on a range.
    pub fn judge(&mut self, class: OpClass, offset_bytes: u64, len_bytes: u64) -> Verdict {
        let overlaps = |at: u64, len: u64| {
            offset_bytes < at.saturating_add(len) && at < offset_bytes.saturating_add(len_bytes)
        };
        let mut verdict = Verdict::Proceed;
        let mut gone = self.gone;
        self.waiting.retain_mut(|fault| {
            let (struck, keep) = match fault {
                Fault::Slow { .. } => return true,
                Fault::Vanish { after } => {
                    gone |= strikes(after);
                    return !gone;
                }
                Fault::Fail { op, after, lasting } if class == *op => {
                    (strikes(after).then_some(Verdict::Fail), *lasting)
                }
                Fault::Full { after_bytes } if class == OpClass::Write => {
                    let fits = len_bytes <= *after_bytes;
                    if fits {
                        *after_bytes -= len_bytes;
                    }
                    ((!fits).then_some(Verdict::NoSpace), true)
                }
                Fault::LoseWrite { after } if class == OpClass::Write => {
                    (strikes(after).then_some(Verdict::Lose), false)
                }
                Fault::MisdirectWrite { after, to_offset_bytes } if class == OpClass::Write => {
                    (strikes(after).then_some(Verdict::Misdirect(*to_offset_bytes)), false)
                }
                Fault::StaleRead { after } if class == OpClass::Read => {
                    (strikes(after).then_some(Verdict::Stale), false)
                }
                Fault::Rot { after, bit } if class == OpClass::Read => {
                    (strikes(after).then_some(Verdict::Rot(*bit)), false)
                }
                Fault::Unreadable { offset_bytes, len_bytes } if class == OpClass::Read => {
                    (overlaps(*offset_bytes, *len_bytes).then_some(Verdict::Fail), true)
                }
                Fault::DeadZone { offset_bytes, len_bytes, is_offline }
                    if matches!(class, OpClass::Write | OpClass::Discard)
                        || (*is_offline && class == OpClass::Read) =>
                {
                    (overlaps(*offset_bytes, *len_bytes).then_some(Verdict::Fail), true)
                }
                _ => return true,
            };
            match struck {
                Some(found) if verdict == Verdict::Proceed => {
                    verdict = found;
                    keep
                }
                // Two faults strike one operation: the first decides, and this one waits for the next
                // operation.
                Some(_) | None => true,
            }
        });
        self.gone = gone;
        if gone { Verdict::Gone } else { verdict }
    }
}
