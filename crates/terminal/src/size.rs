//! Sizes, counts, durations and rates, as people read and write them.

use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 6] =
    [("E", 1 << 60), ("P", 1 << 50), ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// A number of bytes on the command line: `4096`, `64K`, `1.5G`, `2GiB`. Units are powers of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a size; write for example 4096, 64K or 1.5G");
        let trimmed = text.trim_end_matches(['B', 'b']).trim_end_matches(['i', 'I']);
        let (digits, scale) = match trimmed.char_indices().last() {
            Some((at, letter)) if letter.is_ascii_alphabetic() => {
                let letter = letter.to_ascii_uppercase().to_string();
                let unit = UNITS.iter().find(|(name, _)| *name == letter).ok_or_else(wrong)?;
                (&trimmed[..at], unit.1)
            }
            _ => (trimmed, 1),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let whole = whole.checked_mul(scale).ok_or_else(|| format!("'{text}' is more than 16 EiB"))?;
        Ok(Size(whole + fraction_bytes(fraction, scale).ok_or_else(wrong)?))
    }
}

/// `0.fraction` of `scale`, rounded down; `None` if the fraction has anything but decimal digits.
fn fraction_bytes(fraction: &str, scale: u64) -> Option<u64> {
    let mut numerator = 0u128;
    let mut denominator = 1u128;
    for digit in fraction.chars().take(18) {
        numerator = numerator * 10 + u128::from(digit.to_digit(10)?);
        denominator *= 10;
    }
    u64::try_from(numerator * u128::from(scale) / denominator).ok()
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, scale)| self.0 >= *scale) {
            None => write!(f, "{} B", self.0),
            Some((name, scale)) => {
                let value = self.0 as f64 / *scale as f64;
                let decimals = usize::from(value < 100.0) + usize::from(value < 10.0);
                let text = format!("{value:.decimals$}");
                let text = if text.contains('.') {
                    text.trim_end_matches('0').trim_end_matches('.')
                } else {
                    text.as_str()
                };
                write!(f, "{text} {name}iB")
            }
        }
    }
}

/// A count with commas between the thousands: `1,234,567`.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count and the word for what it counts: `1 file`, `1,234 files`.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// A duration in a fitting unit: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`.
#[must_use]
pub fn duration(nanos: u64) -> String {
    let seconds = nanos as f64 / 1e9;
    match nanos {
        0 => "0 s".to_owned(),
        1..1_000_000 => format!("{:.3} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        1_000_000_000..120_000_000_000 => format!("{seconds:.2} s"),
        _ => format!("{} min {} s", nanos / 60_000_000_000, nanos / 1_000_000_000 % 60),
    }
}

/// Events per second, for `count` events in `nanos` nanoseconds.
#[must_use]
pub fn per_second(count: u64, nanos: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("1.5G", 3 << 29),
            ("2GiB", 2 << 30),
            ("7MB", 7 << 20),
            ("512B", 512),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn other_words_are_refused_with_an_example() {
        for text in ["", "K", "12Q", "-1", "1.x", "ten", "99999999999G"] {
            let error = text.parse::<Size>().expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_three_digits_at_most() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (123 << 20, "123 MiB")];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
        let files = |count| counted(count, "file", "files");
        assert_eq!([files(0), files(1), files(1_000)], ["0 files", "1 file", "1,000 files"]);
    }
}
