//! The controllers of the cluster, as kube-controller-manager has them: loops that bring what is there
//! closer to what the API's objects ask for.
//!
//! Each controller is a module of one shape: handlers of informers add keys to a queue; workers take
//! a key and sync its object; what is to be done is decided by pure functions. [`all`] is the list.

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::panic,
        clippy::expect_used
    )
)]

mod args;
mod bootstrap;
mod certificates;
mod cluster_settings;
mod clusterroleaggregation;
mod clustertrustbundle;
mod configz;
mod context;
mod cronjob;
mod csrcleaner;
mod daemonset;
mod delegated;
mod deployment;
mod devicetainteviction;
mod discovery;
mod disruption;
mod endpoints;
mod endpointslice;
mod endpointslicemirroring;
mod flag_checks;
mod garbagecollector;
mod hostpathprovisioner;
mod job;
mod list;
mod metrics;
mod namespace;
mod nodeipam;
mod nodelifecycle;
mod podautoscaler;
mod podcertificatecleaner;
mod podgc;
mod pods;
pub mod program;
mod replicaset;
mod resourceclaim;
mod resourcequota;
mod serviceaccounts;
mod servicecidrs;
mod serving;
mod signer_files;
mod statefulset;
mod tainteviction;
mod ttl;
mod ttlafterfinished;
mod volumes;
mod workload;
mod writes;

pub use self::args::Flags;
pub use self::cluster_settings::{ClusterSettings, Recycler, RecyclerSettings};
pub use self::context::{Context, Controller, Settings};
pub use self::flag_checks::FlagError;
pub use self::hostpathprovisioner::PROVISIONER as HOST_PATH_PROVISIONER;
pub use self::list::all;
pub use self::metrics::Metrics;
pub use self::program::ProgramError;
pub use self::serving::ServingError;
pub use self::signer_files::SignerFiles;
