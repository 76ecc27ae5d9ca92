//! Eviction signals and the resources they belong to.

use std::collections::BTreeMap;

use super::Threshold;

/// An eviction signal. The order is that in which resources are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory of the node.
    Memory,
    /// Memory that all pods together may use.
    AllocatableMemory,
    /// Bytes of the file system with the node's own files.
    NodeFs,
    /// Inodes of it.
    NodeFsInodes,
    /// Bytes of the file system with images.
    ImageFs,
    /// Inodes of it.
    ImageFsInodes,
    /// Bytes of the file system with what containers write.
    ContainerFs,
    /// Inodes of it.
    ContainerFsInodes,
    /// Process ids.
    Pid,
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Disk space.
    EphemeralStorage,
    /// Inodes.
    Inodes,
    /// Process ids.
    Pids,
}

impl Resource {
    /// The name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// Whether amounts are formatted with binary suffixes.
    pub(super) fn is_binary(self) -> bool {
        matches!(self, Self::Memory | Self::EphemeralStorage)
    }
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Memory,
        Self::AllocatableMemory,
        Self::NodeFs,
        Self::NodeFsInodes,
        Self::ImageFs,
        Self::ImageFsInodes,
        Self::ContainerFs,
        Self::ContainerFsInodes,
        Self::Pid,
    ];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::NodeFs => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFs => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::ContainerFs => "containerfs.available",
            Self::ContainerFsInodes => "containerfs.inodesFree",
            Self::Pid => "pid.available",
        }
    }

    /// The signal of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// The resource that the signal belongs to.
    pub fn resource(self) -> Resource {
        match self {
            Self::Memory | Self::AllocatableMemory => Resource::Memory,
            Self::NodeFs | Self::ImageFs | Self::ContainerFs => Resource::EphemeralStorage,
            Self::NodeFsInodes | Self::ImageFsInodes | Self::ContainerFsInodes => Resource::Inodes,
            Self::Pid => Resource::Pids,
        }
    }

    /// The file system that it measures.
    fn file_system(self) -> Option<FileSystem> {
        match self {
            Self::NodeFs | Self::NodeFsInodes => Some(FileSystem::Node),
            Self::ImageFs | Self::ImageFsInodes => Some(FileSystem::Images),
            Self::ContainerFs | Self::ContainerFsInodes => Some(FileSystem::Containers),
            Self::Memory | Self::AllocatableMemory | Self::Pid => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileSystem {
    Node,
    Images,
    Containers,
}

/// Available amount and capacity, in bytes, inodes or process ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What is available.
    pub available: i64,
    /// The capacity.
    pub capacity: i64,
}

/// The observation of each signal.
pub type Observations = BTreeMap<Signal, Observation>;

/// Which of node, images and containers share a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All of them.
    Single,
    /// Images and writable layers share a dedicated one.
    Dedicated,
    /// Images alone have a dedicated one.
    Split,
}

/// What can be reclaimed at node level before a pod is evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaims {
    /// Dead containers.
    pub containers: bool,
    /// Unused images.
    pub images: bool,
}

/// Which storage of a pod counts against a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedStorage {
    pub(super) rootfs: bool,
    pub(super) logs: bool,
    pub(super) volumes: bool,
}

impl Layout {
    /// The layout by the devices of the file systems.
    pub fn of<D: PartialEq>(node: D, images: D, containers: D) -> Self {
        match (images == containers, node == images) {
            (false, _) => Self::Split,
            (true, false) => Self::Dedicated,
            (true, true) => Self::Single,
        }
    }

    /// The thresholds for this layout: those of the container file system follow from the file
    /// system that it is on, whatever was configured.
    pub fn adapt(self, thresholds: &[Threshold]) -> Vec<Threshold> {
        let (bytes, inodes) = match self {
            Self::Single | Self::Split => (Signal::NodeFs, Signal::NodeFsInodes),
            Self::Dedicated => (Signal::ImageFs, Signal::ImageFsInodes),
        };
        let own =
            |threshold: &&Threshold| threshold.signal.file_system() != Some(FileSystem::Containers);
        let mut adapted: Vec<Threshold> = thresholds.iter().filter(own).copied().collect();
        for (from, to) in [(bytes, Signal::ContainerFs), (inodes, Signal::ContainerFsInodes)] {
            let same = thresholds.iter().filter(|threshold| threshold.signal == from);
            adapted.extend(same.map(|threshold| Threshold { signal: to, ..*threshold }));
        }
        adapted
    }

    /// What can be reclaimed at node level for that signal.
    pub fn reclaims(self, signal: Signal) -> Reclaims {
        let Some(file_system) = signal.file_system() else { return Reclaims::default() };
        let (containers, images) = match (self, file_system) {
            (Self::Single, _) => (true, true),
            (Self::Dedicated, FileSystem::Node) => (false, false),
            (Self::Dedicated, _) => (true, true),
            (Self::Split, FileSystem::Images) => (false, true),
            (Self::Split, _) => (true, false),
        };
        Reclaims { containers, images }
    }

    /// Which storage of pods is on that signal's file system.
    pub(super) fn counted(self, signal: Signal) -> CountedStorage {
        let (rootfs, others) = match (self, signal.file_system()) {
            (_, None) => (false, false),
            (Self::Single, _) => (true, true),
            (Self::Dedicated, Some(FileSystem::Node)) => (false, true),
            (Self::Dedicated, _) => (true, false),
            (Self::Split, Some(FileSystem::Images)) => (false, false),
            (Self::Split, _) => (true, true),
        };
        CountedStorage { rootfs, logs: others, volumes: others }
    }
}
