//! A tree of named fields.

use std::fmt;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

/// A dumped structure: a value, a list, or named fields in their order on flash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DumpValue {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Text.
    Text(String),
    /// Values in order.
    List(Vec<DumpValue>),
    /// Named values.
    Fields(Vec<(&'static str, DumpValue)>),
}

impl From<u64> for DumpValue {
    fn from(n: u64) -> Self {
        DumpValue::Number(n)
    }
}

impl From<u32> for DumpValue {
    fn from(n: u32) -> Self {
        DumpValue::Number(n.into())
    }
}

impl From<u16> for DumpValue {
    fn from(n: u16) -> Self {
        DumpValue::Number(n.into())
    }
}

impl From<u8> for DumpValue {
    fn from(n: u8) -> Self {
        DumpValue::Number(n.into())
    }
}

impl From<i64> for DumpValue {
    fn from(n: i64) -> Self {
        DumpValue::Signed(n)
    }
}

impl From<String> for DumpValue {
    fn from(text: String) -> Self {
        DumpValue::Text(text)
    }
}

impl From<&str> for DumpValue {
    fn from(text: &str) -> Self {
        DumpValue::Text(text.to_string())
    }
}

impl Serialize for DumpValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            DumpValue::Number(n) => serializer.serialize_u64(*n),
            DumpValue::Signed(n) => serializer.serialize_i64(*n),
            DumpValue::Text(text) => serializer.serialize_str(text),
            DumpValue::List(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            DumpValue::Fields(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl fmt::Display for DumpValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl DumpValue {
    fn is_leaf(&self) -> bool {
        !matches!(self, DumpValue::List(_) | DumpValue::Fields(_))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        match self {
            DumpValue::Number(n) => writeln!(f, "{n}"),
            DumpValue::Signed(n) => writeln!(f, "{n}"),
            DumpValue::Text(text) => writeln!(f, "{text}"),
            DumpValue::List(items) => {
                for item in items {
                    write!(f, "{:indent$}- ", "")?;
                    item.write_after_mark(f, indent + 2)?;
                }
                Ok(())
            }
            DumpValue::Fields(fields) => {
                for (name, value) in fields {
                    write!(f, "{:indent$}", "")?;
                    value.write_field(f, name, indent)?;
                }
                Ok(())
            }
        }
    }

    fn write_field(&self, f: &mut fmt::Formatter<'_>, name: &str, indent: usize) -> fmt::Result {
        if self.is_leaf() {
            write!(f, "{name}: ")?;
            self.write(f, 0)
        } else {
            writeln!(f, "{name}:")?;
            self.write(f, indent + 2)
        }
    }

    /// Writes a list item after its mark: the first field stays on the line of the mark.
    fn write_after_mark(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let DumpValue::Fields(fields) = self else {
            if !self.is_leaf() {
                writeln!(f)?;
            }
            return self.write(f, if self.is_leaf() { 0 } else { indent });
        };
        for (number, (name, value)) in fields.iter().enumerate() {
            if number > 0 {
                write!(f, "{:indent$}", "")?;
            }
            value.write_field(f, name, indent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::DumpValue;

    #[test]
    fn text_is_indented_by_depth() {
        let pair =
            |a: u64| DumpValue::Fields(vec![("a", a.into()), ("b", DumpValue::List(vec!["x".into()]))]);
        let dump = DumpValue::Fields(vec![
            ("name", "pool".into()),
            ("parts", DumpValue::List(vec![pair(1), pair(2)])),
        ]);
        let text = "name: pool\nparts:\n  - a: 1\n    b:\n      - x\n  - a: 2\n    b:\n      - x\n";
        assert_eq!(dump.to_string(), text);
    }
}
