//! Helpers: a pool on simulated devices, segments in it, and a plain copy of the written bytes.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, Timestamp};
use warpfire_pool::{CreateOptions, Pool, PoolError, Root, SegmentDescriptor, SegmentStream};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, SimWorld};
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

pub const ZONE_BYTES: u64 = 256 << 10;
pub const DEVICE_BYTES: u64 = 32 * ZONE_BYTES;

pub fn id(n: u64) -> SegmentId {
    SegmentId::new(n).unwrap()
}

pub fn options(data: u16, parity: u8) -> CreateOptions {
    CreateOptions { data, parity, zone_bytes: Some(ZONE_BYTES), force: false }
}

/// A world of `devices` append-only devices with a pool on them.
pub fn world(seed: u64, devices: usize, data: u16, parity: u8) -> (SimWorld, Pool) {
    let world = SimWorld::of(seed, devices, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    let pool = create(&world, &options(data, parity)).unwrap();
    (world, pool)
}

pub fn create(world: &SimWorld, options: &CreateOptions) -> Result<Pool, PoolError> {
    Pool::create(world.devices(), options, &*world.random(), Timestamp::default())
}

/// Opens the pool, even if the missing devices may hold a newer state.
pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<(Pool, Root), PoolError> {
    Pool::open_degraded(devices, &DistinctNumbers)
}

/// The world's devices, except those with a number in `without`.
pub fn devices_without(world: &SimWorld, without: &[usize]) -> Vec<Arc<dyn Device>> {
    let kept = world.devices().into_iter().enumerate().filter(|(n, _)| !without.contains(n));
    kept.map(|(_, d)| d).collect()
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (warpfire_sim_env::mix((seed << 32) | (n / 8)) >> (n % 8 * 8)) as u8).collect()
}

/// A bulk segment and its expected payload.
pub struct WrittenSegment {
    pub descriptor: SegmentDescriptor,
    /// The payload by address; padding after short stripes is zero.
    pub payload: Vec<u8>,
    /// Offset and length of each stripe's payload.
    pub stripes: Vec<(u64, usize)>,
}

impl WrittenSegment {
    pub fn slice(&self, offset_bytes: u64, len: usize) -> SlicePtr {
        let len_bytes = u32::try_from(len).unwrap();
        SlicePtr { segment: self.descriptor.id, offset_bytes, len_bytes }
    }

    pub fn expected(&self, slice: SlicePtr) -> &[u8] {
        let at = usize::try_from(slice.offset_bytes).unwrap();
        &self.payload[at..at + slice.len_bytes as usize]
    }

    /// One slice for each stripe's payload.
    pub fn slices(&self) -> Vec<SlicePtr> {
        self.stripes.iter().map(|(at, len)| self.slice(*at, *len)).collect()
    }
}

/// Writes, flushes and seals a bulk segment. Its stripes have these payload lengths; one that does not fit is
/// clipped.
pub fn write_segment(pool: &Pool, segment: SegmentId, lengths: &[usize]) -> WrittenSegment {
    let mut writer = pool.allocate(segment, SegmentStream::Large).unwrap();
    let mut payload = Vec::new();
    let mut stripes = Vec::new();
    let mut buf = writer.buffer();
    for (n, wanted) in (1u64..).zip(lengths) {
        if writer.next_stripe_capacity() == 0 {
            break;
        }
        writer.begin(&mut buf);
        let bytes = pattern(segment.get() << 16 | n, *wanted.min(&writer.next_stripe_capacity()));
        assert_eq!(buf.append(&bytes), bytes.len());
        assert_eq!(writer.next_offset_bytes(), payload.len() as u64);
        let offset = writer.write_stripe(&mut buf, n).unwrap();
        assert_eq!(offset, payload.len() as u64);
        stripes.push((offset, bytes.len()));
        payload.extend_from_slice(&bytes);
        payload.resize(usize::try_from(writer.next_offset_bytes()).unwrap(), 0);
    }
    pool.flush().unwrap();
    WrittenSegment { descriptor: writer.seal(), payload, stripes }
}

/// Reads a slice into aligned memory.
pub fn read(pool: &Pool, slice: SlicePtr) -> Result<Vec<u8>, PoolError> {
    let mut buf = AlignedBuf::zeroed(slice.len_bytes as usize);
    let out = &mut buf[..slice.len_bytes as usize];
    pool.read(slice, out)?;
    Ok(out.to_vec())
}

/// Panics unless every stripe of the segment reads as it was written.
pub fn assert_reads(pool: &Pool, written: &WrittenSegment) {
    for slice in written.slices() {
        let got = read(pool, slice).unwrap_or_else(|e| panic!("{slice}: {e}"));
        assert!(got == written.expected(slice), "{slice} reads as it was written");
    }
}

/// Opens the pool on these devices and adopts the segments.
pub fn open_with(devices: Vec<Arc<dyn Device>>, written: &[&WrittenSegment]) -> Pool {
    let (pool, _) = open(devices).unwrap();
    for w in written {
        pool.adopt(&w.descriptor).unwrap();
    }
    pool
}

/// The device byte of a block of a column of a stripe; row `None` is the header.
pub fn block_at(w: &WrittenSegment, stripe: usize, column: usize, row: Option<u16>) -> (usize, u64) {
    let rows = w.descriptor.stripes.iter().flat_map(|r| std::iter::repeat_n(r.rows, r.count as usize));
    let before: u64 = rows.take(stripe).map(|r| u64::from(r) + 1).sum();
    let block = before + row.map_or(0, |r| u64::from(r) + 1);
    let (device, zone) = w.descriptor.columns[column];
    (usize::from(device.0), u64::from(zone.0) * ZONE_BYTES + block * BLOCK_BYTES as u64)
}
