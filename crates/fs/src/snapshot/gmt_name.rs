//! Names of snapshots as Samba's `shadow_copy2` reads them: `@GMT-2026.11.24-21.56.00`, the time in UTC.
//!
//! ```text
//!   @GMT-  year, 4 digits  .  month, 2  .  day, 2  -  hour, 2  .  minute, 2  .  second, 2
//! ```
//!
//! Windows asks for *previous versions* of files by such names.

use warpfire_env::Timestamp;

const BEGIN: &[u8] = b"@GMT-";

/// What stands in the name behind `BEGIN`: `0` for a digit.
const FORM: &[u8; 19] = b"0000.00.00-00.00.00";

const DAY_SECONDS: i64 = 86_400;

/// The days of 400 years: after so many the calendar repeats itself.
const ERA_DAYS: i64 = 146_097;

/// Days from the first of March of the year 0 to 1970.
const DAYS_TO_1970: i64 = 719_468;

/// The name of a snapshot that was made at this moment. `None` outside of the years 0 to 9999.
#[must_use]
pub fn gmt_name(at: Timestamp) -> Option<String> {
    let (days, second) = (at.seconds.div_euclid(DAY_SECONDS), at.seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (0..=9999)
        .contains(&year)
        .then(|| format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{second:02}"))
}

/// The second since 1970 in a name of this form; `None` for any other name.
#[must_use]
pub fn gmt_second(name: &[u8]) -> Option<i64> {
    let rest: &[u8; 19] = name.strip_prefix(BEGIN)?.try_into().ok()?;
    let fits = |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if !rest.iter().zip(FORM).all(fits) {
        return None;
    }
    let mut numbers = rest
        .split(|byte| !byte.is_ascii_digit())
        .map(|digits| digits.iter().fold(0, |number: i64, digit| number * 10 + i64::from(digit - b'0')));
    let [year, month, day, hour, minute, second] = std::array::from_fn(|_| numbers.next().unwrap_or(-1));
    let days = days_of(year, month, day);
    let is_date = (1..=12).contains(&month) && date_of(days) == (year, month, day);
    let is_time = hour < 24 && minute < 60 && second < 60;
    (is_date && is_time).then(|| days * DAY_SECONDS + hour * 3600 + minute * 60 + second)
}

/// Year, month and day of a day since 1970. A year begins in March here, so that a leap day is its last one:
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The day since 1970. The opposite of `date_of` for dates that exist.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * ERA_DAYS + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - DAYS_TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(seconds: i64) -> Option<String> {
        gmt_name(Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn a_name_tells_its_second() {
        for (seconds, text) in [
            (0, "@GMT-1970.01.01-00.00.00"),
            (-1, "@GMT-1969.12.31-23.59.59"),
            (951_782_400, "@GMT-2000.02.29-00.00.00"),
            (1_795_557_360, "@GMT-2026.11.24-21.56.00"),
            (253_402_300_799, "@GMT-9999.12.31-23.59.59"),
            (-62_167_219_200, "@GMT-0000.01.01-00.00.00"),
        ] {
            assert_eq!(name(seconds).as_deref(), Some(text));
            assert_eq!(gmt_second(text.as_bytes()), Some(seconds));
        }
        assert_eq!((name(253_402_300_800), name(-62_167_219_201), name(i64::MAX)), (None, None, None));
    }

    #[test]
    fn every_day_of_eight_hundred_years_goes_there_and_back() {
        let mut before = name(-12_000_000_000);
        for day in (-12_000_000_000_i64..13_000_000_000).step_by(DAY_SECONDS as usize) {
            let there = name(day + 1);
            assert_eq!(gmt_second(there.as_ref().unwrap().as_bytes()), Some(day + 1));
            assert!(there > before, "names rise with time");
            before = there;
        }
    }

    #[test]
    fn a_name_of_another_form_tells_nothing() {
        for wrong in [
            "",
            "@GMT-",
            "GMT-2026.11.24-21.56.00",
            "@GMT-2026.11.24-21.56.0",
            "@GMT-2026.11.24-21.56.000",
            "@GMT-2026.11.24 21.56.00",
            "@GMT-2026.02.29-00.00.00",
            "@GMT-2026.13.01-00.00.00",
            "@GMT-2026.00.01-00.00.00",
            "@GMT-2026.01.00-00.00.00",
            "@GMT-2026.01.01-24.00.00",
            "@GMT-2026.01.01-00.60.00",
            "@GMT-2026.01.01-00.00.60",
            "@GMT-+026.01.01-00.00.00",
        ] {
            assert_eq!(gmt_second(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
