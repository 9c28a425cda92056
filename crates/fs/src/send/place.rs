//! The directory of the tree in which the receiver is.

use warpfire_format::stream::StreamRecord;

use super::SendError;
use super::writer::StreamWriter;
use crate::node::NameBuf;

/// The directory that a walk is in, and the one that the receiver is in. The receiver follows when something
/// is to be done there.
#[derive(Default)]
pub(super) struct ReceiverPlace {
    walk: Vec<NameBuf>,
    receiver: Vec<NameBuf>,
    /// Whether the two may differ.
    has_moved: bool,
}

impl ReceiverPlace {
    pub(super) fn enter(&mut self, name: NameBuf) {
        self.walk.push(name);
        self.has_moved = true;
    }

    pub(super) fn leave(&mut self) {
        self.walk.pop();
        self.has_moved = true;
    }

    /// Sends the receiver to the directory of the walk.
    pub(super) fn follow(&mut self, writer: &mut StreamWriter<'_>) -> Result<(), SendError> {
        if !self.has_moved {
            return Ok(());
        }
        let common = self.walk.iter().zip(&self.receiver).take_while(|(walk, at)| walk == at).count();
        let levels = self.receiver.len() - common;
        if levels > 0 {
            writer.record(&StreamRecord::Up(levels as u64))?;
            self.receiver.truncate(common);
        }
        for name in self.walk.iter().skip(common) {
            writer.record(&StreamRecord::Enter(name))?;
            self.receiver.push(name.clone());
        }
        self.has_moved = false;
        Ok(())
    }

    /// Sends the receiver to the root.
    pub(super) fn return_to_root(&mut self, writer: &mut StreamWriter<'_>) -> Result<(), SendError> {
        self.walk.clear();
        self.has_moved = true;
        self.follow(writer)
    }
}
