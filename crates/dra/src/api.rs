//! The messages, clients and servers generated from `proto/dra`.

/// The services of the plugins of DRA drivers.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The earlier service, with the messages of v1.
#[allow(missing_docs, clippy::all)]
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// The health of devices.
#[allow(missing_docs, clippy::all)]
pub mod health {
    tonic::include_proto!("v1alpha1");
}
