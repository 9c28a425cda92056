//! Moments as text: `2026-11-21 08:29:31`, in UTC, as every answer of the command gives them.

use warpfire::Timestamp;

/// Seconds in a day.
const DAY: i64 = 86_400;

/// The moment to the second, in UTC.
#[must_use]
pub fn moment(at: Timestamp) -> String {
    let (year, month, day) = civil(at.seconds.div_euclid(DAY));
    let second = at.seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// The moment with all its digits, in UTC.
#[must_use]
pub fn exact_moment(at: Timestamp) -> String {
    format!("{}.{:09} UTC", moment(at), at.nanos)
}

/// Year, month and day of a day counted from 1970-01-01, by Howard Hinnant's `civil_from_days`: years are counted from March,
/// so that the leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
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
        ];
        for (seconds, text) in cases {
            assert_eq!(moment(Timestamp { seconds, nanos: 0 }), text);
        }
    }
}
