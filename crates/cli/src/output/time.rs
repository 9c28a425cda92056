//! Moments as text: `2026-11-21 08:29:31`, in the local zone or in UTC, as all commands print and read them.

use std::sync::OnceLock;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use warpfire::Timestamp;

/// The zone of moments for people.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Decides that moments for people are in UTC, and not in the local zone. It must be the first call of this
/// module that needs a zone.
pub fn use_utc() {
    let _ = ZONE.set(TimeZone::UTC);
}

/// The zone of moments for people: what TZ or /etc/localtime names, and UTC if both say nothing.
fn zone() -> &'static TimeZone {
    ZONE.get_or_init(TimeZone::system)
}

/// A moment on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MomentArgument {
    /// A moment.
    At(Timestamp),
    /// A date and a time of day in the zone of this process.
    Civil(DateTime),
}

impl MomentArgument {
    /// The moment.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.within(zone())
    }

    fn within(self, zone: &TimeZone) -> Timestamp {
        match self {
            MomentArgument::At(at) => at,
            // A date at the very end of the calendar has no moment in some zones.
            MomentArgument::Civil(civil) => civil
                .to_zoned(zone.clone())
                .map_or(Timestamp { seconds: i64::MAX, nanos: 0 }, |zoned| timestamp_of(zoned.timestamp())),
        }
    }
}

/// The moment to the second. A moment outside the years -9999 to 9999 is printed as `@` and seconds since
/// 1970.
#[must_use]
pub fn moment(at: Timestamp) -> String {
    shown_in(zone(), at, "%Y-%m-%d %H:%M:%S")
}

/// The moment to the nanosecond, with the offset from UTC.
#[must_use]
pub fn exact_moment(at: Timestamp) -> String {
    shown_in(zone(), at, &format!("%Y-%m-%d %H:%M:%S.{:09} %:z", at.nanos))
}

/// The minute of the day, from 0 to 1439.
#[must_use]
pub fn minute_of_day(at: Timestamp) -> u16 {
    let minute = |second: jiff::Timestamp| {
        let time = second.to_zoned(zone().clone()).time();
        u16::try_from(i32::from(time.hour()) * 60 + i32::from(time.minute())).expect("a day has 1440 minutes")
    };
    jiff::Timestamp::from_second(at.seconds).map_or(0, minute)
}

fn shown_in(zone: &TimeZone, at: Timestamp, form: &str) -> String {
    match jiff::Timestamp::from_second(at.seconds) {
        Ok(second) => second.to_zoned(zone.clone()).strftime(form).to_string(),
        Err(_) => format!("@{}", at.seconds),
    }
}

/// The moment by RFC 3339, in UTC with nanoseconds. RFC 3339 has the years 0 to 9999; a moment outside of
/// them is `@` and seconds since 1970.
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    const YEAR_0: i64 = -62_167_219_200;
    match jiff::Timestamp::from_second(at.seconds) {
        Ok(second) if at.seconds >= YEAR_0 => {
            format!("{}.{:09}Z", second.strftime("%Y-%m-%dT%H:%M:%S"), at.nanos)
        }
        _ => format!("@{}", at.seconds),
    }
}

/// A moment from the command line: RFC 3339 (`2026-11-21T08:29:31+01:00`), a date with or without a time of
/// day, or `@` and seconds since 1970.
///
/// # Errors
/// The text is nothing of these.
pub fn parse_moment(text: &str) -> Result<MomentArgument, String> {
    if let Some(seconds) = text.strip_prefix('@').and_then(|digits| digits.parse().ok()) {
        return Ok(MomentArgument::At(Timestamp { seconds, nanos: 0 }));
    }
    if let Ok(exact) = text.parse::<jiff::Timestamp>() {
        return Ok(MomentArgument::At(timestamp_of(exact)));
    }
    text.parse().map(MomentArgument::Civil).map_err(|_| {
        format!("'{text}' is not a moment; write for example 2026-11-21T08:29:31Z, 2026-11-21 or @1795163371")
    })
}

/// The moment in a name `@MOMENT` of a directory of snapshots: `@2026-11-21T08:29` and the like, or `@` and
/// seconds since 1970.
#[must_use]
pub fn moment_of_name(name: &str) -> Option<Timestamp> {
    let rest = name.strip_prefix('@')?;
    parse_moment(name).or_else(|_| parse_moment(rest)).ok().map(MomentArgument::timestamp)
}

fn timestamp_of(at: jiff::Timestamp) -> Timestamp {
    let (seconds, nanos) = (at.as_second(), at.subsec_nanosecond());
    // Before 1970 both count down from zero; a timestamp of a file counts its nanoseconds up.
    let seconds = if nanos < 0 { seconds - 1 } else { seconds };
    let nanos = u32::try_from(nanos.rem_euclid(1_000_000_000)).expect("less than a second");
    Timestamp { seconds, nanos }
}

/// A moment from the command line, as [`parse_moment`], or an age: `90s`, `15m`, `12h`, `7d` or `2w` before
/// `now`.
///
/// # Errors
/// The text is neither.
pub fn age_or_moment(text: &str, now: Timestamp) -> Result<MomentArgument, String> {
    const UNITS: [(char, i64); 5] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 604_800)];
    let age = UNITS.iter().find_map(|&(letter, seconds)| {
        let count: i64 = text.strip_suffix(letter)?.parse().ok().filter(|&count| count >= 0)?;
        count.checked_mul(seconds)
    });
    match age {
        Some(age) => Ok(MomentArgument::At(Timestamp { seconds: now.seconds.saturating_sub(age), ..now })),
        None => {
            parse_moment(text).map_err(|wrong| format!("{wrong}, or an age such as 90s, 15m, 12h, 7d, 2w"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_and_after_1970_have_their_calendar_date() {
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (1_795_163_371, "2026-11-20 08:29:31"),
            (i64::MAX, "@9223372036854775807"),
        ];
        for (seconds, text) in cases {
            let shown = shown_in(&TimeZone::UTC, Timestamp { seconds, nanos: 0 }, "%Y-%m-%d %H:%M:%S");
            assert_eq!(shown, text);
        }
    }

    #[test]
    fn moments_for_programs_have_nanoseconds_and_are_read_back() {
        let cases = [
            ((1_795_163_371, 7), "2026-11-20T08:29:31.000000007Z"),
            ((-1, 750_000_000), "1969-12-31T23:59:59.750000000Z"),
            ((253_402_207_200, 999_999_999), "9999-12-30T22:00:00.999999999Z"),
            ((-62_167_219_200, 0), "0000-01-01T00:00:00.000000000Z"),
        ];
        for ((seconds, nanos), text) in cases {
            let at = Timestamp { seconds, nanos };
            assert_eq!(rfc3339(at), text);
            assert_eq!(parse_moment(text), Ok(MomentArgument::At(at)), "{text}");
        }
        for seconds in [-62_167_219_201, i64::MAX, i64::MIN] {
            assert_eq!(rfc3339(Timestamp { seconds, nanos: 0 }), format!("@{seconds}"));
        }
    }

    #[test]
    fn moments_are_read_as_they_are_written() {
        let cases = [
            ("2026-11-20T08:29:31Z", (1_795_163_371, 0)),
            ("2026-11-20T09:29:31.25+01:00", (1_795_163_371, 250_000_000)),
            ("2026-11-20 08:29:31", (1_795_163_371, 0)),
            ("1970-01-02", (86_400, 0)),
            ("1969-12-31T23:59:59.75Z", (-1, 750_000_000)),
            ("@-5", (-5, 0)),
        ];
        for (text, (seconds, nanos)) in cases {
            let found = parse_moment(text).map(|found| found.within(&TimeZone::UTC));
            assert_eq!(found, Ok(Timestamp { seconds, nanos }), "{text}");
        }
        for text in ["", "tomorrow", "2026-13-01", "@x", "5d"] {
            let wrong = parse_moment(text).expect_err(text);
            assert!(wrong.contains("write for example"), "{wrong}");
        }
    }

    #[test]
    fn a_zone_shifts_what_people_see_and_write() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let at = Timestamp { seconds: 1_795_163_371, nanos: 0 };
        assert_eq!(shown_in(&zone, at, "%Y-%m-%d %H:%M:%S %:z"), "2026-11-20 09:29:31 +01:00");
        let read = |text: &str| parse_moment(text).map(|found| found.within(&zone));
        assert_eq!(read("2026-11-20 09:29:31"), Ok(at));
        assert_eq!(read("2026-11-20T08:29:31Z"), Ok(at), "an offset decides by itself");
    }

    #[test]
    fn an_age_counts_back_from_now() {
        let now = Timestamp { seconds: 1_000_000, nanos: 7 };
        let ago = |text| age_or_moment(text, now).map(|at| at.within(&TimeZone::UTC).seconds);
        assert_eq!(ago("90s"), Ok(999_910));
        assert_eq!(ago("2w"), Ok(1_000_000 - 2 * 604_800));
        assert_eq!(ago("1970-01-01"), Ok(0));
        for text in ["-1d", "d", "1y", "99999999999999999d"] {
            ago(text).expect_err(text);
        }
    }
}
