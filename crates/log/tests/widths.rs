//! Pools with segments of several widths: a segment that was written while devices were away has fewer data
//! columns than the ones before and after it.
//!
//! The test begins with what went wrong: such a segment was counted as if it had as many columns as a new
//! one. So its missing columns counted as garbage, and cleaning rewrote it for its width alone.

mod rig;

use rig::{Client, Shape, open, shape};
use warpfire_format::segment::SegmentKind;
use warpfire_log::{LogStore, Space, Stream, WorkFor};
use warpfire_pool::DeviceStatus;
use warpfire_sim_env::{Fault, SimWorld};

const SHAPE: Shape = shape(4, 2, 6);

/// Zones of roots on each device.
const ROOT_ZONES: u64 = 2;

/// Segments that each session fills.
const SEGMENTS: u64 = 3;

fn reopen(world: &SimWorld, client: Client, context: &str) -> Client {
    let (history, acked) = (client.history, client.acked);
    drop(client.log);
    let opened = open(world).unwrap_or_else(|e| panic!("{context}: {e}"));
    Client::recovered(opened, &history, acked, context)
}

/// Fills whole segments with one stream. Returns their payload bytes and their zones.
fn fill_segments(client: &mut Client) -> (u64, u64) {
    let geometry = client.log.pool().geometry(SegmentKind::Bulk);
    for _ in 0..SEGMENTS {
        let mut left = geometry.segment_payload_bytes;
        while left > 0 {
            let len = left.min(32 << 10);
            let bytes = usize::try_from(len).expect("it is small");
            client.add(Stream::Large, bytes, 0).expect("the pool has room");
            left -= len;
        }
    }
    client.sync().expect("nothing fails");
    (SEGMENTS * geometry.segment_payload_bytes, SEGMENTS * geometry.width())
}

/// The bytes that the zones of the commit log would hold in bulk segments: they count as garbage.
/// `bulk_zones` is the number of zones in segments.
fn log_bytes(client: &Client, bulk_zones: u64) -> u64 {
    let pool = client.log.pool();
    let used = |device: &DeviceStatus| u64::from(device.zones - device.free_zones) - ROOT_ZONES;
    let zones = pool.status().devices.iter().map(used).sum::<u64>() - bulk_zones;
    zones * pool.full_geometry().segment_payload_bytes / pool.full_geometry().width()
}

/// Segments that are written while one device, two and none are away.
#[test]
fn segments_of_every_width_are_counted_by_their_own() {
    let world = SHAPE.world(1);
    let mut client = Client::new(SHAPE.create(&world).expect("blank devices take a log"));
    let (mut written_bytes, mut zones) = (0, 0);
    let mut widths = Vec::new();
    for away in [&[][..], &[0], &[0, 1], &[]] {
        let context = format!("without {away:?}");
        world.sims().iter().for_each(|device| device.heal());
        away.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
        client = reopen(&world, client, &context);
        let filled = fill_segments(&mut client);
        written_bytes += filled.0;
        zones += filled.1;
        widths.push(filled.1);
        let space = client.log.space();
        let free_bytes = client.log.pool().free_bytes();
        let garbage_bytes = log_bytes(&client, zones);
        let wanted = Space {
            total_bytes: written_bytes + garbage_bytes + free_bytes,
            live_bytes: written_bytes,
            shared_bytes: 0,
            unsure_bytes: 0,
            garbage_bytes,
            stuck_bytes: 0,
            log_bytes: space.log_bytes,
            log_growth_bytes: space.log_growth_bytes,
            free_bytes,
            reserve_bytes: space.reserve_bytes,
        };
        assert_eq!(space, wanted, "{context}");
    }
    assert!(widths.windows(2).all(|pair| pair[0] != pair[1]), "the widths differ: {widths:?}");
    while client.log.mend(WorkFor::Caller).expect("all devices are back") {}
    assert_eq!(client.log.weak_segments(), 0);
    assert_eq!(client.log.victims(100), [], "no segment is rewritten for its width alone");
    assert_eq!(client.log.space().live_bytes, written_bytes);
}
