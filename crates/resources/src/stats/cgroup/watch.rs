//! The two files that tell whether something happens in a cgroup, kept open: to find and open one costs
//! ten times as much as to read it.

use std::io;
use std::os::fd::OwnedFd;

use super::Cgroup;
use super::files::{Reader, number};
use super::reading::cpu_v2;

/// The files of one cgroup. They keep nothing alive: of a cgroup that is gone, nothing can be read.
#[derive(Debug)]
pub(in crate::stats) struct Watch {
    unified: bool,
    cpu: OwnedFd,
    memory: OwnedFd,
}

impl Watch {
    pub(in crate::stats) fn open(cgroup: &Cgroup) -> io::Result<Self> {
        let unified = cgroup.is_unified();
        Ok(Self { unified, cpu: cgroup.cpu_file().open()?, memory: cgroup.memory_file().open()? })
    }

    /// CPU time in nanoseconds.
    pub(in crate::stats) fn cpu(&self, reader: &mut Reader) -> io::Result<u64> {
        let text = reader.now(&self.cpu)?;
        if self.unified { Ok(cpu_v2(text).total) } else { number(text) }
    }

    /// Bytes of memory in use, of pages of files too.
    pub(in crate::stats) fn memory(&self, reader: &mut Reader) -> io::Result<u64> {
        number(reader.now(&self.memory)?)
    }
}
