//! How many requests of the kernel a program's calls cost, counted by the spans of the server. The
//! subscriber is that of the whole process, so these tests have a process of their own.

#[cfg(test)]
mod counts;
#[cfg(test)]
#[expect(dead_code, reason = "the other tests of the mount use the rest")]
#[path = "../mount/fixture.rs"]
mod fixture;
#[cfg(test)]
mod short;
#[cfg(test)]
mod small;
#[cfg(test)]
mod snapshots;
