//! Getting tokens, and showing them.

use serde_json::{Value, json};

use super::Cluster;

pub const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
pub const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// Who issues tokens, and for whom.
pub const API: &str = "https://kubernetes.default.svc.cluster.local";

pub fn token_request(spec: Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

pub fn self_review() -> String {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string()
}

impl Cluster {
    /// A token of an account in the namespace `default`.
    pub async fn token(&self, account: &str, spec: Value) -> String {
        let path = format!("{ACCOUNTS}/{account}/token");
        let answer = self.admin.create(&path, token_request(spec)).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Who one is with a token: code and user.
    pub fn who(&self, token: &str) -> (u16, Value) {
        let bearer = format!("authorization: Bearer {token}");
        let arguments =
            ["-H", &bearer, "-H", "content-type: application/json", "-d", &self_review()];
        let (code, text) = self.curl(SELF_REVIEWS, &arguments);
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        match code {
            201 => (code, answer["status"]["userInfo"].clone()),
            _ => {
                assert_eq!(
                    (answer["kind"].as_str(), answer["reason"].as_str()),
                    (Some("Status"), Some("Unauthorized"))
                );
                (code, answer)
            }
        }
    }

    /// What a TokenReview says.
    pub async fn review(&self, token: &str, audiences: Value) -> Value {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        });
        self.admin.create(REVIEWS, review).await["status"].take()
    }
}
