//! A set of devices with one clock, one seed and one trace.

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_env::Device;

use crate::cut::Cut;
use crate::device::SimDevice;
use crate::medium::{Change, Medium};
use crate::random::mix;
use crate::recording::Recording;
use crate::spec::DeviceSpec;
use crate::{SimClock, SimRandom};

/// One event of a world's trace. Devices are counted in the order in which they were added.
#[derive(Clone, Debug)]
pub enum Event {
    /// A device took a change into its cache.
    Change {
        /// The device's number.
        device: usize,
        /// The change.
        change: Change,
    },
    /// A device made all its earlier changes durable.
    Flush {
        /// The device's number.
        device: usize,
    },
    /// A bit flipped.
    Rot {
        /// The device's number.
        device: usize,
        /// The block's number on the device.
        block: u64,
        /// The bit's number in the block.
        bit: usize,
    },
    /// A mark of the test: an operation began, or a sync was acknowledged.
    Mark(u64),
}

/// The state that the devices of one world share.
pub(crate) struct WorldShared {
    pub seed: u64,
    pub clock: Arc<SimClock>,
    random: Arc<SimRandom>,
    trace: Mutex<Trace>,
}

struct Trace {
    next_order: u64,
    /// Present while the world records.
    events: Option<Vec<Event>>,
}

impl WorldShared {
    fn new(seed: u64, clock: SimClock, random: SimRandom) -> Arc<Self> {
        let trace = Mutex::new(Trace { next_order: 0, events: None });
        Arc::new(WorldShared { seed, clock: Arc::new(clock), random: Arc::new(random), trace })
    }

    /// Adds an event to the trace, and returns its place in the order of all events.
    pub fn record(&self, event: Event) -> u64 {
        let mut trace = self.trace.lock();
        if let Some(events) = &mut trace.events {
            events.push(event);
        }
        trace.next_order += 1;
        trace.next_order
    }
}

/// A set of simulated devices with one clock, one seed and one trace.
///
/// The same seed and the same calls give the same world. A world from [`SimWorld::fork`] or [`SimWorld::cut`]
/// and its origin never see each other's changes.
pub struct SimWorld {
    shared: Arc<WorldShared>,
    devices: Vec<Arc<SimDevice>>,
    /// Each device's medium when the recording began.
    bases: Vec<Medium>,
}

impl SimWorld {
    /// A world without devices.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = WorldShared::new(seed, SimClock::new(0), SimRandom::new(mix(seed)));
        SimWorld { shared, devices: Vec::new(), bases: Vec::new() }
    }

    /// A world of `count` blank devices like `spec`. The n-th is named `spec.name` followed by n.
    #[must_use]
    pub fn of(seed: u64, count: usize, spec: &DeviceSpec) -> Self {
        let mut world = SimWorld::new(seed);
        for n in 0..count {
            world.add(DeviceSpec { name: format!("{}{n}", spec.name), ..spec.clone() });
        }
        world
    }

    /// A world of devices with `media` as their content.
    pub(crate) fn with_media(
        seed: u64,
        clock: SimClock,
        devices: impl Iterator<Item = (DeviceSpec, Medium)>,
    ) -> Self {
        let shared = WorldShared::new(seed, clock, SimRandom::new(mix(seed)));
        let devices = devices
            .enumerate()
            .map(|(n, (spec, medium))| Arc::new(SimDevice::new(spec, n, medium, shared.clone())))
            .collect();
        SimWorld { shared, devices, bases: Vec::new() }
    }

    /// Adds a blank device.
    ///
    /// # Panics
    /// If the spec's sizes do not fit each other.
    pub fn add(&mut self, spec: DeviceSpec) -> Arc<SimDevice> {
        let medium = spec.blank_medium();
        // A recording under way replays from the state of every device, this one too.
        if self.shared.trace.lock().events.is_some() {
            self.bases.push(medium.clone());
        }
        let device = Arc::new(SimDevice::new(spec, self.devices.len(), medium, self.shared.clone()));
        self.devices.push(device.clone());
        device
    }

    /// The devices as simulated ones, for a test that injects faults or looks at them.
    #[must_use]
    pub fn sims(&self) -> &[Arc<SimDevice>] {
        &self.devices
    }

    /// Writes, flushes, discards and resets that the devices have been asked for so far, refused ones too.
    #[must_use]
    pub fn changes_asked(&self) -> u64 {
        self.devices.iter().map(|d| d.counters()).map(|c| c.writes + c.flushes + c.discards).sum()
    }

    /// The devices, for the product.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
    }

    /// The world's clock.
    #[must_use]
    pub fn clock(&self) -> Arc<SimClock> {
        self.shared.clock.clone()
    }

    /// The world's randomness, for the product.
    #[must_use]
    pub fn random(&self) -> Arc<SimRandom> {
        self.shared.random.clone()
    }

    /// Writes a mark into the trace.
    pub fn mark(&self, mark: u64) {
        self.shared.record(Event::Mark(mark));
    }

    /// Begins a recording at the devices' present state, and drops an earlier recording. The caller ensures
    /// that no operation is under way.
    pub fn record(&mut self) {
        self.bases = self.devices.iter().map(|d| d.medium()).collect();
        self.shared.trace.lock().events = Some(Vec::new());
    }

    /// Ends the recording and returns it; `None` if there is none.
    pub fn take_recording(&mut self) -> Option<Recording> {
        let events = self.shared.trace.lock().events.take()?;
        let bases = std::mem::take(&mut self.bases);
        let specs = self.devices.iter().map(|d| d.spec().clone());
        Some(Recording::new(self.shared.seed, specs.zip(bases).collect(), events))
    }

    /// A copy of this world with its caches. Faults, counters and a recording are not copied.
    #[must_use]
    pub fn fork(&self) -> SimWorld {
        let clock = self.shared.clock.restarted();
        let shared = WorldShared::new(self.shared.seed, clock, self.shared.random.copy());
        shared.trace.lock().next_order = self.shared.trace.lock().next_order;
        let devices = self
            .devices
            .iter()
            .enumerate()
            .map(|(n, d)| Arc::new(SimDevice::new(d.spec().clone(), n, d.medium(), shared.clone())));
        SimWorld { devices: devices.collect(), shared: shared.clone(), bases: Vec::new() }
    }

    /// A copy of this world after a power cut now. This world goes on without a cut.
    #[must_use]
    pub fn cut(&self, cut: &Cut) -> SimWorld {
        let media: Vec<Medium> = self.devices.iter().map(|d| d.medium()).collect();
        let survivors = cut_media(&media, cut);
        let specs = self.devices.iter().map(|d| d.spec().clone());
        SimWorld::with_media(self.shared.seed, self.shared.clock.restarted(), specs.zip(survivors))
    }
}

/// The media after `cut`.
pub(crate) fn cut_media(media: &[Medium], cut: &Cut) -> Vec<Medium> {
    let pending: Vec<_> = media.iter().map(Medium::pending).collect();
    let fates = cut.fates(&pending);
    media.iter().zip(&fates).map(|(medium, kept)| medium.cut(kept)).collect()
}
