//! A recorded run, from which the crash states of every moment can be made.
//!
//! 1. A `Replay` at point `p` holds the media as they were after the first `p` events.
//! 2. Its crash states lose nothing to the order in which they are made: a state shares its blocks with
//!    the replay and costs the pending changes, not the device.

use crate::cut::{Cut, cuts};
use crate::device::DeviceSpec;
use crate::medium::Medium;
use crate::world::{Event, SimWorld, cut_media};

/// Everything that happened to a world's devices, and what they held before.
pub struct Recording {
    seed: u64,
    bases: Vec<(DeviceSpec, Medium)>,
    events: Vec<Event>,
}

impl Recording {
    pub(crate) fn new(seed: u64, bases: Vec<(DeviceSpec, Medium)>, events: Vec<Event>) -> Self {
        Recording { seed, bases, events }
    }

    /// What happened, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// A replay that stands before the first event.
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
    /// How many events have happened.
    #[must_use]
    pub fn point(&self) -> usize {
        self.point
    }

    /// The event that happens next.
    #[must_use]
    pub fn next_event(&self) -> Option<&'a Event> {
        self.recording.events.get(self.point)
    }

    /// Lets the next event happen and returns it; `None` at the end.
    pub fn advance(&mut self) -> Option<&'a Event> {
        let event = self.next_event()?;
        // Later than every change that was pending when the recording began.
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

    /// Whether a cut here can leave states that no later cut leaves: the next event is a flush of something,
    /// a mark, or the end. Until then, every later subset includes the present ones.
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
        SimWorld::with_media(self.recording.seed, 0, specs.zip(survivors))
    }
}
