//! Values of Kubernetes' libraries.

use std::net::IpAddr;
use std::sync::Arc;

use longshore_quantity::Quantity;

use super::formats::Format;
use super::networks::{Cidr, Url};
use super::quantities::Semver;

/// Names of the types, which are names in expressions, too.
pub(crate) const TYPE_NAMES: [&str; 11] = [
    "net.IP",
    "net.CIDR",
    "kubernetes.URL",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.NamedFormat",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
];

/// A value that only functions look into.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Opaque {
    #[doc(hidden)]
    Ip(IpAddr),
    #[doc(hidden)]
    Cidr(Cidr),
    #[doc(hidden)]
    Url(Url),
    #[doc(hidden)]
    Quantity(Quantity),
    #[doc(hidden)]
    Semver(Semver),
    #[doc(hidden)]
    Format(&'static Format),
    /// Who is asked for permissions, in the name of a service account where one is given.
    Authorizer(Arc<dyn Authorizer>, Option<(String, String)>),
    #[doc(hidden)]
    Check(Arc<dyn Authorizer>, Box<Attributes>),
    #[doc(hidden)]
    Decision(Decision),
}

/// Decides what a user may do.
pub trait Authorizer: Send + Sync + std::fmt::Debug {
    /// Whether the user of the request, or the service account, may do it.
    fn authorize(&self, attributes: &Attributes) -> Decision;
}

/// What is asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// In whose name: namespace and name of a service account. The user of the request otherwise.
    pub service_account: Option<(String, String)>,
    /// Only the group is known yet, and no resource.
    pub of_group: bool,
    /// A path that is no resource.
    pub path: Option<String>,
    /// The API group.
    pub group: String,
    /// The resource, in the plural.
    pub resource: String,
    /// Its part.
    pub subresource: String,
    /// Empty for all or none.
    pub namespace: String,
    /// Empty for all.
    pub name: String,
    /// As given, if it was.
    pub field_selector: Option<String>,
    /// As given, if it was.
    pub label_selector: Option<String>,
    /// The verb.
    pub verb: String,
}

/// The answer of an authorizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// Why it could not be decided.
    pub error: Option<String>,
}

impl Opaque {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(..) => "kubernetes.authorization.Authorizer",
            Self::Check(_, attributes) if attributes.path.is_some() => {
                "kubernetes.authorization.PathCheck"
            }
            Self::Check(_, attributes) if attributes.of_group => {
                "kubernetes.authorization.GroupCheck"
            }
            Self::Check(..) => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// The bytes of an address; 1 for others.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Ip(IpAddr::V4(_)) | Self::Cidr(Cidr { address: IpAddr::V4(_), .. }) => 4,
            Self::Ip(IpAddr::V6(_)) | Self::Cidr(Cidr { address: IpAddr::V6(_), .. }) => 16,
            _ => 1,
        }
    }

    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Ip(address) => Some(address.to_string()),
            Self::Cidr(cidr) => Some(format!("{}/{}", cidr.address, cidr.length)),
            Self::Quantity(quantity) => Some(quantity.to_string()),
            _ => None,
        }
    }
}

impl PartialEq for Opaque {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Quantity(a), Self::Quantity(b)) => a.amount() == b.amount(),
            (Self::Semver(a), Self::Semver(b)) => a == b,
            (Self::Format(a), Self::Format(b)) => a.name == b.name,
            (Self::Authorizer(_, a), Self::Authorizer(_, b)) => a == b,
            (Self::Check(_, a), Self::Check(_, b)) => a == b,
            (Self::Decision(a), Self::Decision(b)) => a == b,
            _ => false,
        }
    }
}
