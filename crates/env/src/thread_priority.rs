//! The priority of threads whose work can wait.

/// How much the nice value of a thread rises. It is 0 for most threads; at 10 one gets about a tenth of a
/// processor that another thread wants for itself.
const NICE: i32 = 10;

/// Lets other threads run before this one, for the rest of its life, and before the threads that it starts.
/// If the operating system refuses, the thread keeps its priority.
pub fn lower_thread_priority() {
    // On Linux each thread has a nice value of its own.
    let _refused = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("a thread may ask for its priority")
    }

    #[test]
    fn a_thread_lowers_its_own_priority_and_that_of_threads_it_starts() {
        let before = nice();
        let lowered = || {
            lower_thread_priority();
            (nice(), std::thread::spawn(nice).join().expect("it only looks"))
        };
        let (own, started) = std::thread::spawn(lowered).join().expect("it only looks");
        assert_eq!((own, started), ((before + NICE).min(19), own));
        assert_eq!(nice(), before, "this thread keeps its priority");
    }
}
