//! A log that is open for reading shows what a log open for writing recovers, and writes nothing.

mod rig;

use std::collections::HashMap;

use rig::{Client, SHAPES, Shape, content, open};
use warpfire_log::{Admit, Log, LogError, LogPos, LogStore, RecoveredLog, Stream};
use warpfire_pool::Pool;
use warpfire_sim_env::{Cut, SimRandom, SimWorld, mix};

fn open_for_reading(world: &SimWorld) -> (Log, RecoveredLog) {
    let (pool, root) = Pool::open_for_reading(world.devices()).expect("the devices hold a pool");
    Log::open(pool, &root).expect("a power cut leaves the log")
}

/// Devices after a random life and a power cut, and the history that led there.
fn after_a_cut(shape: Shape, seed: u64) -> (SimWorld, Client) {
    let world = shape.world(seed);
    let random = SimRandom::new(seed);
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    for _ in 0..120 {
        client.step(&random).expect("there is room");
    }
    (world.cut(&Cut::Seeded(mix(seed))), client)
}

#[test]
fn a_reader_recovers_what_a_writer_recovers_and_writes_nothing() {
    for shape in SHAPES {
        for seed in 0..6 {
            let context = format!("{shape:?}, seed {seed}");
            let (world, client) = after_a_cut(shape, seed);
            // Twice, and at the same time: a reader changes nothing for the next one.
            let readers = [open_for_reading(&world), open_for_reading(&world)];
            for reader in readers {
                let reader = Client::recovered(reader, &client.history, client.acked, &context);
                reader.check(&context);
                assert_eq!(world.changes_asked(), 0, "{context}");
                let writer = world.fork();
                let writer = open(&writer).unwrap();
                let writer = Client::recovered(writer, &client.history, client.acked, &context);
                assert_eq!(reader.entries, writer.entries, "{context}");
                assert_eq!(reader.log.position(), writer.log.position(), "{context}");
            }
        }
    }
}

#[test]
fn every_call_that_writes_is_refused_and_writes_nothing() {
    for shape in SHAPES {
        let (world, client) = after_a_cut(shape, 9);
        let (log, recovered) = open_for_reading(&world);
        let refused = |result: Result<(), LogError>| {
            assert!(matches!(result, Err(LogError::OpenForReading)), "{shape:?}: {result:?}");
        };
        for stream in [Stream::Small, Stream::Large, Stream::Table, Stream::Cold] {
            refused(log.append(stream, &content(1, 5000)).map(|_| ()));
        }
        refused(log.log(b"record").map(|_| ()));
        refused(log.sync());
        refused(log.checkpoint(b"state", LogPos(1)));
        refused(log.admit(1, Admit::Reserve));
        // Without references every segment is garbage, and no call frees one.
        log.set_live(&HashMap::new());
        refused(log.sync());
        assert_eq!(log.space().live_bytes, 0, "{shape:?}");
        log.damaged().unwrap();
        drop(recovered);
        drop(log);
        assert_eq!(world.changes_asked(), 0, "{shape:?}");
        Client::recovered(open(&world).unwrap(), &client.history, client.acked, "afterwards");
    }
}
