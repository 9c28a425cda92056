//! The pool's promises, tested on simulated devices.

#[cfg(test)]
mod ahead;
#[cfg(test)]
mod apart;
mod copies;
#[cfg(test)]
mod events;
#[cfg(test)]
mod failing;
mod forged;
mod frozen;
#[cfg(test)]
mod membership;
mod offline;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod pieces;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod resize;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod roots;
#[cfg(test)]
mod sequential;
#[cfg(test)]
mod shapes;
mod slow;
#[cfg(test)]
mod trim;
mod tuning;
#[cfg(test)]
mod wide;
