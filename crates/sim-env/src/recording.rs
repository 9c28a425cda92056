//! Recorded runs, and the crash states of every moment in them.
//!
//! # Invariants
//! 1. A `Replay` at point `p` holds the media as they were after the first `p` events
//!    (`tests/crash.rs: a_recording_replays_to_the_same_media_and_its_cuts_equal_live_ones`).
//! 2. Making a crash state does not change the replay. The state shares its blocks with the replay, and costs
//!    the pending changes, not the device.

use crate::SimClock;
use crate::cut::{Cut, cuts};
use crate::medium::Medium;
use crate::spec::DeviceSpec;
use crate::world::{Event, SimWorld, cut_media};

/// The events of a world's devices, and the content of the devices before them.
pub struct Recording {
    seed: u64,
    bases: Vec<(DeviceSpec, Medium)>,
    events: Vec<Event>,
}

impl Recording {
    pub(crate) fn new(seed: u64, bases: Vec<(DeviceSpec, Medium)>, events: Vec<Event>) -> Self {
        Recording { seed, bases, events }
    }

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// A replay before the first event.
    #[must_use]
    pub fn replay(&self) -> Replay<'_> {
        let media = self.bases.iter().map(|(_, medium)| medium.clone()).collect();
        Replay { recording: self, media, point: 0 }
    }
}

/// A walk through a recording.
pub struct Replay<'a> {
    recording: &'a Recording,
    media: Vec<Medium>,
    point: usize,
}

impl<'a> Replay<'a> {
    /// The number of events replayed so far.
    #[must_use]
    pub fn point(&self) -> usize {
        self.point
    }

    /// The next event.
    #[must_use]
    pub fn next_event(&self) -> Option<&'a Event> {
        self.recording.events.get(self.point)
    }

    /// Replays the next event and returns it; `None` at the end.
    pub fn advance(&mut self) -> Option<&'a Event> {
        let event = self.next_event()?;
        // Later than every change that was pending when the recording began: no world counts to 2^63.
        let order = (1 << 63) + self.point as u64;
        match event {
            Event::Change { device, change } => self.media[*device].apply(order, change.clone()),
            Event::Flush { device } => self.media[*device].flush(),
            Event::Rot { device, block, bit } => self.media[*device].rot(*block, *bit),
            Event::Mark(_) => {}
        }
        self.point += 1;
        Some(event)
    }

    /// Whether a cut here can leave states that no later cut leaves: the next event is a flush of pending
    /// changes, rot, a mark, or the end. Before any other event a cut is not worth trying, since the subsets
    /// of pending changes after that event include the present ones.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        match self.next_event() {
            Some(Event::Flush { device }) => !self.media[*device].pending().is_empty(),
            Some(Event::Change { .. }) => false,
            Some(Event::Rot { .. } | Event::Mark(_)) | None => true,
        }
    }

    /// Unflushed changes of all devices.
    #[must_use]
    pub fn pending_changes(&self) -> usize {
        self.media.iter().map(|m| m.pending().len()).sum()
    }

    /// The cuts worth trying here; see [`cuts`].
    pub fn cuts(&self, samples: u64, seed: u64) -> impl Iterator<Item = Cut> + use<> {
        cuts(self.pending_changes(), samples, seed)
    }

    /// The world after a power cut here.
    #[must_use]
    pub fn cut(&self, cut: &Cut) -> SimWorld {
        let survivors = cut_media(&self.media, cut);
        let specs = self.recording.bases.iter().map(|(spec, _)| spec.clone());
        SimWorld::with_media(self.recording.seed, SimClock::new(0), specs.zip(survivors))
    }
}
