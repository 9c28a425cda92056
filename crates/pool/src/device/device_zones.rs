//! The zones of one device. `zones` keeps the invariants.

use std::collections::VecDeque;

use warpfire_format::segment::FIRST_SEGMENT_ZONE;

use crate::device::zone_set::ZoneSet;

/// The place of a free zone in the order in which the zones of its device are taken.
pub(crate) type FreePlace = u64;

/// The zones of one device.
#[derive(Debug)]
pub(super) struct DeviceZones {
    pub(super) free: ZoneSet,
    /// Free zones that no segment of this session has had.
    pub(super) fresh: ZoneSet,
    pub(super) clean: ZoneSet,
    pub(super) trimmed: ZoneSet,
    /// The zone at which the circle begins, and the number of zones in it.
    pub(super) circle: (u32, u32),
    /// Free zones that are not fresh, in the order in which they became free.
    pub(super) freed: VecDeque<u32>,
    /// Number of zones that left `freed` at its front.
    pub(super) freed_before: u64,
    /// As `freed`, for zones from `end` on.
    pub(super) freed_behind_end: Vec<u32>,
    /// Zones from here on are not taken: the device is to end there.
    pub(super) end: u32,
    pub(super) free_count: u32,
    /// Zones that stay used because the device cannot reset them, in the order in which to try them
    /// again.
    pub(super) retired: VecDeque<u32>,
}

/// Stands in `freed` for a zone that was taken out of turn.
pub(super) const TAKEN: u32 = u32::MAX;

impl DeviceZones {
    pub(super) fn new(count: u32, rotate: u64) -> Self {
        let first = FIRST_SEGMENT_ZONE.0.min(count);
        let usable = count - first;
        // The zones form a circle; `rotate` chooses the one that comes first.
        let start =
            first + u32::try_from(rotate % u64::from(usable).max(1)).expect("below the number of zones");
        let mut free = ZoneSet::empty(count);
        (first..count).for_each(|zone| free.insert(zone));
        let none = ZoneSet::empty(count);
        DeviceZones {
            fresh: free.clone(),
            free,
            clean: none.clone(),
            trimmed: none,
            circle: (start, usable),
            freed: VecDeque::new(),
            freed_before: 0,
            freed_behind_end: Vec::new(),
            end: u32::MAX,
            free_count: usable,
            retired: VecDeque::new(),
        }
    }

    /// The zone to take next.
    pub(super) fn first_free(&self) -> Option<u32> {
        let fresh = self.fresh.next_from(self.circle.0).filter(|zone| *zone < self.end);
        let fresh = fresh.or_else(|| self.fresh.next_from(0).filter(|zone| *zone < self.end));
        fresh.or_else(|| self.freed.iter().find(|zone| **zone != TAKEN).copied())
    }

    /// Free zones before `end` from this place on, in the order in which they are taken.
    pub(super) fn free_from(&self, place: FreePlace) -> impl Iterator<Item = (FreePlace, u32)> + '_ {
        let (start, len) = self.circle;
        // The circle from `start` to the last zone, and from the first zone to `start`.
        let to_last = u64::from((FIRST_SEGMENT_ZONE.0 + len - start).min(len));
        let from_start = u32::try_from(u64::from(start) + place.min(to_last)).expect("within the circle");
        let from_first = u64::from(FIRST_SEGMENT_ZONE.0) + place.clamp(to_last, u64::from(len)) - to_last;
        let from_first = u32::try_from(from_first).expect("within the circle");
        let upper = self.fresh.from(from_start).map(move |zone| (u64::from(zone - start), zone));
        let lower = self.fresh.from(from_first).take_while(move |zone| *zone < start);
        let lower = lower.map(move |zone| (to_last + u64::from(zone - FIRST_SEGMENT_ZONE.0), zone));
        let passed = place.saturating_sub(self.queue_place(0));
        let freed = self.freed.iter().enumerate().skip(usize::try_from(passed).unwrap_or(usize::MAX));
        let freed = freed.filter(|(_, zone)| **zone != TAKEN).map(|(n, zone)| (self.queue_place(n), *zone));
        upper.chain(lower).chain(freed).filter(|(_, zone)| *zone < self.end)
    }

    /// The place of the zone with this number in `freed`.
    pub(super) fn queue_place(&self, number: usize) -> FreePlace {
        u64::from(self.circle.1) + self.freed_before + number as u64
    }

    /// Frees a used zone, behind all that are free.
    pub(super) fn queue(&mut self, zone: u32) {
        self.free.insert(zone);
        if zone < self.end {
            self.freed.push_back(zone);
            self.free_count += 1;
        } else {
            self.freed_behind_end.push(zone);
        }
    }

    /// Makes a free zone used. Returns whether it is clean.
    pub(super) fn take(&mut self, zone: u32) -> bool {
        assert!(zone >= FIRST_SEGMENT_ZONE.0, "the zones of the roots are always used");
        assert!(self.free.remove(zone), "only a free zone is taken");
        self.free_count -= u32::from(zone < self.end);
        if !self.fresh.remove(zone) {
            self.unqueue(zone);
        }
        self.trimmed.remove(zone);
        self.clean.remove(zone)
    }

    /// Takes a zone out of its queue: nearly always the first.
    pub(super) fn unqueue(&mut self, zone: u32) {
        if let Some(place) = self.freed.iter_mut().find(|queued| **queued == zone) {
            *place = TAKEN;
        } else {
            let at = self.freed_behind_end.iter().position(|queued| *queued == zone);
            self.freed_behind_end.remove(at.expect("a free zone that is not fresh is queued"));
        }
        while self.freed.front() == Some(&TAKEN) {
            self.freed.pop_front();
            self.freed_before += 1;
        }
    }
}
