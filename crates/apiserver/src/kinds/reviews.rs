//! Reviews: questions about users and their rights, which are never stored.

use super::{Kind, Strategy};
use crate::api_types::{Resource, review};

pub(super) static SELF_SUBJECT: Kind = Kind {
    resource: review(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
    ),
    strategy: Strategy::PLAIN,
};

pub(super) static TOKEN: Kind = Kind {
    resource: review("authentication.k8s.io", "tokenreviews", "tokenreview", "TokenReview"),
    strategy: Strategy::PLAIN,
};

pub(super) static LOCAL_ACCESS: Kind = Kind {
    resource: Resource {
        namespaced: true,
        ..review(
            "authorization.k8s.io",
            "localsubjectaccessreviews",
            "localsubjectaccessreview",
            "LocalSubjectAccessReview",
        )
    },
    strategy: Strategy::PLAIN,
};

pub(super) static SELF_ACCESS: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    ),
    strategy: Strategy::PLAIN,
};

pub(super) static SELF_RULES: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    ),
    strategy: Strategy::PLAIN,
};

pub(super) static ACCESS: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
    ),
    strategy: Strategy::PLAIN,
};
