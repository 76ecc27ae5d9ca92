//! CertificateSigningRequest, ClusterTrustBundle and PodCertificateRequest.

use serde_json::json;

use super::prepare::{keep_all_metadata, restore};
use super::validate::certificates::Part;
use super::{Kind, Strategy, conditions, printers, validate};
use crate::api_types::{Gvk, READ_WRITE, Resource, Subresource, grouped, status_in, status_of};
use crate::gates::POD_CERTIFICATES;
use crate::schema::names;
use crate::schema::value::{default_absent, map_mut};

pub(super) static REQUEST: Kind = Kind {
    resource: Resource {
        short_names: &["csr"],
        namespaced: false,
        fields: Some(&[("spec.signerName", "spec.signerName")]),
        subresources: &[
            Subresource {
                name: "approval",
                gvk: Gvk::v1("certificates.k8s.io", "CertificateSigningRequest"),
                verbs: READ_WRITE,
            },
            status_of("certificates.k8s.io", "CertificateSigningRequest"),
        ],
        ..grouped(
            "certificates.k8s.io",
            "certificatesigningrequests",
            "certificatesigningrequest",
            "CertificateSigningRequest",
        )
    },
    strategy: Strategy {
        prepare_create: |request| drop(request.insert("status".into(), json!({}))),
        prepare_update: |request, old| restore(request, old, "spec"),
        prepare_status: conditions::keep_decisions,
        validate: |request, old, causes| match old {
            None => validate::certificates::create(request, causes),
            Some(old) => validate::certificates::update(request, old, Part::Rest, causes),
        },
        validate_status: |request, old, causes| {
            validate::certificates::update(request, old, Part::Status, causes)
        },
        name: names::path_segment,
        printer: &printers::access::SIGNING_REQUESTS,
        reset: &["spec", "status"],
        reset_by_status: &["spec", "status.conditions"],
        ..Strategy::PLAIN
    },
};

pub(super) static TRUST_BUNDLE: Kind = Kind {
 resource: Resource { version: "v1beta1", namespaced: false, fields: Some(&[("spec.signerName", "spec.signerName")]), ..grouped("certificates.k8s.io", "clustertrustbundles", "clustertrustbundle", "ClusterTrustBundle") },
 strategy: // The name depends on the signer, which is for the rules.
Strategy { validate: validate::certificates::trust_bundle, name: names::path_segment, printer: &printers::storage::TRUST_BUNDLES, ..Strategy::PLAIN },
};

/// How long a certificate may be valid if its pod does not say, in seconds.
const POD_EXPIRATION: u32 = 24 * 60 * 60;

pub(super) static POD_REQUEST: Kind = Kind {
    resource: Resource {
        version: "v1beta1",
        fields: Some(&[
            ("spec.signerName", "spec.signerName"),
            ("spec.podName", "spec.podName"),
            ("spec.nodeName", "spec.nodeName"),
        ]),
        subresources: &[status_in(Gvk {
            group: "certificates.k8s.io",
            version: "v1beta1",
            kind: "PodCertificateRequest",
        })],
        gate: Some(POD_CERTIFICATES),
        ..grouped(
            "certificates.k8s.io",
            "podcertificaterequests",
            "podcertificaterequest",
            "PodCertificateRequest",
        )
    },
    strategy: Strategy {
        default: |request| {
            if let Some(spec) = map_mut(request, "spec") {
                default_absent(spec, "maxExpirationSeconds", POD_EXPIRATION);
            }
        },
        prepare_create: |request| drop(request.insert("status".into(), json!({}))),
        prepare_status: keep_all_metadata,
        validate: |request, old, causes| match old {
            None => validate::pod_certificates::create(request, causes),
            Some(old) => validate::pod_certificates::update(request, old, causes),
        },
        validate_status: validate::pod_certificates::status,
        printer: &printers::access::POD_CERTIFICATES,
        versioned_updates: true,
        // upstream's store names none
        reset: &[],
        ..Strategy::PLAIN
    },
};
