//! Two open files that show activity in a cgroup: opening a file costs ten times as much as reading
//! it.

use std::io;
use std::os::fd::OwnedFd;

use super::Cgroup;
use super::files::{Reader, number};
use super::reading::cpu_v2;

/// The files of a cgroup. They do not keep it alive: reads fail after its removal.
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
        let text = reader.reread(&self.cpu)?;
        if self.unified { Ok(cpu_v2(text).total) } else { number(text) }
    }

    /// Memory usage in bytes, including the page cache.
    pub(in crate::stats) fn memory(&self, reader: &mut Reader) -> io::Result<u64> {
        number(reader.reread(&self.memory)?)
    }
}
