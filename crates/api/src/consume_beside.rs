//! Work beside work: a thread consumes what the caller makes, in its order. So the caller reads from its
//! devices while the thread writes to a sink, and neither waits for the other.
//!
//! # Invariants
//! 1. The thread gets the parts one by one, in the order in which they were made.
//! 2. At most [`WAITING_MAX`] parts wait. Then the caller waits.
//! 3. When the thread fails, the caller learns at its next part that it stops.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Most parts that wait for the thread. A stream has about as many from one mark to the next.
const WAITING_MAX: usize = 4;

/// Takes the parts that the caller makes. `Break`: nobody takes more.
pub(crate) type Parts<'p, P> = &'p mut (dyn FnMut(P) -> ControlFlow<()> + Send);

/// Calls `make`, and `consume` in a thread of this name for each part that it makes. Returns what `make`
/// returns, and the first failure of `consume`, or that there is no thread.
pub(crate) fn consume_beside<P: Send, T, E: From<io::Error> + Send>(
    name: &str,
    mut consume: impl FnMut(P) -> Result<(), E> + Send,
    make: impl FnOnce(Parts<'_, P>) -> T,
) -> (T, Result<(), E>) {
    let (parts, waiting) = sync_channel::<P>(WAITING_MAX);
    thread::scope(|scope| {
        let work = move || waiting.into_iter().try_for_each(&mut consume);
        let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
        // Without a thread nobody takes parts, and the first one stops the caller.
        let made = make(&mut |part| match parts.send(part) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        });
        drop(parts);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (made, thread.map_err(E::from).and_then(join))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_arrive_in_their_order() {
        let mut taken = Vec::new();
        let consume = |part: u32| {
            taken.push(part);
            Ok::<(), io::Error>(())
        };
        let (made, consumed) = consume_beside("test", consume, |put| {
            assert!((0..1000).all(|n| put(n).is_continue()));
            "made"
        });
        assert_eq!(made, "made");
        consumed.unwrap();
        assert!(taken.into_iter().eq(0..1000));
    }

    #[test]
    fn a_failure_stops_the_caller_and_is_returned() {
        let consume =
            |part: usize| if part < 2 { Ok(()) } else { Err(io::Error::from(io::ErrorKind::BrokenPipe)) };
        let (puts, consumed) =
            consume_beside("test", consume, |put| (0..).take_while(|n| put(*n).is_continue()).count());
        assert!((3..=WAITING_MAX + 4).contains(&puts), "{puts}");
        assert_eq!(consumed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
