//! Reviews: questions about users and their rights, which are never stored.

use super::{Created, Kind, Review, Strategy};
use crate::api_types::{Resource, review};

pub(super) static SELF_SUBJECT: Kind = Kind {
    resource: review(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
    ),
    strategy: strategy(Review::SelfSubject),
};

pub(super) static TOKEN: Kind = Kind {
    resource: review("authentication.k8s.io", "tokenreviews", "tokenreview", "TokenReview"),
    strategy: strategy(Review::Token),
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
    strategy: strategy(Review::LocalAccess),
};

pub(super) static SELF_ACCESS: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    ),
    strategy: strategy(Review::SelfAccess),
};

pub(super) static SELF_RULES: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    ),
    strategy: strategy(Review::SelfRules),
};

pub(super) static ACCESS: Kind = Kind {
    resource: review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
    ),
    strategy: strategy(Review::Access),
};

const fn strategy(review: Review) -> Strategy {
    Strategy { created: Created::Review(review), ..Strategy::PLAIN }
}
