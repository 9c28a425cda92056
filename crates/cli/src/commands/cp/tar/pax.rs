//! Records of pax headers: `LENGTH KEY=VALUE\n`, where LENGTH is that of the whole record in decimal digits.
//! Keys and values are bytes, also with line ends in them. Defined by POSIX, `pax`, "pax Extended Header".

use warpfire::Timestamp;

/// The records of one header, in their order. A later record of a key replaces an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Parses the bytes of a header; `None` if they are malformed.
    pub fn parse(mut bytes: &[u8]) -> Option<Records> {
        let mut records = Records::default();
        while !bytes.is_empty() {
            let space = bytes.iter().position(|&byte| byte == b' ')?;
            let len = decimal(bytes.get(..space)?)?;
            let (record, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
            let (end, pair) = record.get(space + 1..)?.split_last()?;
            let equals = pair.iter().position(|&byte| byte == b'=')?;
            if *end != b'\n' {
                return None;
            }
            records.push(pair.get(..equals)?, pair.get(equals + 1..)?);
            bytes = rest;
        }
        Some(records)
    }

    pub fn push(&mut self, key: &[u8], value: impl AsRef<[u8]>) {
        self.0.push((key.to_vec(), value.as_ref().to_vec()));
    }

    /// The value of a key. An empty one takes back an earlier one.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let (_, value) = self.0.iter().rev().find(|(found, _)| found == key.as_bytes())?;
        Some(value.as_slice()).filter(|value| !value.is_empty())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// Adds records that replace those that are here.
    pub fn replace_by(&mut self, others: Records) {
        self.0.retain(|(key, _)| !others.0.iter().any(|(other, _)| other == key));
        self.0.extend(others.0);
    }

    /// The bytes of a header.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in &self.0 {
            let rest = key.len() + value.len() + " =\n".len();
            let mut len = rest;
            while len != rest + len.to_string().len() {
                len = rest + len.to_string().len();
            }
            bytes.extend_from_slice(format!("{len} ").as_bytes());
            bytes.extend_from_slice(key);
            bytes.push(b'=');
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        bytes
    }
}

/// A number in decimal digits, without a sign.
pub fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

const NANOS_PER_SECOND: u32 = 1_000_000_000;
/// Digits of nanoseconds.
const NANOS_DIGITS: usize = 9;

/// A time as a number of seconds since 1970 with its decimal fraction.
pub fn time_text(at: Timestamp) -> String {
    match at.nanos {
        0 => at.seconds.to_string(),
        // The fraction of a negative number counts away from zero.
        nanos if at.seconds < 0 => {
            format!("-{}.{:09}", (at.seconds + 1).unsigned_abs(), NANOS_PER_SECOND - nanos)
        }
        nanos => format!("{}.{nanos:09}", at.seconds),
    }
}

/// Parses what `time_text` writes. Digits behind the nanoseconds are dropped.
pub fn parse_time(text: &[u8]) -> Option<Timestamp> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let dot = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match dot {
        Some(dot) => (text.get(..dot)?, text.get(dot + 1..)?),
        None => (text, &b""[..]),
    };
    let mut digits: Vec<u8> = fraction.iter().copied().take(NANOS_DIGITS).collect();
    digits.resize(NANOS_DIGITS, b'0');
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let nanos = u32::try_from(decimal(&digits)?).ok()?;
    Some(match (is_negative, nanos) {
        (false, nanos) => Timestamp { seconds, nanos },
        (true, 0) => Timestamp { seconds: -seconds, nanos },
        (true, nanos) => Timestamp { seconds: -seconds - 1, nanos: NANOS_PER_SECOND - nanos },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_with_any_bytes_and_any_length() {
        let mut records = Records::default();
        for len in (0..120).chain(980..1010) {
            records.push(b"path", vec![b'\n'; len]);
            records.push(format!("SCHILY.xattr.user.{len}").as_bytes(), [0, b'=', b' ', 0xff]);
        }
        assert_eq!(Records::parse(&records.encode()), Some(records));
    }

    #[test]
    fn malformed_records_are_refused() {
        for bytes in
            ["6 a=b", "7 a=b\n", "99 a=b\n", "a=b\n", "0 a=b\n", "6 a=bc", "5 ab\n", " a=b\n", "2 \n"]
        {
            assert_eq!(Records::parse(bytes.as_bytes()), None, "{bytes:?}");
        }
        assert!(Records::parse(b"99999999999999999999999 a=b\n").is_none());
    }

    #[test]
    fn times_come_back_on_both_sides_of_1970() {
        for (seconds, nanos, text) in [
            (0, 0, "0"),
            (5, 30, "5.000000030"),
            (-1, 500_000_000, "-0.500000000"),
            (-2, 999_999_999, "-1.000000001"),
            (-2, 0, "-2"),
            (1 << 40, 1, "1099511627776.000000001"),
        ] {
            let at = Timestamp { seconds, nanos };
            assert_eq!(time_text(at), text);
            assert_eq!(parse_time(text.as_bytes()), Some(at));
        }
        assert_eq!(parse_time(b"1.5"), Some(Timestamp { seconds: 1, nanos: 500_000_000 }));
        assert_eq!(parse_time(b"1.0000000019"), Some(Timestamp { seconds: 1, nanos: 1 }));
        for text in ["", "-", "+1", "1.x", "x", "--1", "99999999999999999999"] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text}");
        }
    }
}
