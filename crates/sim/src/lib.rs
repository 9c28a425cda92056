//! The whole stack under simulated devices, against models.
//!
//! ```text
//!   op ──▶ drive ──▶ Fs ▸ Engine ▸ Log ▸ Pool ▸ SimDevice      observe ──▶ Picture ┐
//!    └───▶ model::Model ──▶ history::History (a state for each operation)  Picture ┴─▶ equal?
//! ```
//!
//! A [`session`] runs product and model side by side. [`open_transactions`] holds the transactions and yanked
//! values that are open beside them. On top of it: [`seeds`], random sessions with power cuts; [`crash`],
//! every crash state of a recorded workload; [`faults`], devices that fail under load; [`rot`], devices that
//! are lost or rotten; [`life`], devices that join, leave, fail and return; [`transfer`], streams between two
//! pools. [`space`] counts space and files a second time.

#![forbid(unsafe_code)]

pub mod crash;
pub mod drive;
pub mod faults;
pub mod golden;
pub mod history;
pub mod life;
pub mod model;
pub mod observe;
pub mod op;
pub mod open_transactions;
pub mod rot;
pub mod run;
pub mod seeds;
pub mod session;
pub mod space;
pub mod stack;
pub mod transfer;
