//! The columns of a segment in memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use warpfire_units::{DeviceIndex, ZoneIndex};

/// One zone on each of a segment's devices, data columns first. Clones share one copy: a segment of 250
/// columns is in several tables, and takes 2 KB once. A change makes a copy of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentColumns(Arc<[(DeviceIndex, ZoneIndex)]>);

impl Deref for SegmentColumns {
    type Target = [(DeviceIndex, ZoneIndex)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for SegmentColumns {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<(DeviceIndex, ZoneIndex)>> for SegmentColumns {
    fn from(columns: Vec<(DeviceIndex, ZoneIndex)>) -> Self {
        SegmentColumns(columns.into())
    }
}

impl FromIterator<(DeviceIndex, ZoneIndex)> for SegmentColumns {
    fn from_iter<I: IntoIterator<Item = (DeviceIndex, ZoneIndex)>>(columns: I) -> Self {
        SegmentColumns(columns.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a SegmentColumns {
    type Item = &'a (DeviceIndex, ZoneIndex);
    type IntoIter = std::slice::Iter<'a, (DeviceIndex, ZoneIndex)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Debug for SegmentColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_columns_until_one_is_changed() {
        let columns: SegmentColumns = (0..250).map(|n| (DeviceIndex(n), ZoneIndex(7))).collect();
        let mut clone = columns.clone();
        assert!(std::ptr::eq(&raw const columns[0], &raw const clone[0]));
        clone[3].1 = ZoneIndex(9);
        assert_eq!((columns[3].1, clone[3].1), (ZoneIndex(7), ZoneIndex(9)));
    }
}
