use warpfire_env::Timestamp;
use warpfire_format::segment::SegmentStream;
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};

use super::*;

/// A queue, and so many stripes for it that are each full and in a segment of its own.
fn queue_and_stripes(stripes: u64) -> (Arc<WriteQueue>, Vec<QueuedStripe>) {
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("flash", 128 << 20));
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: Some(4 << 20), force: false };
    let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default())
        .expect("a blank device takes a pool");
    let segment_table = Arc::new(RankedMutex::new(SegmentTable::default()));
    let write_queue = Arc::new(WriteQueue::new(Arc::clone(&segment_table), Arc::new(Pins::new())));
    let fill = |n| {
        let id = SegmentId::new(n).expect("it counts from 1");
        let mut writer = pool.allocate(id, SegmentStream::Large).expect("there is room");
        segment_table.lock().add_open(writer.descriptor(), writer.remaining_bytes());
        let mut buf = write_queue.buffer(&writer);
        buf.append(&vec![7; buf.remaining()]);
        let stripe = writer.prepare(&mut buf, 0);
        QueuedStripe { segment: id, base_bytes: 0, stripe, buf, is_background: false }
    };
    let filled = (1..=stripes).map(fill).collect();
    (write_queue, filled)
}

/// Pushes so many full stripes. Returns the buffers that wait to be used again, and the bytes of one.
fn spare_after(stripes: u64, has_thread: bool) -> (usize, usize) {
    let (write_queue, filled) = queue_and_stripes(stripes);
    let thread = has_thread.then(|| WriterThread::start(&write_queue).expect("a thread starts"));
    let bytes = filled[0].buf.len();
    filled.into_iter().for_each(|queued| write_queue.push(queued).expect("nothing fails"));
    write_queue.drain().expect("nothing fails");
    drop(thread);
    let queue = write_queue.queue.lock();
    assert_eq!((queue.waiting.len(), queue.payload_bytes, queue.completed), (0, 0, stripes));
    assert_eq!(write_queue.in_memory.load(Ordering::Acquire), 0);
    (queue.spare.len(), bytes)
}

/// The devices take nothing here: a driver is said to be at work.
#[test]
fn as_many_bytes_wait_as_the_queue_takes_and_the_next_push_waits_for_room() {
    let (write_queue, filled) = queue_and_stripes(12);
    let fits = WRITE_QUEUE_BYTES_MAX / filled[0].buf.len();
    assert!(fits > WRITE_QUEUE_STRIPES_MIN && fits < 12, "{fits} stripes fit");
    {
        let mut queue = write_queue.queue.lock();
        (queue.has_driver, queue.has_thread) = (true, true);
    }
    warpfire_env::sync::thread::scope(|scope| {
        let pushed = scope.spawn(|| {
            let pushed = filled.into_iter().map(|queued| write_queue.push(queued));
            pushed.take_while(Result::is_ok).count()
        });
        let mut queue = write_queue.queue.lock();
        let limit = std::time::Duration::from_secs(20);
        let is_short = |queue: &mut QueueState| queue.waiting.len() <= fits;
        let _ended = write_queue.changed.wait_while_for(&mut queue, is_short, limit);
        // Ends the wait of the push that found no room.
        queue.failure = Some(PoolError::Failed { reason: "the test is over".into() });
        write_queue.changed.notify_all();
        drop(queue);
        assert_eq!(pushed.join().expect("it does not panic"), fits);
    });
}

/// A thread fills as many buffers as the queue takes. Without one, a stripe fills while none is written.
#[test]
fn as_many_buffers_are_kept_as_wait_at_once() {
    let (spare, bytes) = spare_after(12, true);
    assert!(bytes > 512 << 10, "{bytes}: the queue is shorter than twelve");
    assert_eq!(spare, WRITE_QUEUE_BYTES_MAX / bytes);
    assert_eq!(spare_after(3, true).0, 3);
    assert_eq!(spare_after(3, false).0, 1);
}

/// It waits for stripes, and submits nothing while there are none.
#[test]
fn an_idle_writer_thread_drives_nothing() {
    let (write_queue, _) = queue_and_stripes(0);
    let thread = WriterThread::start(&write_queue).expect("a thread starts");
    let drives = || {
        warpfire_env::sync::thread::yield_now();
        write_queue.queue.lock().has_driver
    };
    assert!(!(0..2_000).any(|_| drives()));
    drop(thread);
}

#[test]
fn stripes_are_submitted_together_up_to_a_limit_and_a_longer_one_alone() {
    let len = |lens: &[usize]| submission_len(lens.iter().copied());
    let half = SUBMIT_MAX_BYTES / 2;
    assert_eq!(len(&[100; 50]), 50);
    assert_eq!(len(&[half, half, 1]), 2);
    assert_eq!(len(&[half, half + 1]), 1);
    assert_eq!(len(&[3 * SUBMIT_MAX_BYTES, 1]), 1);
}

#[test]
fn the_writer_thread_writes_a_stripe_that_nobody_waits_for() {
    let (write_queue, mut filled) = queue_and_stripes(1);
    let thread = WriterThread::start(&write_queue).expect("a thread starts");
    write_queue.push(filled.remove(0)).expect("nothing fails");
    let mut queue = write_queue.queue.lock();
    let limit = std::time::Duration::from_secs(20);
    let _ended = write_queue.changed.wait_while_for(&mut queue, |queue| queue.completed == 0, limit);
    assert_eq!(queue.completed, 1);
    drop(queue);
    drop(thread);
}
