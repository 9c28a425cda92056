//! Moments as text: `2026-11-21 08:29:31`, in UTC, as all commands print them.

use warpfire::Timestamp;

/// The moment to the second, in UTC. A moment outside the years -9999 to 9999 is printed as `@` and seconds
/// since 1970.
#[must_use]
pub fn moment(at: Timestamp) -> String {
    match jiff::Timestamp::from_second(at.seconds) {
        Ok(second) => second.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("@{}", at.seconds),
    }
}

/// The moment to the nanosecond, in UTC.
#[must_use]
pub fn exact_moment(at: Timestamp) -> String {
    format!("{}.{:09} UTC", moment(at), at.nanos)
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
            assert_eq!(moment(Timestamp { seconds, nanos: 0 }), text);
        }
    }
}
