//! Many keys in one flat buffer.

/// Keys, in the order in which they were added. Their bytes together stay below 4 GiB.
#[derive(Clone, Debug, Default)]
pub struct KeyList {
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`.
    ends: Vec<u32>,
}

impl KeyList {
    /// Adds a key.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(u32::try_from(self.bytes.len()).expect("keys stay below 4 GiB"));
    }

    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|number| self.key(number))
    }

    /// The key with this number, from 0 on.
    pub(crate) fn key(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[number] as usize]
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Memory of all keys, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<u32>()
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for KeyList {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut all = KeyList::default();
        keys.into_iter().for_each(|key| all.push(key.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_in_their_order_empty_ones_too() {
        let keys: KeyList = ["a", "", "ccc"].into_iter().collect();
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"ccc"]);
        assert_eq!((keys.len(), keys.key(2)), (3, &b"ccc"[..]));
    }
}
